// Attention becomes one kernel: partial tiles with masks, then runs of full tiles without any, then the epilogue.
// RUN: compilemask-opt %s -p "tiling-to-tt{block-q=64 block-kv=32}" | filecheck %s

func.func @attention(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %descriptor: !tiling.descriptor, %scale: f32) -> (tensor<?x?x?x64xf16>, tensor<?x?x?xf32>) {
  %out, %lse = tiling.attention %q, %k, %v following %descriptor scale %scale precision ieee weights softmax {
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return %out, %lse : tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
}

// CHECK-NOT: tiling.attention
// CHECK: tt.func public @attention(%q: !tt.ptr<f16> {tt.divisibility = 16 : i32}, {{.*}}%lse: !tt.ptr<f32>, %order: !tt.ptr<i32>, {{.*}}%q_s: i64 {tt.divisibility = 8 : i32}, {{.*}}%scale: f32)
// CHECK: %tile = tt.load
// CHECK: %query = tt.load {{.*}} : tensor<64x64x!tt.ptr<f16>>

// CHECK: scf.for {{.*}} -> (tensor<64xf32>, tensor<64xf32>, tensor<64x64xf32>)
// CHECK: %key_tile = tt.load
// CHECK: %pattern = tt.load
// CHECK: %read = arith.andi {{.*}} : tensor<32x1xi1>
// CHECK: %key = tt.load %{{.*}}, %{{.*}}, %{{.*}} : tensor<32x64x!tt.ptr<f16>>
// CHECK: %value = tt.load %{{.*}}, %{{.*}}, %{{.*}} : tensor<32x64x!tt.ptr<f16>>
// CHECK: %seen = arith.cmpi ne, {{.*}} : tensor<64x32xi32>
// CHECK: %scores = tt.dot {{.*}} : tensor<64x64xf16> * tensor<64x32xf16> -> tensor<64x32xf32>
// CHECK: arith.select %seen, %scores
// CHECK: %weights = math.exp2
// CHECK: tt.dot {{.*}} : tensor<64x32xf16> * tensor<32x64xf16> -> tensor<64x64xf32>
// CHECK: } {tt.num_stages = 2 : i32}

// CHECK: scf.for
// CHECK: scf.for
// CHECK-NOT: cmpi
// CHECK: %key{{.*}} = tt.load %{{[0-9]+}} : tensor<32x64x!tt.ptr<f16>>
// CHECK-NOT: cmpi
// CHECK: %value{{.*}} = tt.load %{{[0-9]+}} : tensor<32x64x!tt.ptr<f16>>
// CHECK-NOT: cmpi
// CHECK: tt.dot
// CHECK: tt.dot
// CHECK: } {tt.num_stages = 2 : i32}

// CHECK: %rows_of_out = arith.truncf {{.*}} : tensor<64x64xf32> to tensor<64x64xf16>
// CHECK: tt.store %{{.*}}, %rows_of_out, %{{.*}} : tensor<64x64x!tt.ptr<f16>>
// CHECK: tt.store {{.*}} : tensor<64x!tt.ptr<f32>>
// CHECK-NEXT: tt.return
