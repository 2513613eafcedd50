// RUN: compilemask-opt %s -p legalize-copy-segments | filecheck %s

#rows = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
!tile = !ttg.memdesc<1x64x64xbf16, #rows, #ttg.shared_memory, mutable>
#plain = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
!bar = !ttg.memdesc<1xi64, #plain, #ttg.shared_memory, mutable>
!box = !tt.tensordesc<tensor<1x64x64xbf16, #rows>>

tt.func public @kernel(%box: !box, %x: i32, %bar: !bar, %tile: !tile, %yes: i1) {
  "ttng.async_tma_copy_global_to_local"(%box, %x, %x, %x, %bar, %tile, %yes) <{isVolatile = false}>
    : (!box, i32, i32, i32, !bar, !tile, i1) -> ()
  tt.return
}
// CHECK: (%box, %x, %x, %x, %bar, %tile, %yes) <{isVolatile = false, operandSegmentSizes = array<i32: 1, 3, 0, 1, 1, 1>}>
