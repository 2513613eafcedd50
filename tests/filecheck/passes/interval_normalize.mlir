// RUN: compilemask-opt %s -p interval-normalize | filecheck %s

// Ranges with one beginning are one range.
interval.func @merge(%q: i32, %queries: i32, %keys: i32, %end: i32) -> !interval.set<2> {
  %zero = arith.constant 0 : i32
  %a = interval.range %zero to %q
  %b = interval.range %zero to %end
  %u = interval.union %a, %b : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
  interval.return %u : !interval.set<2>
}
// CHECK:      interval.func @merge{{.*}} -> !interval.set<1> {
// CHECK-NEXT:   %zero = arith.constant 0 : i32
// CHECK-NEXT:   %hi = arith.maxsi %q, %end : i32
// CHECK-NEXT:   %range = interval.range %zero to %hi
// CHECK-NEXT:   %visible = interval.concat %range : (!interval.set<1>) -> !interval.set<1>
// CHECK-NEXT:   interval.return %visible : !interval.set<1>

// Two ranges in an order that is not known are exchanged at run time, then cut apart.
interval.func @exchange(%q: i32, %queries: i32, %keys: i32, %a: i32, %b: i32, %c: i32, %d: i32) -> !interval.set<2> {
  %x = interval.range %a to %b
  %y = interval.range %c to %d
  %u = interval.union %x, %y : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
  interval.return %u : !interval.set<2>
}
// CHECK:      interval.func @exchange{{.*}} -> !interval.set<2> {
// CHECK-DAG:    arith.minsi %a, %c : i32
// CHECK-DAG:    arith.cmpi sge, %c, %a : i32
// CHECK-DAG:    arith.select
// CHECK:        %range0 = interval.range %lo0 to %hi0
// CHECK:        %range1 = interval.range %lo1 to %hi1
// CHECK-NEXT:   %visible = interval.concat %range0, %range1

// Guards move into the bounds.
interval.func @guard(%q: i32, %queries: i32, %keys: i32, %a: i32) -> !interval.set<1> {
  %inside = arith.cmpi slt, %q, %a : i32
  %zero = arith.constant 0 : i32
  %x = interval.range %zero to %keys
  %w = interval.when %inside, %x : !interval.set<1>
  interval.return %w : !interval.set<1>
}
// CHECK:      interval.func @guard
// CHECK-NOT:    interval.when
// CHECK:        %hi = arith.select %{{[0-9]+}}, %keys, %zero{{[_0-9]*}} : i32
// CHECK-NOT:    interval.when
// CHECK:        interval.return

// What is provably empty goes; the complement of a complement is the set again.
interval.func @twice(%q: i32, %queries: i32, %keys: i32) -> !interval.set<3> {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %q1 = arith.addi %q, %one : i32
  %x = interval.range %zero to %q1
  %no = interval.complement %x : (!interval.set<1>) -> !interval.set<2>
  %yes = interval.complement %no : (!interval.set<2>) -> !interval.set<3>
  interval.return %yes : !interval.set<3>
}
// CHECK:      interval.func @twice{{.*}} -> !interval.set<1> {
// CHECK:        %hi = arith.addi %q, %one{{[_0-9]*}} : i32
// CHECK-NEXT:   %range = interval.range %zero{{[_0-9]*}} to %hi
// CHECK-NEXT:   %visible = interval.concat %range

// A predicate keeps what intervals say about it.
interval.func @predicate(%q: i32, %queries: i32, %keys: i32) -> !interval.set<?> {
  %zero = arith.constant 0 : i32
  %none = interval.concat : () -> !interval.set<0>
  %all = interval.range %zero to %keys
  %odd = interval.between %none, %all {
  ^bb0(%row: i32, %kv: i32):
    %one = arith.constant 1 : i32
    %bit = arith.andi %kv, %one : i32
    %v = arith.cmpi eq, %bit, %one : i32
    interval.yield %v
  } : !interval.set<0>, !interval.set<1>
  %past = interval.range %zero to %q
  %m = interval.intersect %past, %odd : (!interval.set<1>, !interval.set<?>) -> !interval.set<?>
  interval.return %m : !interval.set<?>
}
// CHECK:      interval.func @predicate
// CHECK:        %range = interval.range %zero{{[_0-9]*}} to %q
// CHECK-NEXT:   %outer = interval.concat %range
// CHECK-NEXT:   %inner = interval.concat : () -> !interval.set<0>
// CHECK-NEXT:   %visible = interval.between %inner, %outer {

// Two sets that no row sees both of need no more ranges than one of them.
interval.func @alternate(%q: i32, %queries: i32, %keys: i32, %a: i32, %b: i32) -> !interval.set<2> {
  %zero = arith.constant 0 : i32
  %early = arith.cmpi slt, %q, %a : i32
  %late = arith.cmpi sge, %q, %a : i32
  %x = interval.range %zero to %q
  %y = interval.range %a to %b
  %first = interval.when %early, %x : !interval.set<1>
  %second = interval.when %late, %y : !interval.set<1>
  %u = interval.union %first, %second : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
  interval.return %u : !interval.set<2>
}
// CHECK:      interval.func @alternate{{.*}} -> !interval.set<1> {
// CHECK:        %lo = arith.select %{{[0-9]+}}, %zero, %a : i32
// CHECK:        %hi = arith.select
// CHECK-NEXT:   %range = interval.range %lo to %hi
// CHECK-NEXT:   %visible = interval.concat %range : (!interval.set<1>) -> !interval.set<1>
