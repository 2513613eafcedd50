// RUN: compilemask-opt %s -p legalize-partition-captures --print-op-generic | filecheck %s

builtin.module {
  tt.func public @kernel(%n: i32, %scale: f32) {
    "ttg.warp_specialize"(%n, %scale) <{partitionNumWarps = array<i32: 1>}> ({
      ttg.warp_yield
    }, {
      "ttg.warp_specialize.partitions"() ({
      ^bb0(%count: i32, %factor: f32):
        ttg.warp_return
      }) : () -> ()
    }) : (i32, f32) -> ()
    tt.return
  }
}
// CHECK:      "ttg.warp_specialize"() <{partitionNumWarps = array<i32: 1>}> ({
// CHECK:        "ttg.warp_specialize.partitions"(%n, %scale) ({
// CHECK-NEXT:   ^{{.*}}(%count: i32, %factor: f32):
// CHECK:        }) : (i32, f32) -> ()
// CHECK-NEXT: }) : () -> ()
