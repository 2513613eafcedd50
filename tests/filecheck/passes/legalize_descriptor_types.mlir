// RUN: compilemask-opt %s -p legalize-descriptor-types --allow-unregistered-dialect | filecheck %s

#rows = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
!box = !tt.tensordesc<tensor<64x64xbf16, #rows>>

tt.func public @kernel(%given: !box, %raw: !tt.ptr<i8, 0> {tt.nv_tma_desc = 1 : i32}) {
  %made = ttng.reinterpret_tensor_descriptor %raw : !tt.ptr<i8, 0> to !box
  "test.region"(%made) ({
  ^bb0(%inner: !box):
    "test.end"() : () -> ()
  }) : (!box) -> ()
  tt.return
}
// CHECK-NOT:  tensor<
// CHECK:      %given: !tt.tensordesc<64x64xbf16, #ttg.nvmma_shared<{swizzlingByteWidth = 128,
// CHECK:      %raw : !tt.ptr<i8, 0> to !tt.tensordesc<64x64xbf16, #ttg.nvmma_shared
// CHECK:      ^{{.*}}(%inner: !tt.tensordesc<64x64xbf16, #ttg.nvmma_shared
// CHECK:      (!tt.tensordesc<64x64xbf16, #ttg.nvmma_shared
