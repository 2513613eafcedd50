// RUN: compilemask-opt %s -p mask-transpose | filecheck %s
// RUN: compilemask-opt %s -p mask-transpose,mask-transpose,canonicalize | filecheck %s --check-prefix=TWICE

// Bounds of bands change places and signs.
mask.func @band(%left: i32) -> !mask.region {
  %zero = arith.constant 0 : i32
  %seven = arith.constant 7 : i32
  %past = mask.band to %zero
  %near = mask.band from %left to %seven
  %visible = mask.intersect %past, %near
  mask.return %visible
}
// CHECK:      mask.func @band(%left: i32)
// CHECK:        %past = mask.band from %zero
// CHECK-DAG:    [[LOW:%[a-z0-9_]+]] = arith.constant -7 : i32
// CHECK-DAG:    [[HIGH:%[a-z0-9_]+]] = arith.subi %{{[a-z0-9_]+}}, %left : i32
// CHECK:        %near = mask.band from [[LOW]] to [[HIGH]]
// CHECK-NEXT:   %visible = mask.intersect %past, %near
// TWICE:      mask.func @band(%left: i32)
// TWICE:        %past = mask.band to %zero

// Rows are columns, and the other way around.
mask.func @strips(%end: i32) -> !mask.region {
  %keys = mask.keys
  %queries = mask.queries
  %last = mask.rows %end to %queries
  %first = mask.cols %end to %keys
  %visible = mask.union %last, %first
  mask.return %visible
}
// CHECK:      mask.func @strips
// CHECK-NEXT:   %keys = mask.queries
// CHECK-NEXT:   %queries = mask.keys
// CHECK-NEXT:   %last = mask.cols %end to %queries
// CHECK-NEXT:   %first = mask.rows %end to %keys

// Segments and images are symmetric.
mask.func @symmetric(%offsets: memref<?xi32>, %width: i32) -> !mask.region {
  %documents = mask.segments %offsets : memref<?xi32>
  %same = mask.same %documents
  %image = mask.grid at %width size %width x %width
  %disk = mask.disk %image radius %width
  %visible = mask.subtract %same, %disk
  mask.return %visible
}
// CHECK:      mask.func @symmetric
// CHECK:        %same = mask.same %documents
// CHECK:        %disk = mask.disk %image radius %width
// CHECK-NEXT:   %visible = mask.subtract %same, %disk

// A predicate takes its arguments in the other order.
mask.func @predicate(%label: memref<?xi32>) -> !mask.region {
  %visible = mask.where {
  ^bb0(%q: i32, %kv: i32):
    %keys = mask.keys
    %own = mask.read %label[%q] : memref<?xi32>
    %sum = arith.addi %own, %kv : i32
    %small = arith.cmpi slt, %sum, %keys : i32
    mask.yield %small
  } {ascending = [0]}
  mask.return %visible
}
// CHECK:      mask.func @predicate
// CHECK:      ^{{[a-z0-9]+}}(%q: i32, %kv: i32):
// CHECK-NEXT:   %keys = mask.queries
// CHECK-NEXT:   %own = mask.read %label[%kv]
// CHECK-NEXT:   %sum = arith.addi %own, %q : i32
// CHECK:      ascending
// TWICE:      mask.func @predicate
// TWICE:        %keys = mask.keys
// TWICE-NEXT:   %own = mask.read %label[%q]
// TWICE-NEXT:   %sum = arith.addi %own, %kv : i32

// Parts change their axes, and so does what they hold.
mask.func @part(%a: i32, %b: i32) -> !mask.region {
  %zero = arith.constant 0 : i32
  %part = mask.place rows %zero to %a cols %a to %b {
    %queries = mask.queries
    %first = mask.rows %zero to %queries
    mask.return %first
  }
  mask.return %part
}
// CHECK:      mask.func @part
// CHECK:        %part = mask.place rows %a to %b cols %zero to %a {
// CHECK-NEXT:     %queries = mask.keys
// CHECK-NEXT:     %first = mask.cols %zero to %queries
// CHECK-NEXT:     mask.return %first

// Lines of keys become a predicate that asks for the line of the query.
mask.func @lines(%base: i32, %pitch: i32) -> !mask.region {
  %visible = mask.lines at %base pitch %pitch at_most 2 {
  ^bb0(%q: i32, %line: i32):
    %keys = mask.keys
    %lo = arith.addi %line, %q : i32
    mask.member %lo to %keys of %q to %keys
  }
  mask.return %visible
}
// CHECK:      mask.func @lines
// CHECK-NEXT:   %visible = mask.where {
// CHECK-NEXT:   ^{{[a-z0-9]+}}(%q: i32, %kv: i32):
// CHECK:          %keys = mask.queries
// CHECK-NEXT:     %lo = arith.addi %{{[a-z0-9_]+}}, %kv : i32
// CHECK:          mask.yield
// CHECK-NOT:      mask.lines

// Columns that are known become the rows.
mask.func @columns(%base: i32, %pitch: i32) -> !mask.region {
  %visible = mask.lines at %base pitch %pitch at_most 2 {
  ^bb0(%q: i32, %line: i32):
    %keys = mask.keys
    mask.member %line to %keys of %q to %keys
  } columns {
  ^bb0(%kv: i32, %line: i32):
    mask.member %kv to %line of %base to %kv
  }
  mask.return %visible
}
// CHECK:      mask.func @columns
// CHECK-NEXT:   %visible = mask.lines at %base pitch %pitch {
// CHECK-NEXT:   ^{{[a-z0-9]+}}(%q: i32, %line: i32):
// CHECK-NEXT:     mask.member %q to %line of %base to %q
// CHECK-NEXT:   } columns at_most 2 {
// CHECK-NEXT:   ^{{[a-z0-9]+}}(%kv: i32, %line_1: i32):
// CHECK-NEXT:     %keys = mask.queries
// CHECK-NEXT:     mask.member %line_1 to %keys of %kv to %keys
