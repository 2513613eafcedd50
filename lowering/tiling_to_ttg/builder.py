"""Write Hopper kernels in Python, one operation of Triton-GPU IR per call; extends the builder of the `tt` dialect.

    from compilemask.lowering.tiling_to_tt.builder import bf16, i32
    from compilemask.lowering.tiling_to_ttg.builder import Arg, GpuKernelBuilder, tensor_map

    kb = GpuKernelBuilder("product", [tensor_map("a"), tensor_map("b"), tensor_map("d"), Arg("n", i32)], num_warps=4)
    a, b, d = (kb.descriptor(name, (64, 64), bf16) for name in "abd")      # boxes of 64 x 64
    tiles = kb.alloc((64, 64), bf16, count=2)                              # two buffers, as TMA and wgmma want them
    full = kb.barriers(1)
    kb.fence_async_shared()                                                # TMA must see barriers that are initialized
    with kb.warp_specialize() as roles:
        with roles.partition(num_warps=1, registers=24):                   # the TMA producer
            full[0].expect(a.bytes + b.bytes)
            a.load([0, 0], tiles[0], full[0])
            b.load([0, 0], tiles[1], full[0])
        with roles.default():                                              # the consumer, on the kernel's own warps
            full[0].wait(phase=0)
            product = kb.warp_group_dot(tiles[0], tiles[1].transpose())    # in flight
            total = kb.warp_group_dot_wait(product)                        # tensor<64x64xf32, #mma>
            tiles[0].store(kb.cast(total, bf16))
            kb.fence_async_shared()                                        # before TMA reads what stores wrote
            d.store([0, 0], tiles[0])
            kb.store_wait()
    module = kb.finish()                                                   # verified for its target, with attributes

Values are those of the `tt` builder; all its methods and operators work on tensors with layouts:
- `kb.arange(0, 64, layout)`, `kb.full(shape, value, dtype, layout)`: a layout must be given. Literals and scalars take
  the layout of the operand beside them. Operands in different layouts raise: `kb.convert_layout(x, layout)`.
- `x[:, None]` needs a tensor in a slice, `slice_of(parent, 1)`, and gives the parent's layout; `kb.reduce(x, 1, "max")`
  gives the slice. `kb.reshape` infers the layout from a linear one or a wgmma accumulator's.
- What a partition uses from outside is captured as it is met, in loops and branches too; tensors cannot be.
- Buffers, barriers, descriptors: builder_memory.py. Triton inserts no fences, no pipelining and no layout changes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, TensorType, i8, i32, i64
from xdsl.ir import Attribute, Block, Operation
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.narrowing import is_tensor
from compilemask.dialects.triton import tt, ttg, ttng
from compilemask.dialects.triton.inline_ptx import (
    ADD_IN_MEMORY,
    KEEP_WHERE_SET,
    LOGARITHM,
    MULTIPLY_UNLESS_ONE,
    OF_FIRST_LANE,
    PREFETCH_TENSOR_MAP,
    RECIPROCAL,
)
from compilemask.dialects.triton.layouts import (
    BARRIER_LAYOUT,
    DotOperandLayout,
    NvidiaMmaLayout,
    NvmmaSharedLayout,
    RegisterLayout,
    SliceLayout,
)
from compilemask.dialects.triton.layouts_linear import reshaped
from compilemask.dialects.triton.ttg_module import HOPPER, TMA_ARGUMENT, module_attributes, verify_gpu_module
from compilemask.dialects.triton.ttg_types import AnySharedLayout, MemDescType, TensorDescType
from compilemask.dialects.triton.types import PointerType, encoding_of, like
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, bf16, f16, f32
from compilemask.lowering.tiling_to_tt.value import Value, broadcast_together
from compilemask.lowering.tiling_to_ttg.builder_memory import Barrier, Barriers, Buffer, Descriptor, Product
from compilemask.lowering.tiling_to_ttg.builder_specialize import WarpSpecialize

__all__ = [
    "Arg",
    "Barrier",
    "Barriers",
    "Buffer",
    "Descriptor",
    "GpuKernelBuilder",
    "Product",
    "Value",
    "WarpSpecialize",
    "dot_operand",
    "slice_of",
    "tensor_map",
    "tma_layout",
    "wgmma",
]

SWIZZLES = (128, 64, 32)
"""Bytes of the rows that TMA permutes, the widest that fits first."""


def tensor_map(name: str) -> Arg:
    """A kernel argument that holds a tensor map by value: 128 bytes, aligned to 64."""
    return Arg(name, PointerType(i8, 0), attributes=((TMA_ARGUMENT, IntegerAttr(1, i32)),))


def tma_layout(shape: Sequence[int], dtype: Attribute) -> NvmmaSharedLayout:
    """The layout of a box in shared memory with the widest swizzle whose rows its last dimension fills."""
    width = getattr(dtype, "bitwidth", None)
    if not isinstance(width, int):
        raise LoweringError(f"no box of {dtype}")
    fitting = [size for size in SWIZZLES if len(shape) > 1 and shape[-1] * width // 8 >= size]
    swizzle = fitting[0] if fitting else 0
    return NvmmaSharedLayout.of(width, swizzle=swizzle, rank=len(shape))


def wgmma(n: int, k: int = 16) -> NvidiaMmaLayout:
    """The layout of a warpgroup's accumulator of `n` columns in one instruction; k is 16 for 16-bit operands."""
    return NvidiaMmaLayout.wgmma(n, k)


def slice_of(parent: RegisterLayout, dim: int) -> SliceLayout:
    """The layout of a tensor to which `[..., None]` adds dimension `dim` of the parent layout."""
    return SliceLayout.of(dim, parent)


def dot_operand(accumulator: NvidiaMmaLayout, k_width: int = 2) -> DotOperandLayout:
    """The layout of a left operand in registers; k_width is 2 for 16-bit elements."""
    return DotOperandLayout.of(0, accumulator, k_width)


class GpuKernelBuilder(KernelBuilder):
    """One kernel for Hopper under construction; see the module's docstring for how to write one."""

    def __init__(
        self,
        name: str,
        args: Sequence[Arg],
        *,
        num_warps: int = 4,
        arch: int = HOPPER,
        max_registers: int | None = None,
    ) -> None:
        super().__init__(name, args)
        self.attributes = module_attributes(num_warps, arch, max_registers)
        self._owners: dict[int, tuple[WarpSpecialize, list[Block]]] = {}

    # ------------------------------------------------------------ emission

    def emit_op(self, op: Operation) -> Operation:
        """Append any operation; inside a partition, operands from outside become captures."""
        root = self._blocks[0]
        if id(root) in self._owners:
            owner, outside = self._owners[id(root)]
            for index, operand in enumerate(op.operands):
                block = operand.owner.parent if isinstance(operand.owner, Operation) else operand.owner
                if any(block is candidate for candidate in outside):
                    op.operands[index] = owner.capture(operand, root)
        return super().emit_op(op)

    @contextmanager
    def open_partition(self, block: Block, owner: WarpSpecialize) -> Generator[None, None, None]:
        """Values from the blocks open now are captured by `owner` where `block` or a region in it uses them."""
        self._owners[id(block)] = (owner, list(self._blocks))
        try:
            yield
        finally:
            del self._owners[id(block)]

    def finish(self) -> ModuleOp:
        """End the kernel and give the module, verified for its target."""
        module = super().finish()
        module.attributes |= self.attributes
        try:
            verify_gpu_module(module)
        except VerifyException as error:
            raise LoweringError(f"the kernel does not verify: {error}") from error
        return module

    def warp_specialize(self) -> WarpSpecialize:
        """Partitions of warps that run at once: `with kb.warp_specialize() as roles`, `roles.default()`, ..."""
        return WarpSpecialize(self)

    # ------------------------------------------------------------ layouts

    def arange(self, start: int, end: int, layout: RegisterLayout | None = None) -> Value:
        """start, ..., end - 1 in a layout of rank 1; a power of two many."""
        count = end - start
        if layout is None:
            raise LoweringError("a range of a kernel with layouts needs one")
        if count <= 0 or count & (count - 1):
            raise LoweringError(f"arange({start}, {end}) has {count} elements, a power of two is needed")
        return self.emit(tt.MakeRangeOp(start, end, layout))

    def convert_layout(self, x: Value, layout: RegisterLayout) -> Value:
        """The same tensor in another layout; `x` itself if it is in that layout."""
        if encoding_of(x.type) == layout:
            return x
        if x.literal is not None:
            return Value(self, TensorType(x.dtype, x.shape, layout), literal=x.literal)
        return self.emit(ttg.ConvertLayoutOp(x.ssa, layout))

    def reshape(
        self,
        x: Value,
        shape: Sequence[int],
        *,
        allow_reorder: bool = False,
        layout: RegisterLayout | None = None,
    ) -> Value:
        """The same elements in row-major order under another shape, each staying in its thread."""
        before = encoding_of(x.type)
        if layout is None and isinstance(before, RegisterLayout):
            try:
                layout = reshaped(before, x.shape, shape)
            except VerifyException as error:
                raise LoweringError(str(error)) from error
        return self.emit(tt.ReshapeOp(x.ssa, shape, allow_reorder=allow_reorder, encoding=layout))

    def layout_of(self, x: Value) -> RegisterLayout:
        """The layout of a tensor."""
        layout = encoding_of(x.type)
        if not isinstance(layout, RegisterLayout):
            raise LoweringError(f"{x.type} has no layout")
        return layout

    # ------------------------------------------------------------ shared memory and barriers

    def alloc(
        self, shape: Sequence[int], dtype: Attribute, layout: AnySharedLayout | None = None, *, count: int | None = None
    ) -> Buffer:
        """A buffer in shared memory, or an array of `count` buffers; in the layout of TMA if none is given."""
        layout = tma_layout(shape, dtype) if layout is None else layout
        type_ = MemDescType.of(tuple(shape) if count is None else (count, *shape), dtype, layout)
        return Buffer(self, self.emit_op(ttg.LocalAllocOp(type_)).results[0])

    def barriers(self, count: int, arrivals: int = 1) -> Barriers:
        """So many mbarriers whose phases end after `arrivals` arrivals each; `fence_async_shared` after the last."""
        barriers = Barriers(self, self.alloc((1,), i64, BARRIER_LAYOUT, count=count))
        for index in range(count):
            barriers[index].init(arrivals)
        return barriers

    def fence_async_shared(self) -> None:
        """Make stores to shared memory visible to TMA and wgmma."""
        self.emit_op(ttng.FenceAsyncSharedOp())

    # ------------------------------------------------------------ TMA

    def descriptor(
        self, argument: str | Value, shape: Sequence[int], dtype: Attribute, layout: NvmmaSharedLayout | None = None
    ) -> Descriptor:
        """The tensor map in a kernel argument, as a descriptor of boxes of a shape; a dimension has at most 256."""
        raw = self.arg(argument) if isinstance(argument, str) else argument
        layout = tma_layout(shape, dtype) if layout is None else layout
        op = ttng.ReinterpretTensorDescriptorOp(raw.ssa, TensorDescType.of(shape, dtype, layout))
        return Descriptor(self, self.emit_op(op).results[0])

    def prefetch_tensor_map(self, argument: str) -> None:
        """Start to fetch the tensor map in a kernel argument, so that the first copy need not wait for it."""
        self.inline_asm(PREFETCH_TENSOR_MAP, "=r,l", [self.arg(argument)], i32, pure=False)

    def store_wait(self, pending: int = 0) -> None:
        """Wait until at most so many stores by TMA still read their buffers."""
        self.emit_op(ttng.AsyncTMAStoreWaitOp(pending))

    # ------------------------------------------------------------ matrix products

    def warp_group_dot(
        self,
        a: Buffer | Value,
        b: Buffer,
        acc: Value | Product | None = None,
        *,
        use_acc: Value | bool = True,
        layout: NvidiaMmaLayout | None = None,
    ) -> Product:
        """Start a [M, K] @ b [K, N] + acc; a may be a tensor in `dot_operand(...)`. Without acc, in an f32 `layout`."""
        if acc is None:
            columns = b.shape[-1]
            layout = wgmma(columns) if layout is None else layout
            acc, use_acc = self.zeros((a.shape[0], columns), f32, layout), False
        flag = None if use_acc is True else (use_acc if isinstance(use_acc, Value) else self.constant(False)).ssa
        op = self.emit_op(ttng.WarpGroupDotOp(a.ssa, b.ssa, acc.ssa, flag, is_async=True))
        return Product(op.results[0])

    def warp_group_dot_wait(self, product: Product, pending: int = 0) -> Value:
        """The value of a product, when at most `pending` of those started are unfinished."""
        return self.emit(ttng.WarpGroupDotWaitOp([product.ssa], pending))

    # ------------------------------------------------------------ PTX

    def inline_asm(
        self,
        asm: str,
        constraints: str,
        args: Sequence[Value],
        dtype: Attribute | None = None,
        *,
        packed: int = 1,
        pure: bool = True,
    ) -> Value:
        """PTX on `packed` elements at a time, `$0` being the result, of the operands' shape and layout."""
        result = args[0].type if dtype is None else like(args[0].type, dtype)
        if dtype is not None and not is_tensor(result):
            result = dtype
        operands = [x.ssa for x in args]
        return self.emit(ttg.ElementwiseInlineAsmOp(asm, constraints, operands, [result], packed=packed, pure=pure))

    def round_in_place(self, x: Value, dtype: Attribute) -> Value:
        """An f32 tensor as bf16 or f16, converted here: LLVM would move a plain cast to the value's use."""
        names: dict[Attribute, str] = {bf16: "bf16x2", f16: "f16x2"}
        if dtype not in names or x.dtype != f32:
            raise LoweringError(f"no conversion of {x.type} to {dtype}")
        return self.inline_asm(f"cvt.rn.{names[dtype]}.f32 $0, $2, $1;", "=r,r,r", [x], dtype, packed=2, pure=False)

    def multiply_unless_one(self, x: Value, factor: Value) -> Value:
        """An accumulator times a factor for each row, of its shape; no work for warps whose factors are all 1."""
        ptx = MULTIPLY_UNLESS_ONE
        return self.inline_asm(ptx.text, ptx.constraints, [x, factor], packed=ptx.packed, pure=False)

    def keep_where_set(self, x: Value, words: Value, hidden: float, together: int = 2) -> Value:
        """An accumulator where its bits of `words`, of its shape, are set, else -inf or 0, whichever is `hidden`.

        Column c has bit 2 * (c >> 3 & 7) + (c & 1). `together` as in `inline_ptx.KEEP_WHERE_SET`.
        """
        ptx = KEEP_WHERE_SET[hidden, together]
        return self.inline_asm(ptx.text, ptx.constraints, [x, words], packed=ptx.packed)

    def add_in_memory(self, addresses: Value, x: Value, chosen: Value) -> None:
        """Add f32 of an accumulator to memory, atomically, if the scalar `chosen` is not negative.

        A thread's fours of numbers, of rows r and r + 8 and columns c and c + 1, must be neighbours in memory, in this
        order; so `addresses`, of the accumulator's shape and layout, count by the first one of each.
        """
        ptx, operands = ADD_IN_MEMORY, broadcast_together(addresses, x, chosen)
        self.inline_asm(ptx.text, ptx.constraints, operands, f32, packed=ptx.packed, pure=False)

    def log2_approximate(self, x: Value) -> Value:
        """The logarithm to base 2 of f32, off by up to 2^-22 (PTX, lg2): one instruction, where `log2` takes thirty."""
        return self.inline_asm(LOGARITHM, "=r,r", [x])

    def reciprocal_approximate(self, x: Value) -> Value:
        """1 / x of f32, off by up to an ulp (PTX, rcp): one instruction; 0 beyond 2^126."""
        return self.inline_asm(RECIPROCAL, "=r,r", [x])

    def uniform(self, x: Value) -> Value:
        """An i32 scalar, of which ptxas knows then that all threads hold it alike."""
        return self.inline_asm(OF_FIRST_LANE, "=r,r", [x], pure=False)

    def bar_sync(self, number: int | Value, threads: int) -> None:
        """Wait at one of the CTA's 16 named barriers until so many threads have come; Triton uses 0, 1 and 2."""
        self._named_barrier("sync", number, threads)

    def bar_arrive(self, number: int | Value, threads: int) -> None:
        """Come to a named barrier without waiting."""
        self._named_barrier("arrive", number, threads)

    def _named_barrier(self, kind: str, number: int | Value, threads: int) -> None:
        if threads % 32 or (isinstance(number, int) and not 3 <= number < 16):
            raise LoweringError(f"named barrier {number} of {threads} threads")
        name, operand = (number, self.constant(0, i32)) if isinstance(number, int) else ("$1", number)
        self.inline_asm(f"bar.{kind} {name}, {threads}; mov.b32 $0, $1;", "=r,r", [operand], pure=False)
