// Every operation of the tiling dialect, printed and read back in custom and in generic form.
// RUN: compilemask-opt %s | filecheck %s
// RUN: compilemask-opt %s | compilemask-opt | filecheck %s
// RUN: compilemask-opt %s --print-op-generic | filecheck %s --check-prefix=GENERIC
// RUN: compilemask-opt %s --print-op-generic | compilemask-opt | filecheck %s

tiling.func @causal(%tile: i32, %queries: i32, %keys: i32) -> !tiling.runs attributes {shape = #tiling.shape<128 x 128>, patterns = #tiling.patterns shared, reserve = #tiling.reserve<2 per query_tile, 0 per key_tile>} {
  %rows = tiling.rows %tile of %queries
  %past = tiling.envelope 0 of @causal over %rows given %queries, %keys : i32, i32
  %runs = tiling.classify @causal over %rows within %past given %queries, %keys : i32, i32
  tiling.return %runs
}
// CHECK-LABEL: tiling.func @causal(%tile: i32, %queries: i32, %keys: i32) -> !tiling.runs attributes {shape = #tiling.shape<128 x 128>, patterns = #tiling<patterns shared>, reserve = #tiling.reserve<2 per query_tile, 0 per key_tile>} {
// CHECK-NEXT:    %rows = tiling.rows %tile of %queries
// CHECK-NEXT:    %past = tiling.envelope 0 of @causal over %rows given %queries, %keys : i32, i32
// CHECK-NEXT:    %runs = tiling.classify @causal over %rows within %past given %queries, %keys : i32, i32
// CHECK-NEXT:    tiling.return %runs
// CHECK-NEXT:  }

tiling.func @anything(%tile: i32, %queries: i32, %keys: i32, %table: memref<?xi32>) -> !tiling.runs attributes {shape = #tiling.shape<64 x 128>, patterns = #tiling.patterns stored, reserve = #tiling.reserve<unknown>} {
  %rows = tiling.rows %tile of %queries
  %runs = tiling.classify @anything over %rows given %queries, %keys, %table : i32, i32, memref<?xi32>
  tiling.return %runs
}
// CHECK-LABEL: tiling.func @anything(%tile: i32, %queries: i32, %keys: i32, %table: memref<?xi32>) -> !tiling.runs attributes {shape = #tiling.shape<64 x 128>, patterns = #tiling<patterns stored>, reserve = #tiling.reserve<unknown>} {
// CHECK-NEXT:    %rows = tiling.rows %tile of %queries
// CHECK-NEXT:    %runs = tiling.classify @anything over %rows given %queries, %keys, %table : i32, i32, memref<?xi32>
// CHECK-NEXT:    tiling.return %runs
// CHECK-NEXT:  }

tiling.func @image(%tile: i32, %queries: i32, %keys: i32, %width: i32) -> !tiling.runs attributes {shape = #tiling.shape<128 x 128>, patterns = #tiling.patterns stored, reserve = #tiling.reserve<2 per query_tile, 1 per key_tile, 31 lines of argument 3>} {
  %rows = tiling.rows %tile of %queries
  %runs = tiling.classify @image over %rows given %queries, %keys, %width : i32, i32, i32
  tiling.return %runs
}
// CHECK-LABEL: tiling.func @image(%tile: i32, %queries: i32, %keys: i32, %width: i32) -> !tiling.runs attributes {shape = #tiling.shape<128 x 128>, patterns = #tiling<patterns stored>, reserve = #tiling.reserve<2 per query_tile, 1 per key_tile, 31 lines of argument 3>} {
// CHECK-NEXT:    %rows = tiling.rows %tile of %queries
// CHECK-NEXT:    %runs = tiling.classify @image over %rows given %queries, %keys, %width : i32, i32, i32
// CHECK-NEXT:    tiling.return %runs
// CHECK-NEXT:  }

func.func @plain(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %descriptor: !tiling.descriptor, %scale: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %descriptor scale %scale precision ieee weights softmax {
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  func.return
}
// CHECK-LABEL: func.func @plain(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %descriptor: !tiling.descriptor, %scale: f32) {
// CHECK-NEXT:    %out, %lse = tiling.attention %q, %k, %v following %descriptor scale %scale precision ieee weights softmax {
// CHECK-NEXT:    } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
// CHECK-NEXT:    func.return
// CHECK-NEXT:  }

func.func @scored(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>, %descriptor: !tiling.descriptor, %scale: f32) {
  %out, %lse = tiling.attention %q, %k, %v following %descriptor scale %scale precision tf32x3 weights softmax {
  ^bb0(%score: f32, %b: i32, %h: i32, %row: i32, %kv: i32):
    %0 = arith.addf %score, %score : f32
    tiling.yield %0
  } : tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32> -> tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
  func.return
}
// CHECK-LABEL: func.func @scored(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>, %descriptor: !tiling.descriptor, %scale: f32) {
// CHECK-NEXT:    %out, %lse = tiling.attention %q, %k, %v following %descriptor scale %scale precision tf32x3 weights softmax {
// CHECK-NEXT:    ^bb0(%score: f32, %b: i32, %h: i32, %row: i32, %kv: i32):
// CHECK-NEXT:      %0 = arith.addf %score, %score : f32
// CHECK-NEXT:      tiling.yield %0
// CHECK-NEXT:    } : tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32> -> tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
// CHECK-NEXT:    func.return
// CHECK-NEXT:  }

// GENERIC: "tiling.func"() <{sym_name = "causal", function_type = (i32, i32, i32) -> !tiling.runs}> ({
// GENERIC: %rows = "tiling.rows"(%tile, %queries) : (i32, i32) -> !tiling.rows
// GENERIC: %past = "tiling.envelope"(%rows, %queries, %keys) <{part = 0 : i32, callee = @causal}> : (!tiling.rows, i32, i32) -> !tiling.envelope
// GENERIC: %runs = "tiling.classify"(%rows, %past, %queries, %keys) <{callee = @causal, operandSegmentSizes = array<i32: 1, 1, 2>}> : (!tiling.rows, !tiling.envelope, i32, i32) -> !tiling.runs
// GENERIC: "tiling.return"(%runs) : (!tiling.runs) -> ()
// GENERIC: %out, %lse = "tiling.attention"(%q, %k, %v, %descriptor, %scale) <{precision = #tiling<precision ieee>, weights = #tiling<weights softmax>, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>}> ({
// GENERIC: "tiling.yield"(%0) : (f32) -> ()

// A sink, captured values, and weights that are no softmax.
func.func @sink(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %descriptor: !tiling.descriptor, %scale: f32, %logits: memref<?xbf16>, %cap: f32, %table: memref<?xi32>) {
  %out, %lse = tiling.attention %q, %k, %v following %descriptor scale %scale precision ieee weights softmax sink %logits : memref<?xbf16> given %cap, %table : f32, memref<?xi32> {
  ^bb0(%score: f32, %b: i32, %h: i32, %row: i32, %kv: i32, %c: f32, %ids: memref<?xi32>):
    %id = tiling.read %ids[%kv] : memref<?xi32> -> i32
    %0 = arith.sitofp %id : i32 to f32
    %1 = arith.mulf %0, %c : f32
    tiling.yield %1
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
  %weighed = tiling.attention %q, %k, %v following %descriptor scale %scale precision ieee weights pointwise {
  ^bb0(%score: f32, %b: i32, %h: i32, %row: i32, %kv: i32):
    tiling.yield %score
  } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>
  func.return
}
// CHECK-LABEL: func.func @sink(
// CHECK-NEXT:    %out, %lse = tiling.attention %q, %k, %v following %descriptor scale %scale precision ieee weights softmax sink %logits : memref<?xbf16> given %cap, %table : f32, memref<?xi32> {
// CHECK-NEXT:    ^bb0(%score: f32, %b: i32, %h: i32, %row: i32, %kv: i32, %c: f32, %ids: memref<?xi32>):
// CHECK-NEXT:      %id = tiling.read %ids[%kv] : memref<?xi32> -> i32
// CHECK:           tiling.yield %1
// CHECK-NEXT:    } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
// CHECK-NEXT:    %weighed = tiling.attention %q, %k, %v following %descriptor scale %scale precision ieee weights pointwise {
// CHECK-NEXT:    ^bb0(%score_1: f32, %b_1: i32, %h_1: i32, %row_1: i32, %kv_1: i32):
// CHECK-NEXT:      tiling.yield %score_1
// CHECK-NEXT:    } : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> -> tensor<?x?x?x64xf16>
// GENERIC: %id = "tiling.read"(%ids, %kv) : (memref<?xi32>, i32) -> i32

tiling.score @silu(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32, %length: f32) -> f32 attributes {weights = #tiling<weights pointwise>} {
  %0 = arith.divf %score, %length : f32
  tiling.yield %0
}
tiling.score @sinking(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32) -> f32 attributes {sink = bf16} {
  tiling.yield %score
}
// CHECK:      tiling.score @silu(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32, %length: f32) -> f32 attributes {weights = #tiling<weights pointwise>} {
// CHECK-NEXT:   %0 = arith.divf %score, %length : f32
// CHECK-NEXT:   tiling.yield %0
// CHECK-NEXT: }
// CHECK-NEXT: tiling.score @sinking(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32) -> f32 attributes {sink = bf16} {
// CHECK-NEXT:   tiling.yield %score
// CHECK-NEXT: }
// GENERIC: "tiling.score"() <{sym_name = "silu", function_type = (f32, i32, i32, i32, i32, f32) -> f32}> ({

tiling.score_gradient @biased(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32, %slope: f32, %biases: memref<?xbf16>) -> f32 {
  tiling.accumulate %slope into %biases[%kv] : memref<?xbf16>
  tiling.yield %slope
}
// CHECK:      tiling.score_gradient @biased(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32, %slope: f32, %biases: memref<?xbf16>) -> f32 {
// CHECK-NEXT:   tiling.accumulate %slope into %biases[%kv] : memref<?xbf16>
// CHECK-NEXT:   tiling.yield %slope
// CHECK-NEXT: }
// GENERIC: "tiling.score_gradient"() <{sym_name = "biased", function_type = (f32, i32, i32, i32, i32, f32, memref<?xbf16>) -> f32}> ({
// GENERIC: "tiling.accumulate"(%slope, %biases, %kv) : (f32, memref<?xbf16>, i32) -> ()
