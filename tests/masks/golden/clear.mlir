mask.func @clear(%height: i32, %width: i32, %text: i32) -> !mask.region {
  %zero = arith.constant 0 : i32
  %c16 = arith.constant 16 : i32
  %rows = mask.rows %zero to %text
  %columns = mask.cols %zero to %text
  %words = mask.union %rows, %columns
  %image = mask.grid at %text size %height x %width
  %near = mask.disk %image radius %c16
  %visible = mask.union %words, %near
  mask.return %visible
}
