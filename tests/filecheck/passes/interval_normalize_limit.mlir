// RUN: compilemask-opt %s -p interval-normalize{max-arity=1} | filecheck %s

// Above the limit of closed-form ranges, a set is known from both sides and by its membership test: one range lies inside.
interval.func @two(%q: i32, %queries: i32, %keys: i32, %a: i32, %b: i32) -> !interval.set<2> {
  %zero = arith.constant 0 : i32
  %x = interval.range %zero to %a
  %y = interval.range %b to %q
  %u = interval.union %x, %y : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
  interval.return %u : !interval.set<2>
}
// CHECK:      interval.func @two{{.*}} -> !interval.set<?> {
// CHECK:        %range = interval.range %zero{{[_0-9]*}} to %keys
// CHECK:        %outer = interval.concat %range
// CHECK:        [[ONE:%[a-z0-9_]+]] = interval.range %zero{{[_0-9]*}} to %a
// CHECK-NEXT:   %inner = interval.concat [[ONE]]
// CHECK:        %visible = interval.between %inner, %outer because ["a row sees {{[0-9]+}} intervals, more than {{[0-9]+}}"{{.*}}] {
// CHECK:          arith.ori
// CHECK:          interval.yield
