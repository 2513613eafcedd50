// RUN: compilemask-opt %s -p interval-to-tiling | filecheck %s

// A mask that depends on kv - q only shares patterns; its bound q + 1 costs one partial tile per query tile.
interval.func @causal(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %end = arith.addi %q, %one : i32
  %r = interval.range %zero to %end
  %s = interval.concat %r : (!interval.set<1>) -> !interval.set<1>
  interval.return %s : !interval.set<1>
}
// CHECK:      tiling.func @causal_tiles(%tile: i32, %queries: i32, %keys: i32) -> !tiling.runs
// CHECK-SAME:   shape = #tiling.shape<128 x 128>, patterns = #tiling<patterns shared>
// CHECK-SAME:   reserve = #tiling.reserve<1 per query_tile, 0 per key_tile>
// CHECK-NEXT:   %rows = tiling.rows %tile of %queries
// CHECK-NEXT:   %envelope0 = tiling.envelope 0 of @causal over %rows given %queries, %keys : i32, i32
// CHECK-NEXT:   %runs = tiling.classify @causal over %rows within %envelope0 given %queries, %keys : i32, i32
// CHECK-NEXT:   tiling.return %runs

// The beginning of q's segment rises with q, somehow: one more per query tile, and one per key tile in all.
interval.func @document(%q: i32, %queries: i32, %keys: i32, %offsets: memref<?xi32>) -> !interval.set<1> {
  %one = arith.constant 1 : i32
  %end = arith.addi %q, %one : i32
  %b, %e = interval.segment_of %offsets at %q : memref<?xi32>
  %r = interval.range %b to %end
  %s = interval.concat %r : (!interval.set<1>) -> !interval.set<1>
  interval.return %s : !interval.set<1>
}
// CHECK:      tiling.func @document_tiles
// CHECK-SAME:   patterns = #tiling<patterns stored>
// CHECK-SAME:   reserve = #tiling.reserve<2 per query_tile, 1 per key_tile>

// A product of q with itself moves in no way that is known.
interval.func @square(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> {
  %zero = arith.constant 0 : i32
  %end = arith.muli %q, %q : i32
  %r = interval.range %zero to %end
  %s = interval.concat %r : (!interval.set<1>) -> !interval.set<1>
  interval.return %s : !interval.set<1>
}
// CHECK:      tiling.func @square_tiles
// CHECK-SAME:   reserve = #tiling.reserve<unknown>
