// RUN: compilemask-opt %s -p legalize-descriptor-arguments --print-op-generic | filecheck %s

#rows = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
!box = !tt.tensordesc<tensor<64x64xbf16, #rows>>
!tile = !ttg.memdesc<64x64xbf16, #rows, #ttg.shared_memory, mutable>

tt.func public @kernel(%n: i32, %raw: !tt.ptr<i8, 0> {tt.nv_tma_desc = 1 : i32}, %tile: !tile) {
  %nothing = "tt.elementwise_inline_asm"(%raw) <{asm_string = "prefetch.tensormap [$1]; mov.b32 $0, 0;", constraints = "=r,l", packed_element = 1 : i32, pure = false}> : (!tt.ptr<i8, 0>) -> i32
  %box = ttng.reinterpret_tensor_descriptor %raw : !tt.ptr<i8, 0> to !box
  "ttng.async_tma_copy_local_to_global"(%box, %n, %n, %tile) : (!box, i32, i32, !tile) -> ()
  tt.return
}
// CHECK:      function_type = (i32, !tt.tensordesc<tensor<64x64xbf16,
// CHECK-SAME: arg_attrs = [{}, {tt.nv_tma_desc = 1 : i32}, {}]
// CHECK:      ^{{.*}}(%n: i32, %raw: !tt.tensordesc<tensor<64x64xbf16,
// CHECK-NEXT: "ttng.async_tma_copy_local_to_global"(%raw, %n, %n, %tile)
