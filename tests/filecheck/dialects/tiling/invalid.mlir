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

// tiling.func: a shape that is no power of two
tiling.func @bad(%tile: i32, %queries: i32, %keys: i32) -> !tiling.runs attributes {shape = #tiling.shape<96 x 128>, patterns = #tiling.patterns stored, reserve = #tiling.reserve<unknown>} {
  %rows = tiling.rows %tile of %queries
  %runs = tiling.classify @f over %rows given %queries, %keys : i32, i32
  tiling.return %runs
}
// CHECK: a tile of 96 x 128: rows must be a power of two >= 16 and keys 128

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
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee {
  } : tensor<?x?x?x?xf16>, tensor<?x?x?x?xf16>, tensor<?x?x?x?xf16> -> tensor<?x?x?x?xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK: tiling.attention takes [B, H, S, D] tensors with a static D, got tensor<?x?x?x?xf16>

// -----
// CHECK: {{^// -+$}}

// tiling.attention: integers
func.func @bad(%q: tensor<?x?x?x64xi8>, %k: tensor<?x?x?x64xi8>, %v: tensor<?x?x?x64xi8>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee {
  } : tensor<?x?x?x64xi8>, tensor<?x?x?x64xi8>, tensor<?x?x?x64xi8> -> tensor<?x?x?x64xi8>, tensor<?x?x?xf32>
  func.return
}
// CHECK: tiling.attention takes f16, bf16 or f32, got i8

// -----
// CHECK: {{^// -+$}}

// tiling.attention: keys of another type
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xbf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee {
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xbf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK: tiling.attention: k is tensor<?x?x?x64xbf16>, expected the rank, D and type of q, tensor<?x?x?x64xf16>

// -----
// CHECK: {{^// -+$}}

// tiling.attention: a log-sum-exp in half precision
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee {
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf16>
  func.return
}
// CHECK: tiling.attention gives an f32 lse of rank 3, got tensor<?x?x?xf16>

// -----
// CHECK: {{^// -+$}}

// tiling.attention: arguments of the score region
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee {
  ^bb0(%x: f32):
    tiling.yield %x
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK: the score region takes (score: f32, q: i32, kv: i32) and ends in tiling.yield

// -----
// CHECK: {{^// -+$}}

// tiling.yield: no score
func.func @bad(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %d: !tiling.descriptor, %s: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %d scale %s precision ieee {
  ^bb0(%x: f32, %i: i32, %j: i32):
    "tiling.yield"(%i) : (i32) -> ()
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK: operand 'score' at position 0 does not verify:
// CHECK-NEXT: Expected attribute f32 but got i32
