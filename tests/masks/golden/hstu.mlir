mask.func @hstu(%history: i32, %contexts: i32) -> !mask.region {
  %zero = arith.constant 0 : i32
  %past = mask.band to %zero
  %context = mask.rows %zero to %contexts
  %seen = mask.union %past, %context
  %facts = mask.cols %zero to %history
  %known = mask.intersect %seen, %facts
  %self = mask.band from %zero to %zero
  %visible = mask.union %known, %self
  mask.return %visible
}
