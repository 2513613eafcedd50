// What the verifiers of the mask dialect reject: each piece names the operation and what is wrong with it.
// RUN: compilemask-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// mask.func: a parameter of another type
mask.func @bad(%n: i64) -> !mask.region {
  %r = mask.all
  mask.return %r
}
// CHECK: mask.func @bad: argument 0 is i64; a mask parameter is i32 or memref<?xi32>

// -----
// CHECK: {{^// -+$}}

// mask.func: a name that cannot be written down and read back
mask.func @"café"() -> !mask.region {
  %r = mask.all
  mask.return %r
}
// CHECK: holds characters other than printable ASCII

// -----
// CHECK: {{^// -+$}}

// mask.func: no region
mask.func @bad(%n: i32) -> i32 {
  %r = mask.all
  mask.return %r
}
// CHECK: mask.func @bad must return one !mask.region

// -----
// CHECK: {{^// -+$}}

// mask.return: not a region
"mask.func"() <{sym_name = "bad", function_type = (i32) -> !mask.region}> ({
^bb0(%n: i32):
  "mask.return"(%n) : (i32) -> ()
}) : () -> ()
// CHECK: operand 'value' at position 0 does not verify:
// CHECK-NEXT: i32 should be of base attribute mask.region

// -----
// CHECK: {{^// -+$}}

// mask.return: outside a function
func.func @bad() {
  %r = mask.all
  mask.return %r
}
// CHECK: 'mask.return' expects parent op to be one of 'mask.func', 'mask.place'

// -----
// CHECK: {{^// -+$}}

// mask.queries: another type
mask.func @bad() -> !mask.region {
  %n = "mask.queries"() : () -> i64
  %r = mask.all
  mask.return %r
}
// CHECK: result 'result' at position 0 does not verify:
// CHECK-NEXT: Expected attribute i32 but got i64

// -----
// CHECK: {{^// -+$}}

// mask.keys: another type
mask.func @bad() -> !mask.region {
  %n = "mask.keys"() : () -> index
  %r = mask.all
  mask.return %r
}
// CHECK: result 'result' at position 0 does not verify:
// CHECK-NEXT: Expected attribute i32 but got index

// -----
// CHECK: {{^// -+$}}

// mask.read: a table of another type
func.func @bad(%t: memref<?xi64>, %i: i32) {
  %x = mask.read %t[%i] : memref<?xi64>
  func.return
}
// CHECK: mask.read takes a memref<?xi32>, got memref<?xi64>

// -----
// CHECK: {{^// -+$}}

// mask.all: another type
func.func @bad() {
  %r = "mask.all"() : () -> i1
  func.return
}
// CHECK: result 'result' at position 0 does not verify:
// CHECK-NEXT: Expected attribute !mask.region but got i1

// -----
// CHECK: {{^// -+$}}

// mask.none: an operand
func.func @bad(%n: i32) {
  %r = "mask.none"(%n) : (i32) -> !mask.region
  func.return
}
// CHECK: Expected 0 operands, but got 1

// -----
// CHECK: {{^// -+$}}

// mask.band: no bound
mask.func @bad() -> !mask.region {
  %r = mask.band
  mask.return %r
}
// CHECK: mask.band needs a lower or an upper bound; mask.all is the unbounded band

// -----
// CHECK: {{^// -+$}}

// mask.rows: another type
func.func @bad(%n: i64) {
  %r = "mask.rows"(%n, %n) : (i64, i64) -> !mask.region
  func.return
}
// CHECK: operand 'begin' at position 0 does not verify:
// CHECK-NEXT: Expected attribute i32 but got i64

// -----
// CHECK: {{^// -+$}}

// mask.cols: one bound
func.func @bad(%n: i32) {
  %r = "mask.cols"(%n) : (i32) -> !mask.region
  func.return
}
// CHECK: Expected 2 operands, but got 1

// -----
// CHECK: {{^// -+$}}

// mask.segments: a table of another rank
func.func @bad(%t: memref<?x?xi32>) {
  %s = mask.segments %t : memref<?x?xi32>
  func.return
}
// CHECK: mask.segments takes a memref<?xi32>, got memref<?x?xi32>

// -----
// CHECK: {{^// -+$}}

// mask.same: a table instead of segments
func.func @bad(%t: memref<?xi32>) {
  %r = "mask.same"(%t) : (memref<?xi32>) -> !mask.region
  func.return
}
// CHECK: operand 'segments' at position 0 does not verify:
// CHECK-NEXT: memref<?xi32> should be of base attribute mask.segments

// -----
// CHECK: {{^// -+$}}

// mask.grid: no origin
func.func @bad(%n: i32) {
  %g = "mask.grid"(%n, %n) : (i32, i32) -> !mask.grid
  func.return
}
// CHECK: Expected 3 operands, but got 2

// -----
// CHECK: {{^// -+$}}

// mask.disk: no grid
func.func @bad(%n: i32) {
  %r = "mask.disk"(%n, %n) : (i32, i32) -> !mask.region
  func.return
}
// CHECK: operand 'grid' at position 0 does not verify:
// CHECK-NEXT: i32 should be of base attribute mask.grid

// -----
// CHECK: {{^// -+$}}

// mask.box: one reach
func.func @bad(%g: !mask.grid, %n: i32) {
  %r = "mask.box"(%g, %n) : (!mask.grid, i32) -> !mask.region
  func.return
}
// CHECK: Expected 3 operands, but got 2

// -----
// CHECK: {{^// -+$}}

// mask.where: arguments of the body
mask.func @bad() -> !mask.region {
  %r = mask.where {
  ^bb0(%q: i32):
    %v = arith.constant true
    mask.yield %v
  }
  mask.return %r
}
// CHECK: the body of mask.where takes (q: i32, kv: i32)

// -----
// CHECK: {{^// -+$}}

// mask.where: end of the body
mask.func @bad() -> !mask.region {
  %r = "mask.where"() ({
  ^bb0(%q: i32, %kv: i32):
    %v = arith.constant true
    "mask.return"(%v) : (i1) -> ()
  }) : () -> !mask.region
  mask.return %r
}
// CHECK: operand 'value' at position 0 does not verify:
// CHECK-NEXT: i1 should be of base attribute mask.region

// -----
// CHECK: {{^// -+$}}

// mask.yield: no truth value
mask.func @bad() -> !mask.region {
  %r = mask.where {
  ^bb0(%q: i32, %kv: i32):
    "mask.yield"(%q) : (i32) -> ()
  }
  mask.return %r
}
// CHECK: operand 'visible' at position 0 does not verify:
// CHECK-NEXT: Expected attribute i1 but got i32

// -----
// CHECK: {{^// -+$}}

// mask.union: one region
func.func @bad(%a: !mask.region) {
  %r = "mask.union"(%a) : (!mask.region) -> !mask.region
  func.return
}
// CHECK: Expected 2 operands, but got 1

// -----
// CHECK: {{^// -+$}}

// mask.intersect: no region
func.func @bad(%a: i1) {
  %r = "mask.intersect"(%a, %a) : (i1, i1) -> !mask.region
  func.return
}
// CHECK: operand 'lhs' at position 0 does not verify:
// CHECK-NEXT: i1 should be of base attribute mask.region

// -----
// CHECK: {{^// -+$}}

// mask.subtract: no region
func.func @bad(%a: !mask.grid) {
  %r = "mask.subtract"(%a, %a) : (!mask.grid, !mask.grid) -> !mask.region
  func.return
}
// CHECK: operand 'lhs' at position 0 does not verify:
// CHECK-NEXT: !mask.grid should be of base attribute mask.region

// -----
// CHECK: {{^// -+$}}

// mask.complement: two regions
func.func @bad(%a: !mask.region) {
  %r = "mask.complement"(%a, %a) : (!mask.region, !mask.region) -> !mask.region
  func.return
}
// CHECK: Expected 1 operand, but got 2

// -----
// CHECK: {{^// -+$}}

// mask.search: a table of another type
func.func @bad(%t: memref<?xi64>, %i: i32) {
  %x = mask.search %t for %i : memref<?xi64>
  func.return
}
// CHECK: mask.search takes a memref<?xi32>, got memref<?xi64>

// -----
// CHECK: {{^// -+$}}

// mask.lines: arguments of the body
mask.func @bad(%n: i32) -> !mask.region {
  %r = mask.lines at %n pitch %n {
  ^bb0(%q: i32):
    mask.member %q to %q of %q to %q
  }
  mask.return %r
}
// CHECK: the body of mask.lines takes (q: i32, line: i32)

// -----
// CHECK: {{^// -+$}}

// mask.lines: end of the body
mask.func @bad(%n: i32) -> !mask.region {
  %r = "mask.lines"(%n, %n) ({
  ^bb0(%q: i32, %line: i32):
    %seen = arith.cmpi eq, %q, %line : i32
    "mask.yield"(%seen) : (i1) -> ()
  }) : (i32, i32) -> !mask.region
  mask.return %r
}
// CHECK: 'mask.yield' expects parent op 'mask.where'

// -----
// CHECK: {{^// -+$}}

// mask.lines: a negative number of lines
mask.func @bad(%n: i32) -> !mask.region {
  %r = mask.lines at %n pitch %n at_most -1 {
  ^bb0(%q: i32, %line: i32):
    mask.member %q to %q of %q to %q
  }
  mask.return %r
}
// CHECK: mask.lines cannot have at most -1 lines

// -----
// CHECK: {{^// -+$}}

// mask.lines: lines that depend on the line
mask.func @bad(%n: i32) -> !mask.region {
  %r = mask.lines at %n pitch %n {
  ^bb0(%q: i32, %line: i32):
    %next = arith.addi %line, %q : i32
    mask.member %q to %q of %q to %next
  }
  mask.return %r
}
// CHECK: the first and last line of mask.lines cannot depend on the line

// -----
// CHECK: {{^// -+$}}

// mask.lines: a region in the body
mask.func @bad(%n: i32) -> !mask.region {
  %r = mask.lines at %n pitch %n {
  ^bb0(%q: i32, %line: i32):
    %all = mask.all
    mask.member %q to %q of %q to %q
  }
  mask.return %r
}
// CHECK: the body of mask.lines holds arith on scalars, mask.read, mask.search, mask.queries and mask.keys

// -----
// CHECK: {{^// -+$}}

// mask.member: outside of lines
mask.func @bad(%n: i32) -> !mask.region {
  %r = mask.where {
  ^bb0(%q: i32, %kv: i32):
    mask.member %q to %q of %q to %q
  }
  mask.return %r
}
// CHECK: 'mask.member' expects parent op 'mask.lines'

// -----
// CHECK: {{^// -+$}}

// mask.place: a body with arguments
func.func @bad(%a: i32) {
  %r = mask.place rows %a to %a cols %a to %a {
  ^bb0(%q: i32):
    %all = mask.all
    mask.return %all
  }
  func.return
}
// CHECK: the body of mask.place takes no arguments

// -----
// CHECK: {{^// -+$}}

// mask.place: what no mask holds
func.func @bad(%a: i32) {
  %r = mask.place rows %a to %a cols %a to %a {
    %c = arith.constant 3 : index
    %x = memref.alloc(%c) : memref<?xi32>
    %all = mask.all
    mask.return %all
  }
  func.return
}
// CHECK: memref.alloc cannot stand here; a mask.place holds mask operations and arith on scalars

// -----
// CHECK: {{^// -+$}}

// mask.where: an ascending table that is none
mask.func @bad(%n: i32) -> !mask.region {
  %r = mask.where {
  ^bb0(%q: i32, %kv: i32):
    %v = arith.cmpi sle, %kv, %n : i32
    mask.yield %v
  } {ascending = [0]}
  mask.return %r
}
// CHECK: mask.where in @bad: ascending names argument 0, which is no table

// -----
// CHECK: {{^// -+$}}

// mask.lines: a number of columns without columns
mask.func @bad(%n: i32) -> !mask.region {
  %r = "mask.lines"(%n, %n) <{columns_at_most = 3 : i64}> ({
  ^bb0(%q: i32, %line: i32):
    mask.member %q to %line of %q to %q
  }) : (i32, i32) -> !mask.region
  mask.return %r
}
// CHECK: mask.lines has a number of columns, but no columns

// -----
// CHECK: {{^// -+$}}

// mask.lines: columns whose lines depend on the line
mask.func @bad(%n: i32) -> !mask.region {
  %r = mask.lines at %n pitch %n {
  ^bb0(%q: i32, %line: i32):
    mask.member %q to %line of %q to %q
  } columns {
  ^bb0(%kv: i32, %row: i32):
    mask.member %kv to %row of %kv to %row
  }
  mask.return %r
}
// CHECK: the first and last line of mask.lines cannot depend on the line
