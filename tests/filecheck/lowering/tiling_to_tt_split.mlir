// Attention becomes two kernels: programs that share what a tile visits leave parts of rows, and another one joins them.
// RUN: compilemask-opt %s -p "tiling-to-tt-split{block-q=16 block-kv=32}" | filecheck %s

func.func @attention(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %descriptor: !tiling.descriptor, %scale: f32) -> (tensor<?x?x?x64xf16>, tensor<?x?x?xf32>) {
  %out, %lse = tiling.attention %q, %k, %v following %descriptor scale %scale precision ieee weights softmax {
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return %out, %lse : tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
}

// CHECK-NOT: tiling.attention
// CHECK: tt.func public @attention_split(%q: !tt.ptr<f16> {tt.divisibility = 16 : i32}, {{.*}}%parts: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %peaks: !tt.ptr<f32>, %totals: !tt.ptr<f32>, %order: !tt.ptr<i32>, {{.*}}%splits: i32, %together: i32, %scale: f32)
// CHECK: %head = arith.muli %{{[0-9]+}}, %together : i32
// CHECK: %split = arith.remsi %{{[0-9]+}}, %splits : i32
// CHECK: %tile = tt.load

// Rows of several heads stand in one block, and a share begins at split * visits / splits.
// CHECK: arith.remsi {{.*}} : tensor<16xi32>
// CHECK: arith.divsi {{.*}} : tensor<16xi32>
// CHECK: %[[FIRST:[0-9]+]] = arith.muli %split, %{{[0-9]+}} : i32
// CHECK: arith.divsi %[[FIRST]], %splits : i32
// CHECK: %query = tt.load {{.*}} : tensor<16x64x!tt.ptr<f16>>

// Its partial tiles,
// CHECK: scf.for {{.*}} -> (tensor<16xf32>, tensor<16xf32>, tensor<16x64xf32>)
// CHECK: %seen = arith.cmpi ne, {{.*}} : tensor<16x32xi32>
// CHECK: tt.dot
// CHECK: tt.dot
// CHECK: } {tt.num_stages = 2 : i32}

// the runs that its full tiles are in, 128 at a time,
// CHECK: scf.for {{.*}} -> (i32, i32, i32, i32)
// CHECK: tt.load {{.*}} : tensor<128x!tt.ptr<i32>>
// CHECK: tt.scan

// and those full tiles.
// CHECK: scf.for {{.*}} -> (i32, tensor<16xf32>, tensor<16xf32>, tensor<16x64xf32>)
// CHECK: arith.maxsi
// CHECK: arith.minsi
// CHECK: scf.for
// CHECK: tt.dot
// CHECK: tt.dot
// CHECK: } {tt.num_stages = 2 : i32}

// What saw nothing is not written.
// CHECK: tt.store {{.*}} : tensor<16x!tt.ptr<f32>>
// CHECK: tt.store {{.*}} : tensor<16x!tt.ptr<f32>>
// CHECK: arith.cmpf une, {{.*}} : tensor<16xf32>
// CHECK: tt.store {{.*}} : tensor<16x64x!tt.ptr<f32>>
// CHECK-NEXT: tt.return

// CHECK: tt.func public @attention_combine(%parts: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %peaks: !tt.ptr<f32>, %totals: !tt.ptr<f32>, %out: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %lse: !tt.ptr<f32>, %splits: i32)
// CHECK: scf.for {{.*}} -> (tensor<1xf32>, tensor<1xf32>, tensor<1x64xf32>)
// CHECK: %peaks{{.*}} = tt.load {{.*}} : tensor<64x!tt.ptr<f32>>
// CHECK: %totals{{.*}} = tt.load {{.*}} : tensor<64x!tt.ptr<f32>>
// CHECK: %parts{{.*}} = tt.load {{.*}} : tensor<64x64x!tt.ptr<f32>>
// CHECK: %weights = math.exp2 {{.*}} : tensor<64xf32>
// CHECK: tt.store {{.*}} : tensor<1x64x!tt.ptr<f16>>
// CHECK: tt.store {{.*}} : tensor<1x!tt.ptr<f32>>
// CHECK-NEXT: tt.return
