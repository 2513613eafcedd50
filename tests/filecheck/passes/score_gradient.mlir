// RUN: compilemask-opt %s -p score-gradient | filecheck %s

// A parameter of a head, in two bytes. Its gradient and that of the score share what they need of the function.
tiling.score @softcap(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32, %caps: memref<?xbf16>) -> f32 {
  %zero = arith.constant 0 : i32
  %entry = tiling.read %caps[%zero] : memref<?xbf16> -> bf16
  %cap = arith.extf %entry : bf16 to f32
  %0 = arith.divf %score, %cap : f32
  %1 = math.tanh %0 : f32
  %2 = arith.mulf %1, %cap : f32
  tiling.yield %2
}
// CHECK:      tiling.score @softcap(
// CHECK:      tiling.score_gradient @softcap_gradient(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32, %slope: f32, %caps: memref<?xbf16>) -> f32 {
// CHECK:        %cap = arith.extf %entry : bf16 to f32
// CHECK-NEXT:   %0 = arith.divf %score, %cap : f32
// CHECK-NEXT:   %1 = math.tanh %0 : f32
// CHECK-NEXT:   %2 = arith.mulf %slope, %cap : f32
// CHECK-NEXT:   %3 = arith.mulf %slope, %1 : f32
// CHECK-NEXT:   %4 = arith.mulf %1, %1 : f32
// CHECK-NEXT:   %5 = arith.constant 1.000000e+00 : f32
// CHECK-NEXT:   %6 = arith.subf %5, %4 : f32
// CHECK-NEXT:   %7 = arith.mulf %2, %6 : f32
// CHECK-NEXT:   %8 = arith.divf %7, %cap : f32
// CHECK:        tiling.accumulate {{%[0-9]+}} into %caps[%zero] : memref<?xbf16>
// CHECK-NEXT:   tiling.yield %8

// A table of biases: what a score adds to has its gradient.
tiling.score @biased(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32, %biases: memref<?xf32>, %ids: memref<?xi32>) -> f32 {
  %id = tiling.read %ids[%kv] : memref<?xi32> -> i32
  %bias = tiling.read %biases[%id] : memref<?xf32> -> f32
  %0 = arith.addf %score, %bias : f32
  tiling.yield %0
}
// CHECK:      tiling.score_gradient @biased_gradient(
// CHECK-NEXT:   %id = tiling.read %ids[%kv] : memref<?xi32> -> i32
// CHECK-NEXT:   tiling.accumulate %slope into %biases[%id] : memref<?xf32>
// CHECK-NEXT:   tiling.yield %slope

// A score that is used where it is larger than a number, and twice.
tiling.score @kinked(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32, %least: f32) -> f32 {
  %0 = arith.maximumf %score, %least : f32
  %1 = arith.mulf %0, %score : f32
  tiling.yield %1
}
// CHECK:      tiling.score_gradient @kinked_gradient(
// CHECK-NEXT:   %0 = arith.maximumf %score, %least : f32
// CHECK-NEXT:   %1 = arith.mulf %slope, %score : f32
// CHECK-NEXT:   %2 = arith.mulf %slope, %0 : f32
// CHECK-NEXT:   [[WINS:%[0-9]+]] = arith.cmpf ogt, %score, %least : f32
// CHECK-NEXT:   [[TIES:%[0-9]+]] = arith.cmpf oeq, %score, %least : f32
// CHECK:        arith.select [[TIES]]
// CHECK-NEXT:   [[TAKEN:%[0-9]+]] = arith.select [[WINS]], %1, {{%[0-9]+}} : f32
// CHECK-NEXT:   [[SUM:%[0-9]+]] = arith.addf %2, [[TAKEN]] : f32
// CHECK-NEXT:   tiling.yield [[SUM]]

// Weights that do not depend on scores.
tiling.score @constant(%score: f32, %b: i32, %h: i32, %q: i32, %kv: i32) -> f32 attributes {weights = #tiling<weights pointwise>} {
  %0 = arith.sitofp %kv : i32 to f32
  tiling.yield %0
}
// CHECK:      tiling.score_gradient @constant_gradient(
// CHECK-NEXT:   %0 = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:   tiling.yield %0
