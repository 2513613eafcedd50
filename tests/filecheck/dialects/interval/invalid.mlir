// What the verifiers of the interval dialect reject: each piece names the operation and what is wrong with it.
// RUN: compilemask-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// interval.func: no position
interval.func @bad(%q: i32) -> !interval.set<1> {
  %s = interval.range %q to %q
  interval.return %s : !interval.set<1>
}
// CHECK: interval.func @bad must start with (q: i32, queries: i32, keys: i32)

// -----
// CHECK: {{^// -+$}}

// interval.func: another arity
interval.func @bad(%q: i32, %queries: i32, %keys: i32) -> !interval.set<2> {
  %s = interval.range %q to %q
  interval.return %s : !interval.set<1>
}
// CHECK: interval.func @bad returns !interval.set<1>, its type says !interval.set<2>

// -----
// CHECK: {{^// -+$}}

// interval.func: an arity below zero
interval.func @bad(%q: i32, %queries: i32, %keys: i32) -> !interval.set<-2> {
  %s = interval.range %q to %q
  interval.return %s : !interval.set<1>
}
// CHECK: Expected integer literal

// -----
// CHECK: {{^// -+$}}

// interval.return: not a set
"interval.func"() <{sym_name = "bad", function_type = (i32, i32, i32) -> !interval.set<1>}> ({
^bb0(%q: i32, %queries: i32, %keys: i32):
  "interval.return"(%q) : (i32) -> ()
}) : () -> ()
// CHECK: operand 'value' at position 0 does not verify:
// CHECK-NEXT: i32 should be of base attribute interval.set

// -----
// CHECK: {{^// -+$}}

// interval.read: a table of another type
func.func @bad(%t: memref<?xf32>, %i: i32) {
  %x = interval.read %t[%i] : memref<?xf32>
  func.return
}
// CHECK: interval.read takes a memref<?xi32>, got memref<?xf32>

// -----
// CHECK: {{^// -+$}}

// interval.segment_of: a table of another rank
func.func @bad(%t: memref<?x?xi32>, %i: i32) {
  %b, %e = interval.segment_of %t at %i : memref<?x?xi32>
  func.return
}
// CHECK: interval.segment_of takes a memref<?xi32>, got memref<?x?xi32>

// -----
// CHECK: {{^// -+$}}

// interval.search: a table of another rank
func.func @bad(%t: memref<?x?xi32>, %i: i32) {
  %p = interval.search %t for %i : memref<?x?xi32>
  func.return
}
// CHECK: interval.search takes a memref<?xi32>, got memref<?x?xi32>

// -----
// CHECK: {{^// -+$}}

// interval.isqrt: another type
func.func @bad(%f: f32) {
  %x = "interval.isqrt"(%f) : (f32) -> i32
  func.return
}
// CHECK: operand 'operand' at position 0 does not verify:
// CHECK-NEXT: Expected attribute i32 but got f32

// -----
// CHECK: {{^// -+$}}

// interval.range: another arity
func.func @bad(%i: i32) {
  %s = "interval.range"(%i, %i) : (i32, i32) -> !interval.set<2>
  func.return
}
// CHECK: result 'result' at position 0 does not verify:
// CHECK-NEXT: Expected attribute !interval.set<1> but got !interval.set<2>

// -----
// CHECK: {{^// -+$}}

// interval.family: arguments of the body
func.func @bad(%i: i32) {
  %s = interval.family %i to %i at %i pitch %i {
    interval.member %i to %i
  } : !interval.set<3>
  func.return
}
// CHECK: the body of interval.family takes (line: i32)

// -----
// CHECK: {{^// -+$}}

// interval.family: end of the body
func.func @bad(%i: i32) {
  %s = "interval.family"(%i, %i, %i, %i) ({
  ^bb0(%line: i32):
    "func.return"() : () -> ()
  }) : (i32, i32, i32, i32) -> !interval.set<3>
  func.return
}
// CHECK: 'func.return' expects parent op 'func.func'

// -----
// CHECK: {{^// -+$}}

// interval.member: outside a family
func.func @bad(%i: i32) {
  interval.member %i to %i
}
// CHECK: 'interval.member' expects parent op 'interval.family'

// -----
// CHECK: {{^// -+$}}

// interval.when: another type
func.func @bad(%c: i1, %a: !interval.set<1>) {
  %s = "interval.when"(%c, %a) : (i1, !interval.set<1>) -> !interval.set<2>
  func.return
}
// CHECK: result 'result' at position 0 does not verify:
// CHECK-NEXT: attribute !interval.set<1> expected from variable 'T', but got !interval.set<2>

// -----
// CHECK: {{^// -+$}}

// interval.concat: another arity
func.func @bad(%a: !interval.set<1>) {
  %s = interval.concat %a, %a : (!interval.set<1>, !interval.set<1>) -> !interval.set<3>
  func.return
}
// CHECK: interval.concat gives !interval.set<2>, the result says !interval.set<3>

// -----
// CHECK: {{^// -+$}}

// interval.union: another arity
func.func @bad(%a: !interval.set<1>, %b: !interval.set<?>) {
  %s = interval.union %a, %b : (!interval.set<1>, !interval.set<?>) -> !interval.set<2>
  func.return
}
// CHECK: interval.union gives !interval.set<?>, the result says !interval.set<2>

// -----
// CHECK: {{^// -+$}}

// interval.intersect: another arity
func.func @bad(%a: !interval.set<2>) {
  %s = interval.intersect %a, %a : (!interval.set<2>, !interval.set<2>) -> !interval.set<3>
  func.return
}
// CHECK: interval.intersect gives !interval.set<4>, the result says !interval.set<3>

// -----
// CHECK: {{^// -+$}}

// interval.complement: another arity
func.func @bad(%a: !interval.set<2>) {
  %s = interval.complement %a : (!interval.set<2>) -> !interval.set<2>
  func.return
}
// CHECK: interval.complement gives !interval.set<3>, the result says !interval.set<2>

// -----
// CHECK: {{^// -+$}}

// interval.between: arguments of the body
func.func @bad(%a: !interval.set<1>) {
  %s = interval.between %a, %a {
  ^bb0(%kv: i32):
    %v = arith.constant true
    interval.yield %v
  } : !interval.set<1>, !interval.set<1>
  func.return
}
// CHECK: the body of interval.between takes (q: i32, kv: i32)

// -----
// CHECK: {{^// -+$}}

// interval.between: end of the body
func.func @bad(%a: !interval.set<1>) {
  %s = "interval.between"(%a, %a) ({
  ^bb0(%q: i32, %kv: i32):
    "func.return"() : () -> ()
  }) : (!interval.set<1>, !interval.set<1>) -> !interval.set<?>
  func.return
}
// CHECK: 'func.return' expects parent op 'func.func'

// -----
// CHECK: {{^// -+$}}

// interval.yield: no truth value
func.func @bad(%a: !interval.set<1>) {
  %s = interval.between %a, %a {
  ^bb0(%q: i32, %kv: i32):
    "interval.yield"(%q) : (i32) -> ()
  } : !interval.set<1>, !interval.set<1>
  func.return
}
// CHECK: operand 'visible' at position 0 does not verify:
// CHECK-NEXT: Expected attribute i1 but got i32

// -----
// CHECK: {{^// -+$}}

// interval.func: an ascending table that is none
interval.func @bad(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> attributes {ascending = [7]} {
  %s = interval.range %q to %keys
  interval.return %s : !interval.set<1>
}
// CHECK: interval.func in @bad: ascending names argument 7, which is no table

// -----
// CHECK: {{^// -+$}}

// interval.patches: shapes of different ranks
interval.func @bad(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> attributes {patches = #interval.patches<8 x 16 by 128>} {
  %s = interval.range %q to %keys
  interval.return %s : !interval.set<1>
}
// CHECK: patches of (8, 16) by (128,): expected two or three axes, of at least 1 each
