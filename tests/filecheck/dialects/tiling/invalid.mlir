// What the verifiers of the tiling dialect reject: each piece names the operation and what is wrong with it.
// RUN: compilemask-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// tiling.func: no tile
tiling.func @bad(%queries: i32, %keys: i32) -> !tiling.runs attributes {shape = #tiling.shape<128 x 128>, patterns = #tiling.patterns stored, reserve = #tiling.reserve<unknown>} {
  %rows = tiling.rows %queries of %queries
  %runs = tiling.classify @f over %rows given %queries, %keys : i32, i32
  tiling.return %runs
}
// CHECK: tiling.func @bad must start with (tile: i32, queries: i32, keys: i32)

// -----
// CHECK: {{^// -+$}}

// tiling.func: no reserve
tiling.func @bad(%tile: i32, %queries: i32, %keys: i32) -> !tiling.runs attributes {shape = #tiling.shape<128 x 128>, patterns = #tiling.patterns stored} {
  %rows = tiling.rows %tile of %queries
  %runs = tiling.classify @f over %rows given %queries, %keys : i32, i32
  tiling.return %runs
}
// CHECK: tiling.func @bad needs the attribute reserve = #tiling.reserve

// -----
// CHECK: {{^// -+$}}

// tiling.func: a shape whose rows do not fill warps
tiling.func @bad(%tile: i32, %queries: i32, %keys: i32) -> !tiling.runs attributes {shape = #tiling.shape<100 x 128>, patterns = #tiling.patterns stored, reserve = #tiling.reserve<unknown>} {
  %rows = tiling.rows %tile of %queries
  %runs = tiling.classify @f over %rows given %queries, %keys : i32, i32
  tiling.return %runs
}
// CHECK: a tile of 100 x 128: rows must be a multiple of 16 and keys 128

// -----
// CHECK: {{^// -+$}}

// tiling.func: a reserve of no lines with their pitch, which its text would lose
tiling.func @bad(%tile: i32, %queries: i32, %keys: i32) -> !tiling.runs attributes {shape = #tiling.shape<128 x 128>, patterns = #tiling.patterns stored, reserve = #tiling.reserve<1 per query_tile, 0 per key_tile, 0 lines of argument 4>} {
  %rows = tiling.rows %tile of %queries
  %runs = tiling.classify @f over %rows given %queries, %keys : i32, i32
  tiling.return %runs
}
// CHECK: a reserve of 0 lines has no pitch, got argument 4

// -----
// CHECK: {{^// -+$}}

// tiling.return: not runs
"tiling.func"() <{sym_name = "bad", function_type = (i32, i32, i32) -> !tiling.runs}> ({
^bb0(%tile: i32, %queries: i32, %keys: i32):
  "tiling.return"(%tile) : (i32) -> ()
}) {shape = #tiling.shape<128 x 128>, patterns = #tiling.patterns stored, reserve = #tiling.reserve<unknown>} : () -> ()
// CHECK: operand 'value' at position 0 does not verify:
// CHECK-NEXT: i32 should be of base attribute tiling.runs

// -----
// CHECK: {{^// -+$}}

// tiling.rows: outside a function
func.func @bad(%i: i32) {
  %r = tiling.rows %i of %i
  func.return
}
// CHECK: 'tiling.rows' expects parent op 'tiling.func'

// -----
// CHECK: {{^// -+$}}

// tiling.envelope: a part before the first
tiling.func @bad(%tile: i32, %queries: i32, %keys: i32) -> !tiling.runs attributes {shape = #tiling.shape<128 x 128>, patterns = #tiling<patterns stored>, reserve = #tiling.reserve<unknown>} {
  %rows = tiling.rows %tile of %queries
  %e = "tiling.envelope"(%rows, %queries, %keys) <{callee = @f, part = -1 : i32}> : (!tiling.rows, i32, i32) -> !tiling.envelope
  %runs = tiling.classify @f over %rows within given %queries, %keys : i32, i32
  tiling.return %runs
}
// CHECK: tiling.envelope: there is no part -1; parts count from 0

// -----
// CHECK: {{^// -+$}}

// tiling.envelope: no rows
tiling.func @bad(%tile: i32, %queries: i32, %keys: i32) -> !tiling.runs attributes {shape = #tiling.shape<128 x 128>, patterns = #tiling.patterns stored, reserve = #tiling.reserve<unknown>} {
  %e = "tiling.envelope"(%tile) <{callee = @f, part = 0 : i32}> : (i32) -> !tiling.envelope
  %rows = tiling.rows %tile of %queries
  %runs = tiling.classify @f over %rows given %queries, %keys : i32, i32
  tiling.return %runs
}
// CHECK: operand 'rows' at position 0 does not verify:
// CHECK-NEXT: Expected attribute !tiling.rows but got i32

// -----
// CHECK: {{^// -+$}}

// tiling.classify: no callee
tiling.func @bad(%tile: i32, %queries: i32, %keys: i32) -> !tiling.runs attributes {shape = #tiling.shape<128 x 128>, patterns = #tiling.patterns stored, reserve = #tiling.reserve<unknown>} {
  %rows = tiling.rows %tile of %queries
  %runs = "tiling.classify"(%rows) <{operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tiling.rows) -> !tiling.runs
  tiling.return %runs
}
// CHECK: property 'callee' expected in operation 'tiling.classify'

// -----
// CHECK: {{^// -+$}}

// tiling.attention: a dynamic head size
func.func @bad(%q: tensor<?x?x?x?xf16>, %k: tensor<?x?x?x?xf16>, %v: tensor<?x?x?x?xf16>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee weights softmax {
  } : tensor<?x?x?x?xf16>, tensor<?x?x?x?xf16>, tensor<?x?x?x?xf16> -> tensor<?x?x?x?xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK: tiling.attention takes [B, H, S, D] tensors with a static D, got tensor<?x?x?x?xf16>

// -----
// CHECK: {{^// -+$}}

// tiling.attention: integers
func.func @bad(%q: tensor<?x?x?x64xi8>, %k: tensor<?x?x?x64xi8>, %v: tensor<?x?x?x64xi8>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee weights softmax {
  } : tensor<?x?x?x64xi8>, tensor<?x?x?x64xi8>, tensor<?x?x?x64xi8> -> tensor<?x?x?x64xi8>, tensor<?x?x?xf32>
  func.return
}
// CHECK: tiling.attention takes f16, bf16 or f32, got i8

// -----
// CHECK: {{^// -+$}}

// tiling.attention: keys of another type
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xbf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee weights softmax {
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xbf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK: tiling.attention: k is tensor<?x?x?x64xbf16>, expected the rank, D and type of q, tensor<?x?x?x64xf16>

// -----
// CHECK: {{^// -+$}}

// tiling.attention: a log-sum-exp in half precision
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee weights softmax {
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf16>
  func.return
}
// CHECK: tiling.attention gives an f32 lse of rank 3, got tensor<?x?x?xf16>

// -----
// CHECK: {{^// -+$}}

// tiling.attention: arguments of the score region
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee weights softmax {
  ^bb0(%x: f32):
    tiling.yield %x
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK: tiling.attention: a score region takes (score: f32, b: i32, h: i32, q: i32, kv: i32, captured values) and ends in tiling.yield

// -----
// CHECK: {{^// -+$}}

// tiling.yield: no score
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee weights softmax {
  ^bb0(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "tiling.yield"(%i) : (i32) -> ()
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK: operand 'score' at position 0 does not verify:
// CHECK-NEXT: Expected attribute f32 but got i32

// -----
// CHECK: {{^// -+$}}

// tiling.yield: outside of a score region
func.func @bad(%x: f32) {
  "tiling.yield"(%x) : (f32) -> ()
}
// CHECK: tiling.yield ends a score region, which is one of tiling.attention, tiling.score, tiling.score_gradient

// -----
// CHECK: {{^// -+$}}

// tiling.score: what it captures
tiling.score @bad(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32, %t: memref<?x4xf32>) -> f32 {
  tiling.yield %x
}
// CHECK: tiling.score @bad: argument 5 of the score region is memref<?x4xf32>; it captures f32, and memref<?xT> of f32, f16, bf16 or i32

// -----
// CHECK: {{^// -+$}}

// tiling.score: a sink needs a softmax
tiling.score @bad(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32) -> f32 attributes {weights = #tiling<weights pointwise>, sink = f32} {
  tiling.yield %x
}
// CHECK: tiling.score @bad: pointwise weights have no sink; it is a key of a softmax

// -----
// CHECK: {{^// -+$}}

// tiling.score: an operation that is not for single numbers
tiling.score @bad(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32) -> f32 {
  %p = "tt.get_program_id"() <{axis = 0 : i32}> : () -> i32
  tiling.yield %x
}
// CHECK: tiling.score @bad: tt.get_program_id in a score region; arith and math operations on numbers, and tiling.read, are known

// -----
// CHECK: {{^// -+$}}

// tiling.score: its type
tiling.score @bad(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32) -> i32 {
  tiling.yield %x
}
// CHECK: tiling.score @bad must return one f32

// -----
// CHECK: {{^// -+$}}

// tiling.score: weights of another kind
tiling.score @bad(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32) -> f32 attributes {weights = 3 : i32} {
  tiling.yield %x
}
// CHECK: tiling.score @bad: weights must be #tiling<weights softmax> or #tiling<weights pointwise>

// -----
// CHECK: {{^// -+$}}

// tiling.read: the type of an entry
tiling.score @bad(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32, %t: memref<?xbf16>) -> f32 {
  %y = tiling.read %t[%j] : memref<?xbf16> -> f32
  tiling.yield %y
}
// CHECK: tiling.read of memref<?xbf16> gives bf16, not f32

// -----
// CHECK: {{^// -+$}}

// tiling.attention: a sink of integers
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32, %t: memref<?xi32>) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee weights softmax sink %t : memref<?xi32> {
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK: tiling.attention: a sink is a memref<?xT> of f32, f16 or bf16, got memref<?xi32>

// -----
// CHECK: {{^// -+$}}

// tiling.attention: pointwise weights without a region
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32) {
  %out = tiling.attention %q, %k, %v following %d scale %s precision ieee weights pointwise {
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>
  func.return
}
// CHECK: tiling.attention: pointwise weights come from a region; no lse and no sink

// -----
// CHECK: {{^// -+$}}

// tiling.attention: captured values that the region does not take
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee weights softmax given %s : f32 {
  ^bb0(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    tiling.yield %x
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK: tiling.attention captures (f32), and its score region takes ()

// -----
// CHECK: {{^// -+$}}

// tiling.attention: captured values without a region
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee weights softmax given %s : f32 {
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK: tiling.attention captures values, and has no score region that uses them

// -----
// CHECK: {{^// -+$}}

// tiling.score: a sink of integers
tiling.score @bad(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32) -> f32 attributes {sink = i32} {
  tiling.yield %x
}
// CHECK: tiling.score @bad: sink is the type of its logits, f32, f16 or bf16, not i32

// -----
// CHECK: {{^// -+$}}

// tiling.score_gradient: no slope
tiling.score_gradient @bad(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32) -> f32 {
  tiling.yield %x
}
// CHECK: tiling.score_gradient @bad takes (score: f32, b: i32, h: i32, q: i32, kv: i32, slope: f32, ...)

// -----
// CHECK: {{^// -+$}}

// tiling.score_gradient: its type
tiling.score_gradient @bad(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32, %s: f32) -> (f32, f32) {
  tiling.yield %x
}
// CHECK: tiling.score_gradient @bad must return one f32

// -----
// CHECK: {{^// -+$}}

// tiling.accumulate: integers have no gradient
tiling.score_gradient @bad(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32, %s: f32, %t: memref<?xi32>) -> f32 {
  tiling.accumulate %s into %t[%i] : memref<?xi32>
  tiling.yield %s
}
// CHECK: tiling.accumulate takes memref<?xT> of f32, f16 or bf16, got memref<?xi32>

// -----
// CHECK: {{^// -+$}}

// tiling.accumulate: in a score that is no gradient
tiling.score @bad(%x: f32, %b: i32, %h: i32, %i: i32, %j: i32, %t: memref<?xf32>) -> f32 {
  tiling.accumulate %x into %t[%i] : memref<?xf32>
  tiling.yield %x
}
// CHECK: tiling.accumulate stands in tiling.score_gradient
