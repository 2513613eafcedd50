// A score region works on whole blocks of scores, and a head dimension that is no power of two is padded.
// RUN: compilemask-opt %s -p tiling-to-tt | filecheck %s

func.func @attention(%q: tensor<?x?x?x24xf16>, %k: tensor<?x?x?x24xf16>, %v: tensor<?x?x?x24xf16>, %descriptor: !tiling.descriptor, %scale: f32) -> (tensor<?x?x?x24xf16>, tensor<?x?x?xf32>) {
  %out, %lse = tiling.attention %q, %k, %v following %descriptor scale %scale precision ieee weights softmax {
  ^bb0(%score: f32, %b: i32, %h: i32, %row: i32, %kv: i32):
    %half = arith.constant 5.000000e-01 : f32
    %distance = arith.subi %kv, %row : i32
    %bias = arith.sitofp %distance : i32 to f32
    %0 = arith.mulf %bias, %half : f32
    %1 = arith.addf %score, %0 : f32
    tiling.yield %1
  } : tensor<?x?x?x24xf16>, tensor<?x?x?x24xf16>, tensor<?x?x?x24xf16> -> tensor<?x?x?x24xf16>, tensor<?x?x?xf32>
  func.return %out, %lse : tensor<?x?x?x24xf16>, tensor<?x?x?xf32>
}

// What a key and a row add to a score is computed per key and per row.
// CHECK: tt.func public @attention
// CHECK: %query = tt.load {{.*}} : tensor<64x32x!tt.ptr<f16>>
// CHECK: %scores = tt.dot {{.*}} : tensor<64x32xf16> * tensor<32x64xf16> -> tensor<64x64xf32>
// CHECK: arith.sitofp {{.*}} : tensor<1x64xi32> to tensor<1x64xf32>
// CHECK: arith.sitofp {{.*}} : tensor<64x1xi32> to tensor<64x1xf32>
// CHECK: arith.mulf {{.*}} : tensor<1x64xf32>
// CHECK: arith.mulf %scores, {{.*}} : tensor<64x64xf32>
// CHECK: arith.addf {{.*}} : tensor<64x64xf32>
// CHECK: arith.addf {{.*}} : tensor<64x64xf32>
// CHECK: tt.return
