// Every operation of the mask dialect, printed and read back in custom and in generic form.
// RUN: compilemask-opt %s | filecheck %s
// RUN: compilemask-opt %s | compilemask-opt | filecheck %s
// RUN: compilemask-opt %s --print-op-generic | filecheck %s --check-prefix=GENERIC
// RUN: compilemask-opt %s --print-op-generic | compilemask-opt | filecheck %s

mask.func @leaves(%a: i32, %b: i32) -> !mask.region {
  %queries = mask.queries
  %keys = mask.keys
  %all = mask.all
  %none = mask.none
  %below = mask.band to %b
  %above = mask.band from %a
  %band = mask.band from %a to %b
  %rows = mask.rows %a to %queries
  %cols = mask.cols %b to %keys
  %union = mask.union %all, %none
  %intersect = mask.intersect %below, %above
  %subtract = mask.subtract %band, %rows
  %complement = mask.complement %cols
  %left = mask.union %union, %intersect
  %right = mask.union %subtract, %complement
  %visible = mask.union %left, %right
  mask.return %visible
}
// CHECK-LABEL: mask.func @leaves(%a: i32, %b: i32) -> !mask.region {
// CHECK-NEXT:    %queries = mask.queries
// CHECK-NEXT:    %keys = mask.keys
// CHECK-NEXT:    %all = mask.all
// CHECK-NEXT:    %none = mask.none
// CHECK-NEXT:    %below = mask.band to %b
// CHECK-NEXT:    %above = mask.band from %a
// CHECK-NEXT:    %band = mask.band from %a to %b
// CHECK-NEXT:    %rows = mask.rows %a to %queries
// CHECK-NEXT:    %cols = mask.cols %b to %keys
// CHECK-NEXT:    %union = mask.union %all, %none
// CHECK-NEXT:    %intersect = mask.intersect %below, %above
// CHECK-NEXT:    %subtract = mask.subtract %band, %rows
// CHECK-NEXT:    %complement = mask.complement %cols
// CHECK-NEXT:    %left = mask.union %union, %intersect
// CHECK-NEXT:    %right = mask.union %subtract, %complement
// CHECK-NEXT:    %visible = mask.union %left, %right
// CHECK-NEXT:    mask.return %visible
// CHECK-NEXT:  }

mask.func @segments(%offsets: memref<?xi32>) -> !mask.region {
  %zero = arith.constant 0 : i32
  %documents = mask.segments %offsets : memref<?xi32>
  %own = mask.same %documents
  %first = mask.read %offsets[%zero] : memref<?xi32>
  %seen = mask.cols %zero to %first
  %visible = mask.intersect %own, %seen
  mask.return %visible
}
// CHECK-LABEL: mask.func @segments(%offsets: memref<?xi32>) -> !mask.region {
// CHECK-NEXT:    %zero = arith.constant 0 : i32
// CHECK-NEXT:    %documents = mask.segments %offsets : memref<?xi32>
// CHECK-NEXT:    %own = mask.same %documents
// CHECK-NEXT:    %first = mask.read %offsets[%zero] : memref<?xi32>
// CHECK-NEXT:    %seen = mask.cols %zero to %first
// CHECK-NEXT:    %visible = mask.intersect %own, %seen
// CHECK-NEXT:    mask.return %visible
// CHECK-NEXT:  }

mask.func @images(%height: i32, %width: i32, %origin: i32) -> !mask.region {
  %radius = arith.constant 8 : i32
  %image = mask.grid at %origin size %height x %width
  %disk = mask.disk %image radius %radius
  %box = mask.box %image reach %radius x %radius
  %visible = mask.union %disk, %box
  mask.return %visible
}
// CHECK-LABEL: mask.func @images(%height: i32, %width: i32, %origin: i32) -> !mask.region {
// CHECK-NEXT:    %radius = arith.constant 8 : i32
// CHECK-NEXT:    %image = mask.grid at %origin size %height x %width
// CHECK-NEXT:    %disk = mask.disk %image radius %radius
// CHECK-NEXT:    %box = mask.box %image reach %radius x %radius
// CHECK-NEXT:    %visible = mask.union %disk, %box
// CHECK-NEXT:    mask.return %visible
// CHECK-NEXT:  }

mask.func @predicate(%label: memref<?xi32>) -> !mask.region {
  %visible = mask.where {
  ^bb0(%q: i32, %kv: i32):
    %0 = mask.read %label[%q] : memref<?xi32>
    %1 = mask.read %label[%kv] : memref<?xi32>
    %2 = arith.cmpi eq, %0, %1 : i32
    mask.yield %2
  }
  mask.return %visible
}
// CHECK-LABEL: mask.func @predicate(%label: memref<?xi32>) -> !mask.region {
// CHECK-NEXT:    %visible = mask.where {
// CHECK-NEXT:    ^bb0(%q: i32, %kv: i32):
// CHECK-NEXT:      %0 = mask.read %label[%q] : memref<?xi32>
// CHECK-NEXT:      %1 = mask.read %label[%kv] : memref<?xi32>
// CHECK-NEXT:      %2 = arith.cmpi eq, %0, %1 : i32
// CHECK-NEXT:      mask.yield %2
// CHECK-NEXT:    }
// CHECK-NEXT:    mask.return %visible
// CHECK-NEXT:  }

mask.func @blocks(%offsets: memref<?xi32>, %chosen: memref<?xi32>, %base: i32, %size: i32) -> !mask.region {
  %near = mask.lines at %base pitch %size at_most 3 {
  ^bb0(%q: i32, %line: i32):
    %one = arith.constant 1 : i32
    %next = arith.addi %q, %one : i32
    %behind = mask.search %offsets for %next : memref<?xi32>
    %first = mask.read %chosen[%behind] : memref<?xi32>
    %lo = arith.muli %line, %size : i32
    %keys = mask.keys
    mask.member %lo to %next of %first to %keys
  }
  %own = mask.lines at %base pitch %size {
  ^bb0(%q: i32, %line: i32):
    mask.member %line to %q of %base to %q
  } columns at_most 5 {
  ^bb0(%kv: i32, %line: i32):
    mask.member %kv to %line of %kv to %size
  }
  %visible = mask.union %near, %own
  mask.return %visible
}
// CHECK-LABEL: mask.func @blocks(%offsets: memref<?xi32>, %chosen: memref<?xi32>, %base: i32, %size: i32) -> !mask.region {
// CHECK-NEXT:    %near = mask.lines at %base pitch %size at_most 3 {
// CHECK-NEXT:    ^bb0(%q: i32, %line: i32):
// CHECK-NEXT:      %one = arith.constant 1 : i32
// CHECK-NEXT:      %next = arith.addi %q, %one : i32
// CHECK-NEXT:      %behind = mask.search %offsets for %next : memref<?xi32>
// CHECK-NEXT:      %first = mask.read %chosen[%behind] : memref<?xi32>
// CHECK-NEXT:      %lo = arith.muli %line, %size : i32
// CHECK-NEXT:      %keys = mask.keys
// CHECK-NEXT:      mask.member %lo to %next of %first to %keys
// CHECK-NEXT:    }
// CHECK-NEXT:    %own = mask.lines at %base pitch %size {
// CHECK-NEXT:    ^bb{{[0-9]+}}(%q_1: i32, %line_1: i32):
// CHECK-NEXT:      mask.member %line_1 to %q_1 of %base to %q_1
// CHECK-NEXT:    } columns at_most 5 {
// CHECK-NEXT:    ^bb{{[0-9]+}}(%kv: i32, %line_2: i32):
// CHECK-NEXT:      mask.member %kv to %line_2 of %kv to %size
// CHECK-NEXT:    }

// GENERIC: "mask.func"() <{sym_name = "leaves", function_type = (i32, i32) -> !mask.region}> ({
// GENERIC: %queries = "mask.queries"() : () -> i32
// GENERIC: %keys = "mask.keys"() : () -> i32
// GENERIC: %all = "mask.all"() : () -> !mask.region
// GENERIC: %none = "mask.none"() : () -> !mask.region
// GENERIC: %below = "mask.band"(%b) <{operandSegmentSizes = array<i32: 0, 1>}> : (i32) -> !mask.region
// GENERIC: %rows = "mask.rows"(%a, %queries) : (i32, i32) -> !mask.region
// GENERIC: %cols = "mask.cols"(%b, %keys) : (i32, i32) -> !mask.region
// GENERIC: %union = "mask.union"(%all, %none) : (!mask.region, !mask.region) -> !mask.region
// GENERIC: %intersect = "mask.intersect"(%below, %above) : (!mask.region, !mask.region) -> !mask.region
// GENERIC: %subtract = "mask.subtract"(%band, %rows) : (!mask.region, !mask.region) -> !mask.region
// GENERIC: %complement = "mask.complement"(%cols) : (!mask.region) -> !mask.region
// GENERIC: "mask.return"(%visible) : (!mask.region) -> ()
// GENERIC: %documents = "mask.segments"(%offsets) : (memref<?xi32>) -> !mask.segments
// GENERIC: %own = "mask.same"(%documents) : (!mask.segments) -> !mask.region
// GENERIC: %first = "mask.read"(%offsets, %zero) : (memref<?xi32>, i32) -> i32
// GENERIC: %image = "mask.grid"(%origin, %height, %width) : (i32, i32, i32) -> !mask.grid
// GENERIC: %disk = "mask.disk"(%image, %radius) : (!mask.grid, i32) -> !mask.region
// GENERIC: %box = "mask.box"(%image, %radius, %radius) : (!mask.grid, i32, i32) -> !mask.region
// GENERIC: %visible = "mask.where"() ({
// GENERIC: "mask.yield"(%2) : (i1) -> ()
// GENERIC: %near = "mask.lines"(%base, %size) <{at_most = 3 : i64}> ({
// GENERIC: %behind = "mask.search"(%offsets, %next) : (memref<?xi32>, i32) -> i32
// GENERIC: "mask.member"(%lo, %next, %first, %keys) : (i32, i32, i32, i32) -> ()

mask.func @parts(%offsets: memref<?xi32>, %a: i32, %b: i32) -> !mask.region {
  %zero = arith.constant 0 : i32
  %inner = mask.place rows %a to %b cols %zero to %b {
    %keys = mask.keys
    %early = mask.cols %zero to %keys
    mask.return %early
  }
  %outer = mask.place rows %zero to %a cols %a to %b {
    %nested = mask.place rows %a to %b cols %a to %b {
      %all = mask.all
      mask.return %all
    }
    mask.return %nested
  } {ascending = [0 : i64]}
  %visible = mask.union %inner, %outer
  mask.return %visible
}
// CHECK-LABEL: mask.func @parts(%offsets: memref<?xi32>, %a: i32, %b: i32) -> !mask.region {
// CHECK-NEXT:    %zero = arith.constant 0 : i32
// CHECK-NEXT:    %inner = mask.place rows %a to %b cols %zero to %b {
// CHECK-NEXT:      %keys = mask.keys
// CHECK-NEXT:      %early = mask.cols %zero to %keys
// CHECK-NEXT:      mask.return %early
// CHECK-NEXT:    }
// CHECK-NEXT:    %outer = mask.place rows %zero to %a cols %a to %b {
// CHECK-NEXT:      %nested = mask.place rows %a to %b cols %a to %b {
// CHECK-NEXT:        %all = mask.all
// CHECK-NEXT:        mask.return %all
// CHECK-NEXT:      }
// CHECK-NEXT:      mask.return %nested
// CHECK-NEXT:    } {ascending = [0 : i64]}
// CHECK-NEXT:    %visible = mask.union %inner, %outer
// CHECK-NEXT:    mask.return %visible
// CHECK-NEXT:  }
// GENERIC: "mask.place"
