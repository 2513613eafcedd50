// RUN: compilemask-opt %s -p "interval-to-tiling{rows=192}" | filecheck %s

// Tiles of 192 queries start in the middle of every other tile of keys: the bound q + 1 cuts two of them, and q - 7
// three; on which diagonals is known all the same, so that patterns are shared.
interval.func @window(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> {
  %one = arith.constant 1 : i32
  %seven = arith.constant 7 : i32
  %begin = arith.subi %q, %seven : i32
  %end = arith.addi %q, %one : i32
  %r = interval.range %begin to %end
  %s = interval.concat %r : (!interval.set<1>) -> !interval.set<1>
  interval.return %s : !interval.set<1>
}
// CHECK:      tiling.func @window_tiles(%tile: i32, %queries: i32, %keys: i32) -> !tiling.runs
// CHECK-SAME:   shape = #tiling.shape<192 x 128>, patterns = #tiling<patterns shared>
// CHECK-SAME:   reserve = #tiling.reserve<5 per query_tile, 0 per key_tile>
