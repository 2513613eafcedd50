// RUN: compilemask-opt %s -p mask-to-interval,interval-normalize,canonicalize,cse | filecheck %s

// A linear comparison is a range: what causal says.
mask.func @causal() -> !mask.region {
  %m = mask.where {
  ^bb0(%q: i32, %kv: i32):
    %past = arith.cmpi sge, %q, %kv : i32
    mask.yield %past
  }
  mask.return %m
}
// CHECK:      interval.func @causal{{.*}} -> !interval.set<1> {
// CHECK:        %hi = arith.addi %q, %one : i32
// CHECK-NEXT:   %range = interval.range %zero to %hi

// The same quotient is the same chunk of 48 keys, and inside it the remainders are positions.
mask.func @chunks() -> !mask.region {
  %m = mask.where {
  ^bb0(%q: i32, %kv: i32):
    %c48 = arith.constant 48 : i32
    %a = arith.floordivsi %q, %c48 : i32
    %b = arith.floordivsi %kv, %c48 : i32
    %same = arith.cmpi eq, %a, %b : i32
    %a0 = arith.muli %a, %c48 : i32
    %b0 = arith.muli %b, %c48 : i32
    %x = arith.subi %q, %a0 : i32
    %y = arith.subi %kv, %b0 : i32
    %past = arith.cmpi sge, %x, %y : i32
    %both = arith.andi %same, %past : i1
    mask.yield %both
  }
  mask.return %m
}
// CHECK:      interval.func @chunks{{.*}} -> !interval.set<1> {
// CHECK:        [[CHUNK:%.*]] = arith.floordivsi %q, %c48 : i32
// CHECK:        %lo = arith.muli [[CHUNK]], %c48 : i32
// CHECK:        %range = interval.range %lo to %hi

// An equal id in a table that ascends is a range between two searches; the second ends behind q, so causal cuts it.
mask.func @documents(%ids: memref<?xi32>) -> !mask.region {
  %m = mask.where {
  ^bb0(%q: i32, %kv: i32):
    %a = mask.read %ids[%q] : memref<?xi32>
    %b = mask.read %ids[%kv] : memref<?xi32>
    %same = arith.cmpi eq, %a, %b : i32
    %past = arith.cmpi sge, %q, %kv : i32
    %both = arith.andi %same, %past : i1
    mask.yield %both
  } {ascending = [0]}
  mask.return %m
}
// CHECK:      interval.func @documents{{.*}} -> !interval.set<1> attributes {ascending = [3 : i64]} {
// CHECK:        [[ID:%.*]] = interval.read %ids[%q] : memref<?xi32>
// CHECK:        %lo = interval.search %ids for [[ID]] : memref<?xi32>
// CHECK-NOT:    interval.search
// CHECK:        %range = interval.range %lo to %hi
// CHECK-NOT:    interval.between

// A remainder between bounds is a range in every cell.
mask.func @remainder() -> !mask.region {
  %m = mask.where {
  ^bb0(%q: i32, %kv: i32):
    %c32 = arith.constant 32 : i32
    %c7 = arith.constant 7 : i32
    %b = arith.floordivsi %kv, %c32 : i32
    %b0 = arith.muli %b, %c32 : i32
    %y = arith.subi %kv, %b0 : i32
    %near = arith.cmpi slt, %y, %c7 : i32
    mask.yield %near
  }
  mask.return %m
}
// CHECK:      interval.func @remainder{{.*}} -> !interval.set<?> {
// CHECK:        interval.family %zero to %{{.*}} at %zero pitch %c32 {
// CHECK:          %lo = arith.muli %line, %c32 : i32
// CHECK-NEXT:     %hi = arith.addi %lo, %c7 : i32
// CHECK-NEXT:     interval.member %lo to %hi

// What cannot be solved is decided by the predicate, inside what can.
mask.func @partly(%labels: memref<?xi32>) -> !mask.region {
  %m = mask.where {
  ^bb0(%q: i32, %kv: i32):
    %a = mask.read %labels[%q] : memref<?xi32>
    %b = mask.read %labels[%kv] : memref<?xi32>
    %same = arith.cmpi eq, %a, %b : i32
    %past = arith.cmpi sge, %q, %kv : i32
    %both = arith.andi %same, %past : i1
    mask.yield %both
  }
  mask.return %m
}
// CHECK:      interval.func @partly
// CHECK:        %hi = arith.addi %q, %one : i32
// CHECK:        %range = interval.range %zero to %hi
// CHECK:        %outer = interval.concat %range
// CHECK:        %visible = interval.between %inner, %outer because ["labels[kv] is not solved for kv: labels is not known to ascend"] {
// CHECK:          interval.read %labels[%q_1] : memref<?xi32>
