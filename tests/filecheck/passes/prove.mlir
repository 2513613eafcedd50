// What was proved of a function stays in the IR; the mask itself stands in a module of its own.
// RUN: compilemask-opt %s -p prove | filecheck %s

builtin.module {
  mask.func @causal() -> !mask.region {
    %zero = arith.constant 0 : i32
    %past = mask.band to %zero
    mask.return %past
  }
}
interval.func @causal(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %hi = arith.addi %q, %one : i32
  %range = interval.range %zero to %hi
  %visible = interval.concat %range : (!interval.set<1>) -> !interval.set<1>
  interval.return %visible : !interval.set<1>
}
// CHECK:      mask.func @causal() -> !mask.region {
// CHECK:      interval.func @causal(%q: i32, %queries: i32, %keys: i32) -> !interval.set<1> attributes {proof = {proved = ["visible"]}} {
