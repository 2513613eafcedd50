// CLEAR (Liu et al. 2024): text tokens first, then an image in raster order. Text sees and is seen by everything; an image token sees
// the image tokens closer than `radius`.
mask.func @clear(%height: i32, %width: i32, %radius: i32, %text: i32) -> !mask.region {
  %zero = arith.constant 0 : i32
  %rows = mask.rows %zero to %text
  %columns = mask.cols %zero to %text
  %words = mask.union %rows, %columns
  %image = mask.grid at %text size %height x %width
  %near = mask.disk %image radius %radius
  %visible = mask.union %words, %near
  mask.return %visible
}
