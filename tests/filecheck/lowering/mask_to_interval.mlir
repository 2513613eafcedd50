// RUN: compilemask-opt %s -p mask-to-interval | filecheck %s

// Leaves have closed forms; set operations stay set operations.
mask.func @leaves(%left: i32, %offsets: memref<?xi32>) -> !mask.region {
  %zero = arith.constant 0 : i32
  %band = mask.band from %left to %zero
  %rows = mask.rows %zero to %left
  %segments = mask.segments %offsets : memref<?xi32>
  %own = mask.same %segments
  %either = mask.union %rows, %own
  %both = mask.intersect %band, %either
  %rest = mask.subtract %both, %rows
  mask.return %rest
}
// CHECK:      interval.func @leaves(%q: i32, %queries: i32, %keys: i32, %left: i32, %offsets: memref<?xi32>) -> !interval.set<4> {
// CHECK:        %band = interval.range
// CHECK:        %rows = interval.when
// CHECK:        %begin, %end = interval.segment_of %offsets at %q : memref<?xi32>
// CHECK-NEXT:   %own = interval.range %begin to %end
// CHECK-NEXT:   %either = interval.union %rows, %own : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
// CHECK-NEXT:   %both = interval.intersect %band, %either : (!interval.set<1>, !interval.set<2>) -> !interval.set<2>
// CHECK-NEXT:   [[OUTSIDE:%[0-9]+]] = interval.complement %rows : (!interval.set<1>) -> !interval.set<2>
// CHECK-NEXT:   %rest = interval.intersect %both, [[OUTSIDE]] : (!interval.set<2>, !interval.set<2>) -> !interval.set<4>

// A disk is one chord per line of the raster; a constant radius bounds their number.
mask.func @disk(%origin: i32, %height: i32, %width: i32) -> !mask.region {
  %radius = arith.constant 16 : i32
  %grid = mask.grid at %origin size %height x %width
  %disk = mask.disk %grid radius %radius
  mask.return %disk
}
// CHECK:      interval.func @disk
// CHECK:        interval.family %{{.*}} to %{{.*}} at %origin pitch %width {
// CHECK-NEXT:   ^bb{{[0-9]+}}(%line: i32):
// CHECK:          interval.isqrt
// CHECK:          interval.member
// CHECK-NEXT:   } : !interval.set<31>

// A predicate lies between nothing and everything.
mask.func @where(%labels: memref<?xi32>) -> !mask.region {
  %m = mask.where {
  ^bb0(%q: i32, %kv: i32):
    %a = mask.read %labels[%q] : memref<?xi32>
    %b = mask.read %labels[%kv] : memref<?xi32>
    %same = arith.cmpi eq, %a, %b : i32
    mask.yield %same
  }
  mask.return %m
}
// CHECK:      interval.func @where
// CHECK:        interval.between
// CHECK:          interval.read %labels[%q_1] : memref<?xi32>
// CHECK:          interval.yield
