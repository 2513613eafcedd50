// Every operation and layout of the dialects ttg and ttng, in both syntaxes.
// RUN: compilemask-opt %s | compilemask-opt | filecheck %s
// RUN: compilemask-opt %s --print-op-generic | compilemask-opt | filecheck %s
// RUN: compilemask-opt %s --print-op-generic | filecheck %s --check-prefix=GENERIC

#line = #ttg.blocked<{sizePerThread = [2], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#grid = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#mma = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>
#left = #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 2}>
#row = #ttg.slice<{dim = 1, parent = #mma}>
#bits = #ttg.linear<{register = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]], block = []}>
#rows = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#rows4 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 4}>
#columns = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = true, elementBitWidth = 16}>
#plain = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
!tile = !ttg.memdesc<64x64xbf16, #rows, #smem, mutable>
!turned = !ttg.memdesc<64x64xbf16, #columns, #smem, mutable>
!bar = !ttg.memdesc<1xi64, #plain, #smem, mutable>
!box = !tt.tensordesc<tensor<64x64xbf16, #rows>>
!acc = tensor<64x64xf32, #mma>

builtin.module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @every(%raw: !tt.ptr<i8, 0> {tt.nv_tma_desc = 1 : i32}, %n: i32, %x: tensor<64x64xbf16, #mma>, %zero: !acc) {
  %yes = arith.constant true
  %desc = ttng.reinterpret_tensor_descriptor %raw : !tt.ptr<i8, 0> to !box
  %tiles = "ttg.local_alloc"() : () -> !ttg.memdesc<2x1x1x64x64xbf16, #rows4, #smem, mutable>
  %filled = "ttg.local_alloc"(%x) : (tensor<64x64xbf16, #mma>) -> !ttg.memdesc<64x64xbf16, #rows, #smem>
  %bars = "ttg.local_alloc"() : () -> !ttg.memdesc<2x1xi64, #plain, #smem, mutable>
  %bar = ttg.memdesc_index %bars[%n] : !ttg.memdesc<2x1xi64, #plain, #smem, mutable> -> !bar
  %one = ttg.memdesc_index %tiles[%n] : !ttg.memdesc<2x1x1x64x64xbf16, #rows4, #smem, mutable> -> !ttg.memdesc<1x1x64x64xbf16, #rows4, #smem, mutable>
  %tile = ttg.memdesc_reshape %one : !ttg.memdesc<1x1x64x64xbf16, #rows4, #smem, mutable> -> !tile
  %turned = ttg.memdesc_trans %tile {order = array<i32: 1, 0>} : !tile -> !turned
  %part = "ttg.memdesc_subslice"(%tile) <{offsets = array<i32: 32, 0>}> : (!tile) -> !ttg.memdesc<32x64xbf16, #rows, #smem, mutable, 64x64>
  %turned_part = ttg.memdesc_trans %part {order = array<i32: 1, 0>} : !ttg.memdesc<32x64xbf16, #rows, #smem, mutable, 64x64> -> !ttg.memdesc<64x32xbf16, #columns, #smem, mutable, 64x64>
  %words = ttg.memdesc_reinterpret %tile : !tile -> !ttg.memdesc<2048xi32, #plain, #smem, mutable>
  ttng.init_barrier %bar, 2 : !bar
  ttng.fence_async_shared {bCluster = false}
  ttng.barrier_expect %bar, 8192, %yes : !bar
  "ttng.async_tma_copy_global_to_local"(%desc, %n, %n, %bar, %tile, %yes) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false}> : (!box, i32, i32, !bar, !tile, i1) -> ()
  "ttng.async_tma_copy_global_to_local"(%desc, %n, %n, %bar, %tile, %yes) <{isVolatile = false, operandSegmentSizes = array<i32: 1, 2, 0, 1, 1, 1>}> : (!box, i32, i32, !bar, !tile, i1) -> ()
  ttng.wait_barrier %bar, %n : !bar
  ttng.wait_barrier %bar, %n, %yes deps %tile, %turned : !bar, !tile, !turned
  ttng.arrive_barrier %bar, 1 : !bar
  ttng.arrive_barrier %bar, 1, %yes : !bar
  %loaded = ttg.local_load %tile : !tile -> tensor<64x64xbf16, #grid>
  %left = ttg.convert_layout %loaded : tensor<64x64xbf16, #grid> -> tensor<64x64xbf16, #left>
  %p0 = "ttng.warp_group_dot"(%tile, %turned, %zero, %yes) <{inputPrecision = 0 : i32, isAsync = true, maxNumImpreciseAcc = 0 : i32}> : (!tile, !turned, !acc, i1) -> !acc
  %p1 = "ttng.warp_group_dot"(%left, %turned, %p0) <{inputPrecision = 0 : i32, isAsync = true, maxNumImpreciseAcc = 0 : i32}> : (tensor<64x64xbf16, #left>, !turned, !acc) -> !acc
  %p2, %t = "ttng.warp_group_dot_wait"(%p1, %tile) <{pendings = 0 : i32}> : (!acc, !tile) -> (!acc, !tile)
  %low = "tt.elementwise_inline_asm"(%p2) <{asm_string = "cvt.rn.bf16x2.f32 $0, $2, $1;", constraints = "=r,r,r", packed_element = 2 : i32, pure = false}> : (!acc) -> tensor<64x64xbf16, #mma>
  %spread = ttg.convert_layout %low : tensor<64x64xbf16, #mma> -> tensor<64x64xbf16, #bits>
  ttg.local_store %low, %tile : tensor<64x64xbf16, #mma> -> !tile
  "ttng.async_tma_copy_local_to_global"(%desc, %n, %n, %tile) : (!box, i32, i32, !tile) -> ()
  "ttng.async_tma_reduce"(%desc, %n, %n, %tile) <{kind = 1 : i32}> : (!box, i32, i32, !tile) -> ()
  ttng.async_tma_store_wait {pendings = 0 : i32}
  %sum = "tt.reduce"(%p2) <{axis = 1 : i32}> ({
  ^bb0(%a: f32, %b: f32):
    %c = arith.addf %a, %b : f32
    tt.reduce.return %c : f32
  }) : (!acc) -> tensor<64xf32, #row>
  %r = "ttg.warp_specialize"(%bar, %n) <{partitionNumWarps = array<i32: 4, 1>, requestedRegisters = array<i32: 240, 24>}> ({
    ttg.warp_yield %n : i32
  }, {
    "ttg.warp_specialize.partitions"() ({
    ^bb0(%b0: !bar, %n0: i32):
      ttg.warp_return
    }, {
    ^bb0(%b1: !bar, %n1: i32):
      ttg.warp_return
    }) : () -> ()
  }) : (!bar, i32) -> i32
  ttng.inval_barrier %bar : !bar
  ttg.local_dealloc %bars : !ttg.memdesc<2x1xi64, #plain, #smem, mutable>
  tt.return
}
}

// CHECK:      ttng.reinterpret_tensor_descriptor %raw : !tt.ptr<i8, 0> to !tt.tensordesc<tensor<64x64xbf16, #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>>>
// CHECK:      ttg.memdesc_index %bars[%n] : !ttg.memdesc<2x1xi64, #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>, #ttg.shared_memory, mutable> ->
// CHECK:      ttg.memdesc_trans %tile {order = array<i32: 1, 0>}
// CHECK:      #ttg.shared_memory, mutable, 64x64>
// CHECK-NEXT: ttg.memdesc_trans %part {order = array<i32: 1, 0>} {{.*}} -> !ttg.memdesc<64x32xbf16, {{.*}}, mutable, 64x64>
// CHECK:      ttng.init_barrier %bar, 2 : !ttg.memdesc
// CHECK-NEXT: ttng.fence_async_shared {bCluster = false}
// CHECK-NEXT: ttng.barrier_expect %bar, 8192, %yes : !ttg.memdesc
// CHECK:      ttng.wait_barrier %bar, %n : !ttg.memdesc
// CHECK-NEXT: ttng.wait_barrier %bar, %n, %yes deps %tile, %turned : !ttg.memdesc
// CHECK-NEXT: ttng.arrive_barrier %bar, 1 : !ttg.memdesc
// CHECK:      ttg.convert_layout %loaded : {{.*}} -> tensor<64x64xbf16, #ttg.dot_op<{opIdx = 0, parent = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>, kWidth = 2}>>
// CHECK:      ttng.async_tma_store_wait {pendings = 0 : i32}
// CHECK:      ttg.warp_return

// GENERIC-NOT: #mma
// GENERIC: "ttng.wait_barrier"({{.*}}) <{operandSegmentSizes = array<i32: 1, 1, 1, 2>}>
// GENERIC: "ttg.warp_specialize"({{.*}}) <{partitionNumWarps = array<i32: 4, 1>, requestedRegisters = array<i32: 240, 24>}> ({
