// Every operation of the interval dialect, printed and read back in custom and in generic form.
// RUN: compilemask-opt %s | filecheck %s
// RUN: compilemask-opt %s | compilemask-opt | filecheck %s
// RUN: compilemask-opt %s --print-op-generic | filecheck %s --check-prefix=GENERIC
// RUN: compilemask-opt %s --print-op-generic | compilemask-opt | filecheck %s

interval.func @ranges(%q: i32, %queries: i32, %keys: i32, %offsets: memref<?xi32>) -> !interval.set<2> {
  %zero = arith.constant 0 : i32
  %begin, %end = interval.segment_of %offsets at %q : memref<?xi32>
  %first = interval.read %offsets[%zero] : memref<?xi32>
  %root = interval.isqrt %first
  %found = interval.search %offsets for %root : memref<?xi32>
  %prompt = interval.range %zero to %root
  %own = interval.range %begin to %end
  %some = arith.cmpi slt, %q, %first : i32
  %when = interval.when %some, %own : !interval.set<1>
  %visible = interval.concat %prompt, %when : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
  interval.return %visible : !interval.set<2>
}
// CHECK-LABEL: interval.func @ranges(%q: i32, %queries: i32, %keys: i32, %offsets: memref<?xi32>) -> !interval.set<2> {
// CHECK-NEXT:    %zero = arith.constant 0 : i32
// CHECK-NEXT:    %begin, %end = interval.segment_of %offsets at %q : memref<?xi32>
// CHECK-NEXT:    %first = interval.read %offsets[%zero] : memref<?xi32>
// CHECK-NEXT:    %root = interval.isqrt %first
// CHECK-NEXT:    %found = interval.search %offsets for %root : memref<?xi32>
// CHECK-NEXT:    %prompt = interval.range %zero to %root
// CHECK-NEXT:    %own = interval.range %begin to %end
// CHECK-NEXT:    %some = arith.cmpi slt, %q, %first : i32
// CHECK-NEXT:    %when = interval.when %some, %own : !interval.set<1>
// CHECK-NEXT:    %visible = interval.concat %prompt, %when : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
// CHECK-NEXT:    interval.return %visible : !interval.set<2>
// CHECK-NEXT:  }

interval.func @algebra(%q: i32, %queries: i32, %keys: i32) -> !interval.set<4> {
  %zero = arith.constant 0 : i32
  %past = interval.range %zero to %q
  %future = interval.range %q to %keys
  %both = interval.union %past, %future : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
  %other = interval.complement %past : (!interval.set<1>) -> !interval.set<2>
  %visible = interval.intersect %both, %other : (!interval.set<2>, !interval.set<2>) -> !interval.set<4>
  interval.return %visible : !interval.set<4>
}
// CHECK-LABEL: interval.func @algebra(%q: i32, %queries: i32, %keys: i32) -> !interval.set<4> {
// CHECK-NEXT:    %zero = arith.constant 0 : i32
// CHECK-NEXT:    %past = interval.range %zero to %q
// CHECK-NEXT:    %future = interval.range %q to %keys
// CHECK-NEXT:    %both = interval.union %past, %future : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
// CHECK-NEXT:    %other = interval.complement %past : (!interval.set<1>) -> !interval.set<2>
// CHECK-NEXT:    %visible = interval.intersect %both, %other : (!interval.set<2>, !interval.set<2>) -> !interval.set<4>
// CHECK-NEXT:    interval.return %visible : !interval.set<4>
// CHECK-NEXT:  }

interval.func @lines(%q: i32, %queries: i32, %keys: i32, %width: i32) -> !interval.set<3> {
  %zero = arith.constant 0 : i32
  %three = arith.constant 3 : i32
  %visible = interval.family %zero to %three at %zero pitch %width {
  ^bb0(%line: i32):
    %lo = arith.muli %line, %width : i32
    %hi = arith.addi %lo, %three : i32
    interval.member %lo to %hi
  } : !interval.set<3>
  interval.return %visible : !interval.set<3>
}
// CHECK-LABEL: interval.func @lines(%q: i32, %queries: i32, %keys: i32, %width: i32) -> !interval.set<3> {
// CHECK-NEXT:    %zero = arith.constant 0 : i32
// CHECK-NEXT:    %three = arith.constant 3 : i32
// CHECK-NEXT:    %visible = interval.family %zero to %three at %zero pitch %width {
// CHECK-NEXT:    ^bb0(%line: i32):
// CHECK-NEXT:      %lo = arith.muli %line, %width : i32
// CHECK-NEXT:      %hi = arith.addi %lo, %three : i32
// CHECK-NEXT:      interval.member %lo to %hi
// CHECK-NEXT:    } : !interval.set<3>
// CHECK-NEXT:    interval.return %visible : !interval.set<3>
// CHECK-NEXT:  }

interval.func @predicate(%q: i32, %queries: i32, %keys: i32) -> !interval.set<?> {
  %nothing = interval.concat : () -> !interval.set<0>
  %zero = arith.constant 0 : i32
  %all = interval.range %zero to %keys
  %visible = interval.between %nothing, %all because ["%label does not ascend", "more"] {
  ^bb0(%row: i32, %kv: i32):
    %0 = arith.cmpi sge, %row, %kv : i32
    interval.yield %0
  } : !interval.set<0>, !interval.set<1>
  interval.return %visible : !interval.set<?>
}
// CHECK-LABEL: interval.func @predicate(%q: i32, %queries: i32, %keys: i32) -> !interval.set<?> {
// CHECK-NEXT:    %nothing = interval.concat : () -> !interval.set<0>
// CHECK-NEXT:    %zero = arith.constant 0 : i32
// CHECK-NEXT:    %all = interval.range %zero to %keys
// CHECK-NEXT:    %visible = interval.between %nothing, %all because ["%label does not ascend", "more"] {
// CHECK-NEXT:    ^bb0(%row: i32, %kv: i32):
// CHECK-NEXT:      %0 = arith.cmpi sge, %row, %kv : i32
// CHECK-NEXT:      interval.yield %0
// CHECK-NEXT:    } : !interval.set<0>, !interval.set<1>
// CHECK-NEXT:    interval.return %visible : !interval.set<?>
// CHECK-NEXT:  }

// Attributes of functions: rows and keys may be places of patched order.
interval.func @patched(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> attributes {patches = #interval.patches<2 x 8 x 8 by 1 x 8 x 16>} {
  %all = interval.range %q to %keys
  interval.return %all : !interval.set<1>
}
// CHECK-LABEL: interval.func @patched(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> attributes {patches = #interval.patches<2 x 8 x 8 by 1 x 8 x 16>} {

// GENERIC: "interval.func"() <{sym_name = "ranges", function_type = (i32, i32, i32, memref<?xi32>) -> !interval.set<2>}> ({
// GENERIC: %begin, %end = "interval.segment_of"(%offsets, %q) : (memref<?xi32>, i32) -> (i32, i32)
// GENERIC: %first = "interval.read"(%offsets, %zero) : (memref<?xi32>, i32) -> i32
// GENERIC: %root = "interval.isqrt"(%first) : (i32) -> i32
// GENERIC: %found = "interval.search"(%offsets, %root) : (memref<?xi32>, i32) -> i32
// GENERIC: %prompt = "interval.range"(%zero, %root) : (i32, i32) -> !interval.set<1>
// GENERIC: %when = "interval.when"(%some, %own) : (i1, !interval.set<1>) -> !interval.set<1>
// GENERIC: %visible = "interval.concat"(%prompt, %when) : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
// GENERIC: "interval.return"(%visible) : (!interval.set<2>) -> ()
// GENERIC: %both = "interval.union"(%past, %future) : (!interval.set<1>, !interval.set<1>) -> !interval.set<2>
// GENERIC: %other = "interval.complement"(%past) : (!interval.set<1>) -> !interval.set<2>
// GENERIC: %visible = "interval.intersect"(%both, %other) : (!interval.set<2>, !interval.set<2>) -> !interval.set<4>
// GENERIC: %visible = "interval.family"(%zero, %three, %zero, %width) ({
// GENERIC: "interval.member"(%lo, %hi) : (i32, i32) -> ()
// GENERIC: %visible = "interval.between"(%nothing, %all) <{why = ["%label does not ascend", "more"]}> ({
// GENERIC: "interval.yield"(%0) : (i1) -> ()
