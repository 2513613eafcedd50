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

// Lines are a family; what is the same for all lines stands outside, and so does the limit of their number.
mask.func @lines(%offsets: memref<?xi32>, %base: i32, %size: i32) -> !mask.region {
  %m = mask.lines at %base pitch %size at_most 3 {
  ^bb0(%q: i32, %line: i32):
    %first = mask.search %offsets for %q : memref<?xi32>
    %start = arith.muli %line, %size : i32
    %end = arith.addi %start, %q : i32
    mask.member %start to %end of %first to %q
  }
  mask.return %m
}
// CHECK:      interval.func @lines(%q: i32, {{.*}} attributes {ascending = [3 : i64]} {
// CHECK-NEXT:   %c3 = arith.constant 3 : i32
// CHECK-NEXT:   [[FIRST:%[0-9a-z]+]] = interval.search %offsets for %q : memref<?xi32>
// CHECK-NEXT:   [[END:%[0-9a-z]+]] = arith.addi [[FIRST]], %c3 : i32
// CHECK-NEXT:   [[LAST:%[0-9a-z]+]] = arith.minsi %q, [[END]] : i32
// CHECK-NEXT:   %m = interval.family [[FIRST]] to [[LAST]] at %base pitch %size {
// CHECK-NEXT:   ^bb{{[0-9]+}}(%line: i32):
// CHECK-NEXT:     [[LO:%[0-9a-z]+]] = arith.muli %line, %size : i32
// CHECK-NEXT:     [[HI:%[0-9a-z]+]] = arith.addi [[LO]], %q : i32
// CHECK-NEXT:     interval.member [[LO]] to [[HI]]
// CHECK-NEXT:   } : !interval.set<3>

// A part of the plane: its body counts rows and keys from its begins, and has its numbers of queries and keys.
mask.func @place(%a: i32, %b: i32, %offsets: memref<?xi32>) -> !mask.region {
  %zero = arith.constant 0 : i32
  %part = mask.place rows %a to %b cols %zero to %b {
    %keys = mask.keys
    %near = mask.band from %keys to %zero
    %documents = mask.segments %offsets : memref<?xi32>
    %own = mask.same %documents
    %seen = mask.union %near, %own
    mask.return %seen
  }
  mask.return %part
}
// CHECK:      interval.func @place
// CHECK:        [[COLUMNS:%[0-9]+]] = interval.range %{{zero[_0-9]*}} to %b
// CHECK:        %keys_1 = arith.subi %b, %{{zero[_0-9]*}} : i32
// CHECK-NEXT:   [[ROW:%[0-9]+]] = arith.subi %q, %a : i32
// CHECK-NEXT:   [[LOWER:%[0-9]+]] = arith.addi [[ROW]], %keys_1 : i32
// CHECK:        [[POSITION:%[0-9]+]] = arith.maxsi [[ROW]], %zero : i32
// CHECK-NEXT:   interval.segment_of %offsets at [[POSITION]]
// CHECK:        [[CUT:%[0-9]+]] = interval.intersect %seen, [[COLUMNS]]
// CHECK-NEXT:   %part = interval.when %{{[0-9]+}}, [[CUT]] : !interval.set<2>
