mask.func @shared_prompt(%offsets: memref<?xi32>) -> !mask.region {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %past = mask.band to %zero
  %answers = mask.segments %offsets : memref<?xi32>
  %own = mask.same %answers
  %end = mask.read %offsets[%one] : memref<?xi32>
  %prompt = mask.cols %zero to %end
  %seen = mask.union %prompt, %own
  %visible = mask.intersect %past, %seen
  mask.return %visible
}
