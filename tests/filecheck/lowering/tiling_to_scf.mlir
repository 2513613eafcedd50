// Attention becomes a function for the CPU: threads draw query tiles, rows lie in the lanes of vectors, partial tiles come
// before runs of full ones, and only listed keys are read.
// RUN: compilemask-opt %s -p "tiling-to-scf{vector-bits=256}" | filecheck %s
// RUN: compilemask-opt %s -p "tiling-to-scf{vector-bits=256}" | compilemask-opt | filecheck %s

func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>, %descriptor: !tiling.descriptor, %scale: f32) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %out, %lse = tiling.attention %q, %k, %v following %descriptor scale %scale precision ieee weights softmax {
  } : tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32> -> tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
  func.return %out, %lse : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}

// CHECK-NOT: tiling.attention
// CHECK: func.func @attention(%query: memref<?xf32>, %key: memref<?xf32>, %value: memref<?xf32>, %out: memref<?xf32>, %lse: memref<?xf32>, %descriptor: memref<?xi32>, %sizes: memref<{{[0-9]+}}xi64>, %counter: memref<1xi64>, %scale: f32) {

// A query tile is drawn, and its rows are laid into lanes.
// CHECK: scf.while
// CHECK: "memref.atomic_rmw"(
// CHECK: scf.condition
// CHECK: memref.store {{.*}} : memref<1024xf32>

// Partial tiles: the words of all lanes, the keys that some lane sees, their scores.
// CHECK: scf.for {{.*}} -> (vector<16xf32>, vector<16xf32>)
// CHECK: vector.reduction {{.*}} : vector<16xi32> into i32
// CHECK: vector.fma
// CHECK: arith.cmpi ne, {{.*}} : vector<16xi32>
// CHECK: arith.select {{.*}} : vector<16xi1>, vector<16xf32>

// Runs of full tiles: two loops, and no lane is asked.
// CHECK: scf.for {{.*}} -> (vector<16xf32>, vector<16xf32>)
// CHECK: scf.for {{.*}} -> (vector<16xf32>, vector<16xf32>)
// CHECK-NOT: arith.cmpi ne
// CHECK: vector.fma
// CHECK: math.log2 {{.*}} : vector<16xf32>
// CHECK: func.return
