// RUN: compilemask-opt %s -p interval-patch{keys=8,16},canonicalize,cse | filecheck %s
// RUN: compilemask-opt %s -p "interval-patch{queries=2,12,8 keys=2,8,8}" | filecheck %s --check-prefix=VIDEO
// RUN: compilemask-opt %s -p "interval-patch{keys=8,16 inside=true}" | filecheck %s --check-prefix=INSIDE

// A range becomes what it holds before the image, what it holds behind it, and a family over the lines of patches.
interval.func @prefix(%q: i32, %queries: i32, %keys: i32, %text: i32) -> !interval.set<1> {
  %zero = arith.constant 0 : i32
  %range = interval.range %zero to %text
  %visible = interval.concat %range : (!interval.set<1>) -> !interval.set<1>
  interval.return %visible : !interval.set<1>
}
// CHECK:      interval.func @prefix(%q: i32, %queries: i32, %keys: i32, %text: i32, %origin: i32, %lines: i32, %columns: i32, %length: i32) -> !interval.set<?> attributes {patches = #interval.patches<8 x 16 by 8 x 16>} {
// CHECK-DAG:    [[WIDTH:%[a-z0-9_]+]] = arith.constant 16 : i32
// CHECK-DAG:    [[LO:%[a-z0-9_]+]] = arith.minsi %zero, %origin : i32
// CHECK-DAG:    [[HI:%[a-z0-9_]+]] = arith.minsi %text, %origin : i32
// CHECK:        [[BEFORE:%[a-z0-9_]+]] = interval.range [[LO]] to [[HI]]
// CHECK-NEXT:   [[BEHIND:%[a-z0-9_]+]] = interval.range
// CHECK:        [[IMAGE:%[a-z0-9_]+]] = interval.family {{.*}} pitch [[WIDTH]] {
// CHECK-NEXT:   ^bb0(%number: i32):
// CHECK:          arith.cmpi slt, {{%[a-z0-9_]+}}, %lines : i32
// CHECK:          interval.member
// CHECK:        interval.concat [[BEFORE]], [[BEHIND]], [[IMAGE]]

// VIDEO:      interval.func @prefix(%q: i32, %queries: i32, %keys: i32, %text: i32, %origin: i32, %frames: i32, %lines: i32, %columns: i32, %length: i32) -> !interval.set<?> attributes {patches = #interval.patches<2 x 12 x 8 by 2 x 8 x 8>} {

// The body of a family is asked for the line of the image. Lines before and behind it stay lines.
interval.func @lines(%q: i32, %queries: i32, %keys: i32, %height: i32, %width: i32) -> !interval.set<3> {
  %zero = arith.constant 0 : i32
  %three = arith.constant 3 : i32
  %family = interval.family %zero to %three at %zero pitch %width {
  ^bb0(%line: i32):
    %lo = arith.muli %line, %width : i32
    %hi = arith.addi %lo, %three : i32
    interval.member %lo to %hi
  } : !interval.set<3>
  %visible = interval.concat %family : (!interval.set<3>) -> !interval.set<3>
  interval.return %visible : !interval.set<3>
}
// CHECK:      interval.func @lines
// CHECK:        [[BEHIND:%[a-z0-9_]+]] = arith.subi
// CHECK:        [[IMAGE:%[a-z0-9_]+]] = interval.family
// CHECK:          [[START:%[a-z0-9_]+]] = arith.muli [[LINE:%[a-z0-9_]+]], %width : i32
// CHECK-NEXT:     arith.addi [[START]], %three : i32
// CHECK-NEXT:     arith.cmpi slt, [[LINE]], %zero : i32
// CHECK-NEXT:     arith.cmpi slt, [[LINE]], %three : i32
// CHECK:        [[OVER:%[a-z0-9_]+]] = interval.family {{.*}} at %origin pitch %columns {
// CHECK-NEXT:   ^bb0(%line: i32):
// CHECK:          interval.member
// CHECK:        [[FIRST:%[a-z0-9_]+]] = arith.maxsi %zero, %lines : i32
// CHECK:        [[UNDER:%[a-z0-9_]+]] = interval.family [[FIRST]] to %three at {{.*}} pitch %columns {
// CHECK:          arith.addi {{.*}}, [[BEHIND]] : i32
// CHECK:        interval.concat [[OVER]], [[UNDER]], [[IMAGE]]

// INSIDE:      interval.func @lines
// INSIDE:        [[IMAGE:%[a-z0-9_]+]] = interval.family
// INSIDE-NOT:    interval.family
// INSIDE:        interval.concat [[IMAGE]]

// Rows and keys of a predicate are asked for their positions.
interval.func @predicate(%q: i32, %queries: i32, %keys: i32) -> !interval.set<?> {
  %zero = arith.constant 0 : i32
  %nothing = interval.concat : () -> !interval.set<0>
  %range = interval.range %zero to %keys
  %all = interval.concat %range : (!interval.set<1>) -> !interval.set<1>
  %visible = interval.between %nothing, %all because ["no reason"] {
  ^bb0(%row: i32, %kv: i32):
    %0 = arith.cmpi sge, %row, %kv : i32
    interval.yield %0
  } : !interval.set<0>, !interval.set<1>
  interval.return %visible : !interval.set<?>
}
// CHECK:      interval.func @predicate
// CHECK:        interval.between {{.*}} because ["no reason"] {
// CHECK:          [[SEEN:%[a-z0-9_]+]] = arith.cmpi sge
// CHECK-NEXT:     interval.yield [[SEEN]]
