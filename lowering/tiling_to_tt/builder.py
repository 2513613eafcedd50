"""Write Triton kernels in Python, one operation of the `tt` dialect per call.

    from compilemask.lowering.tiling_to_tt.builder import Arg, KernelBuilder, f32, i32, ptr

    args = [Arg("x", ptr(f32), divisibility=16), Arg("out", ptr(f32)), Arg("n", i32)]
    kb = KernelBuilder("row_sums", args)
    x, out, n = kb.args                                  # or kb.arg("x")
    row = kb.program_id(0)
    lane = kb.arange(0, 128)                             # tensor<128xi32>
    with kb.for_loop(0, n, 128, [kb.zeros((128,), f32)]) as loop:
        (total,) = loop.carried                          # values of this iteration; loop.index is the counter
        col = loop.index + lane                          # scalars broadcast against tensors
        loop.yield_(total + kb.load(x + row * n + col, mask=col < n, other=0.0))
    (total,) = loop.results
    kb.store(out + row, kb.reduce(total, 0, "sum"))
    module = kb.finish()                                 # a verified builtin.module; print_generic(module) is Triton's

Values (`value.Value`) have `dtype`, `shape` and operators. What the operators mean:
  + - *            integers wrap; `/` floats only; pointers take + and - of element offsets (i32 or i64)
  // %             floor, as in Python; a shift or mask for a literal power of two, else divsi/remsi and a correction
  kb.trunc_div, kb.trunc_rem     arith.divsi, arith.remsi (towards zero); kb.ceil_div for nonnegatives
  < <= > >= == !=  signed or ordered, give i1; kb.ult, kb.ule for unsigned integers
  & | ^ ~ << >>    bitwise, also on i1; >> is arithmetic, kb.shift_right_unsigned logical
  x[:, None]       inserts dimensions; ranks must agree otherwise, element types too: kb.cast(x, f32)
  Python numbers   take the type of the value beside them; else kb.constant(5, i64), kb.full((64, 64), -inf, f32)

Functions: maximum, minimum (floats ignore NaN), where, exp2, log2, sqrt, absolute, cast, bitcast, broadcast_to,
expand_dims, reshape, trans, join, split, load, store, atomic_add, dot, reduce, reduce_many, cumsum, scan_many, ...

Branches and while loops; what a region yields comes out as `results`:
    with kb.if_else(n > 0) as branch:
        with branch.then():
            branch.yield_(a)
        with branch.otherwise():                         # may be left out if nothing is yielded
            branch.yield_(b)
    (c,) = branch.results
    with kb.while_loop([i]) as loop:
        with loop.condition() as (i,):
            loop.continue_if(i < n, i)                   # the values go to the body, or out as results
        with loop.body() as (i,):
            loop.yield_(i + 1)
    (i,) = loop.results

A value is usable only in the region that makes it and in regions inside; anything else raises LoweringError at once.
Literals fold (`x + 0`, `x * 1`, `2 * 3`); used ones become constants at the top of the function.
`value.named("scores")` names a value in printed IR.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects import math
from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.narrowing import is_integer_type
from compilemask.dialects.triton import tt
from compilemask.dialects.triton.types import PointerType, element_of, shape_of
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt import value as values
from compilemask.lowering.tiling_to_tt.control_flow import ForLoop, IfElse, WhileLoop
from compilemask.lowering.tiling_to_tt.value import Number, Value

__all__ = ["Arg", "KernelBuilder", "Value", "bf16", "f16", "f32", "f64", "i1", "i8", "i16", "i32", "i64", "ptr"]


def ptr(pointee: Attribute) -> PointerType:
    """`!tt.ptr<pointee>` in global memory."""
    return PointerType(pointee)


@dataclass(frozen=True)
class Arg:
    """A kernel argument; `divisibility` (of a pointer in bytes) becomes `tt.divisibility`."""

    name: str
    type: Attribute
    divisibility: int | None = None
    attributes: tuple[tuple[str, Attribute], ...] = ()

    def attribute_dict(self) -> DictionaryAttr:
        """The argument's attributes in the function's `arg_attrs`."""
        entries = dict(self.attributes)
        if self.divisibility is not None:
            entries["tt.divisibility"] = IntegerAttr(self.divisibility, i32)
        return DictionaryAttr(entries)


class _ConstantPool:
    """Constants at the top of one block, each emitted once."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.known: dict[tuple[Attribute, str], SSAValue] = {}
        self.last: Operation | None = None

    def get(self, literal: Number, type_: Attribute) -> SSAValue:
        key = (type_, repr(literal))
        if key not in self.known:
            self.known[key] = self._emit(literal, type_)
        return self.known[key]

    def _emit(self, literal: Number, type_: Attribute) -> SSAValue:
        if shape_of(type_):
            op: Operation = tt.SplatOp(self.get(literal, element_of(type_)), type_)
        elif is_integer_type(type_):
            op = xdsl_arith.ConstantOp(IntegerAttr(int(literal), type_))
            op.results[0].name_hint = f"{'m' if literal < 0 else 'c'}{abs(int(literal))}"
        elif isinstance(type_, AnyFloat):
            op = xdsl_arith.ConstantOp(FloatAttr(float(literal), type_))
        else:
            raise LoweringError(f"no constant of type {type_}")
        self._insert(op)
        return op.results[0]

    def _insert(self, op: Operation) -> None:
        if self.last is not None:
            self.block.insert_ops_after([op], self.last)
        elif self.block.first_op is not None:
            self.block.insert_ops_before([op], self.block.first_op)
        else:
            self.block.add_op(op)
        self.last = op


_verified_forms: set[tuple[object, ...]] = set()


def _verify(op: Operation) -> None:
    """Verify an operation, of all that have its types and attributes only the first: no verifier looks at more.

    Raises LoweringError.
    """
    form = (type(op), *op.operand_types, None, *op.result_types, *op.properties.items(), *op.attributes.items())
    if form not in _verified_forms:
        try:
            op.verify()
        except VerifyException as error:
            raise LoweringError(str(error)) from error
        _verified_forms.add(form)


class KernelBuilder:
    """One kernel under construction; see the module's docstring for how to write one."""

    def __init__(self, name: str, args: Sequence[Arg]) -> None:
        self.func = tt.FuncOp(
            name, [arg.type for arg in args], arg_attrs=ArrayAttr([arg.attribute_dict() for arg in args])
        )
        block = self.func.body.block
        self._blocks = [block]
        self._pools = [_ConstantPool(block)]
        self._finished = False
        self._verified: set[Operation] = set()
        for spec, argument in zip(args, block.args, strict=True):
            argument.name_hint = spec.name
        self.args = tuple(Value(self, a.type, ssa=a) for a in block.args)
        self._by_name = {spec.name: value for spec, value in zip(args, self.args, strict=True)}

    # ------------------------------------------------------------ emission

    def arg(self, name: str) -> Value:
        """The argument of this name."""
        if name not in self._by_name:
            raise LoweringError(f"no argument '{name}'; there are {', '.join(self._by_name)}")
        return self._by_name[name]

    def emit_op(self, op: Operation) -> Operation:
        """Append any operation at the insertion point, if its operands are visible there and it verifies."""
        if self._finished:
            raise LoweringError("this kernel is finished")
        for operand in op.operands:
            self.check_visible(operand)
        if not op.regions and not op.has_trait(IsTerminator):
            _verify(op)
            self._verified.add(op)
        self._blocks[-1].add_op(op)
        return op

    def emit(self, op: Operation) -> Value:
        """Append an operation at the insertion point and wrap its one result."""
        result = self.emit_op(op).results[0]
        return Value(self, result.type, ssa=result)

    def check_visible(self, operand: SSAValue) -> None:
        """Raise LoweringError if a value belongs to a region that is closed, or to another kernel."""
        owner = operand.owner
        block = owner.parent if isinstance(owner, Operation) else owner
        if not any(block is open_block for open_block in self._blocks):
            raise LoweringError(f"a value of type {operand.type} is used outside the loop or branch that makes it")

    def materialize(self, literal: Number, type_: Attribute) -> SSAValue:
        """The constant (of a scalar type, or all elements of a tensor), emitted once per function."""
        return self._pools[-1].get(literal, type_)

    @contextmanager
    def insert_into(self, block: Block, *, isolated: bool = False) -> Generator[None, None, None]:
        """Emit into `block` inside the `with`; an isolated block sees nothing around it, constants included."""
        outer_blocks, outer_pools = self._blocks, self._pools
        self._blocks = [block] if isolated else [*outer_blocks, block]
        self._pools = [*outer_pools, _ConstantPool(block)] if isolated else outer_pools
        try:
            yield
        finally:
            self._blocks, self._pools = outer_blocks, outer_pools

    def finish(self) -> ModuleOp:
        """End the kernel with `tt.return` and give the verified module."""
        if len(self._blocks) != 1:
            raise LoweringError("a loop or branch is still open")
        self.emit_op(tt.ReturnOp())
        self._finished = True
        module = ModuleOp([self.func])
        try:
            self._verify_rest(module)
        except VerifyException as error:
            raise LoweringError(f"the kernel does not verify: {error}") from error
        return module

    def _verify_rest(self, module: ModuleOp) -> None:
        """Verify what could not be verified when it was emitted: regions, and what ends a block."""
        for op in module.walk():
            if op not in self._verified or op.next_op is None:
                op.verify(verify_nested_ops=False)
            for region in op.regions:
                for block in region.blocks:
                    if not block.ops:
                        block.verify()

    # ------------------------------------------------------------ constants and shapes

    def constant(self, value: Number, dtype: Attribute | None = None) -> Value:
        """A scalar literal; without a type i1, i32 or f32."""
        return Value(self, values.default_type(value) if dtype is None else dtype, literal=value)

    def full(
        self,
        shape: Sequence[int],
        value: Number | Value,
        dtype: Attribute | None = None,
        layout: Attribute | None = None,
    ) -> Value:
        """A tensor whose elements all equal `value`, in a layout if one is given."""
        scalar = value if isinstance(value, Value) else self.constant(value, dtype)
        return values.broadcast_to(scalar, shape, layout)

    def zeros(self, shape: Sequence[int], dtype: Attribute, layout: Attribute | None = None) -> Value:
        """A tensor of zeros, in a layout if one is given."""
        return self.full(shape, 0, dtype, layout)

    def arange(self, start: int, end: int) -> Value:
        """start, ..., end - 1 as tensor<(end - start) x i32>; a power of two many."""
        count = end - start
        if count <= 0 or count & (count - 1):
            raise LoweringError(f"arange({start}, {end}) has {count} elements, a power of two is needed")
        return self.emit(tt.MakeRangeOp(start, end))

    def program_id(self, axis: int) -> Value:
        """This program's index along a grid axis, i32."""
        return self.emit(tt.GetProgramIdOp(axis))

    def num_programs(self, axis: int) -> Value:
        """The grid's size along an axis, i32."""
        return self.emit(tt.GetNumProgramsOp(axis))

    def expand_dims(self, x: Value, axis: int) -> Value:
        """A dimension of size 1 inserted at `axis`; negative axes count from the end of the result."""
        return values.expand_dims(x, axis)

    def broadcast_to(self, x: Value | Number, shape: Sequence[int]) -> Value:
        """Scalars splatted, dimensions of size 1 repeated, to `shape`."""
        return values.broadcast_to(x if isinstance(x, Value) else self.constant(x), shape)

    def reshape(self, x: Value, shape: Sequence[int], *, allow_reorder: bool = False) -> Value:
        """The same elements in row-major order under another shape; in any order if `allow_reorder`."""
        return self.emit(tt.ReshapeOp(x.ssa, shape, allow_reorder=allow_reorder))

    def trans(self, x: Value, order: Sequence[int] = (1, 0)) -> Value:
        """Dimensions permuted: result dimension i is dimension order[i] of `x`."""
        return self.emit(tt.TransOp(x.ssa, order))

    def join(self, a: Value, b: Value) -> Value:
        """Two tensors of one shape interleaved along a new last dimension of size 2."""
        a, b = values.unify(a, b)
        return self.emit(tt.JoinOp(a.ssa, b.ssa))

    def split(self, x: Value) -> tuple[Value, Value]:
        """The two halves along a last dimension of size 2."""
        first, second = self.emit_op(tt.SplitOp(x.ssa)).results
        return Value(self, first.type, ssa=first), Value(self, second.type, ssa=second)

    # ------------------------------------------------------------ elementwise

    def maximum(self, a: Value | Number, b: Value | Number, *, propagate_nan: bool = False) -> Value:
        """The larger; of floats the one that is not NaN, or NaN if `propagate_nan`. Integers signed."""
        return values.binary("max_nan" if propagate_nan else "max", a, b)

    def minimum(self, a: Value | Number, b: Value | Number, *, propagate_nan: bool = False) -> Value:
        """The smaller; of floats the one that is not NaN, or NaN if `propagate_nan`. Integers signed."""
        return values.binary("min_nan" if propagate_nan else "min", a, b)

    def umax(self, a: Value | Number, b: Value | Number) -> Value:
        """The larger of unsigned integers."""
        return values.binary("umax", a, b)

    def umin(self, a: Value | Number, b: Value | Number) -> Value:
        """The smaller of unsigned integers."""
        return values.binary("umin", a, b)

    def ult(self, a: Value | Number, b: Value | Number) -> Value:
        """a < b of unsigned integers."""
        return values.compare("ult", a, b)

    def ule(self, a: Value | Number, b: Value | Number) -> Value:
        """a <= b of unsigned integers."""
        return values.compare("ule", a, b)

    def trunc_div(self, a: Value | Number, b: Value | Number) -> Value:
        """`arith.divsi`: the quotient rounded towards zero."""
        return values.binary("tdiv", a, b)

    def trunc_rem(self, a: Value | Number, b: Value | Number) -> Value:
        """`arith.remsi`: the remainder with the sign of `a`."""
        return values.binary("trem", a, b)

    def ceil_div(self, a: Value | Number, b: Value | Number) -> Value:
        """a / b rounded up, for a >= 0 and b > 0 with a + b - 1 in range."""
        a, b = values.unify(a, b)
        return values.binary("tdiv", a + (b - 1), b)

    def shift_right_unsigned(self, a: Value | Number, b: Value | Number) -> Value:
        """Bits shifted right, zeros from the left."""
        return values.binary("shru", a, b)

    def where(self, condition: Value, a: Value | Number, b: Value | Number) -> Value:
        """`a` where the i1 condition holds, else `b`; all broadcast."""
        return values.where(condition, a, b)

    def exp2(self, x: Value) -> Value:
        """2 to the power of x."""
        return self.emit(math.Exp2Op(x.ssa))

    def log2(self, x: Value) -> Value:
        """The logarithm to base 2."""
        return self.emit(math.Log2Op(x.ssa))

    def sqrt(self, x: Value) -> Value:
        """The square root."""
        return self.emit(math.SqrtOp(x.ssa))

    def absolute(self, x: Value) -> Value:
        """The absolute value."""
        return self.emit(math.AbsFOp(x.ssa) if x.is_float else math.AbsIOp(x.ssa))

    def cast(self, x: Value, dtype: Attribute, *, unsigned: bool = False) -> Value:
        """`x` as another number type; i1 is 0 or 1, integers are signed unless `unsigned`; floats truncate."""
        return values.cast(x, dtype, unsigned=unsigned)

    def bitcast(self, x: Value, dtype: Attribute) -> Value:
        """The same bits as another type of equal width."""
        return values.bitcast(x, dtype)

    # ------------------------------------------------------------ memory

    def load(
        self,
        pointer: Value,
        mask: Value | None = None,
        other: Value | Number | None = None,
        *,
        cache: str | None = None,
        evict: str | None = None,
    ) -> Value:
        """The values at pointers; lanes with a false mask touch no memory and give `other` (undefined if left out)."""
        pointee = pointer.dtype
        if not isinstance(pointee, PointerType):
            raise LoweringError(f"load from {pointer.type}, a pointer is needed")
        if mask is None and other is not None:
            raise LoweringError("`other` without a mask")
        mask = None if mask is None or mask.literal is True else mask
        given = [x for x in (pointer, mask, other) if isinstance(x, Value)]
        shape = values.broadcast_shapes(pointer.shape, () if mask is None else mask.shape)
        layout = values.common_layout(*given)
        operands: list[SSAValue | None] = [values.broadcast_to(pointer, shape, layout).ssa, None, None]
        if mask is not None:
            operands[1] = values.broadcast_to(mask, shape, layout).ssa
            if other is not None:
                operands[2] = self._typed(other, pointee.pointee_type, shape, layout).ssa
        pointer_ssa, mask_ssa, other_ssa = operands
        assert pointer_ssa is not None
        return self.emit(tt.LoadOp(pointer_ssa, mask_ssa, other_ssa, cache=cache, evict=evict))

    def store(
        self,
        pointer: Value,
        value: Value | Number,
        mask: Value | None = None,
        *,
        cache: str | None = None,
        evict: str | None = None,
    ) -> None:
        """Writes values (of the pointee type exactly) to pointers where the mask holds."""
        pointer, value, mask_ssa = self._access(pointer, value, mask)
        self.emit_op(tt.StoreOp(pointer.ssa, value.ssa, mask_ssa, cache=cache, evict=evict))

    def atomic_add(
        self,
        pointer: Value,
        value: Value | Number,
        mask: Value | None = None,
        *,
        sem: str = "relaxed",
        scope: str = "gpu",
    ) -> Value:
        """Adds values to memory atomically where the mask holds; the values from before."""
        pointer, value, mask_ssa = self._access(pointer, value, mask)
        kind = "fadd" if value.is_float else "add"
        if mask_ssa is None:
            mask_ssa = self.full(pointer.shape, True, i1).ssa
        return self.emit(tt.AtomicRMWOp(kind, pointer.ssa, value.ssa, mask_ssa, sem=sem, scope=scope))

    def _access(
        self, pointer: Value, value: Value | Number, mask: Value | None
    ) -> tuple[Value, Value, SSAValue | None]:
        if not isinstance(pointer.dtype, PointerType):
            raise LoweringError(f"{pointer.type} is not a pointer")
        mask = None if mask is None or mask.literal is True else mask
        shape = values.broadcast_shapes(
            pointer.shape, value.shape if isinstance(value, Value) else (), () if mask is None else mask.shape
        )
        layout = values.common_layout(*(x for x in (pointer, value, mask) if isinstance(x, Value)))
        value = self._typed(value, pointer.dtype.pointee_type, shape, layout)
        mask_ssa = None if mask is None else values.broadcast_to(mask, shape, layout).ssa
        return values.broadcast_to(pointer, shape, layout), value, mask_ssa

    def _typed(self, x: Value | Number, dtype: Attribute, shape: Sequence[int], layout: Attribute | None) -> Value:
        result = x if isinstance(x, Value) else self.constant(x, dtype)
        if result.dtype != dtype:
            raise LoweringError(f"{result.type} where {dtype} is needed; cast() it")
        return values.broadcast_to(result, shape, layout)

    # ------------------------------------------------------------ products, reductions, scans

    def dot(
        self, a: Value, b: Value, acc: Value | None = None, *, precision: str = "ieee", max_imprecise: int = 0
    ) -> Value:
        """a [M, K] @ b [K, N] + acc [M, N]; acc is f32 (i32 for i8), zero if left out.

        `precision` (ieee, tf32, tf32x3) matters for f32 operands.
        """
        if len(a.shape) < 2 or len(a.shape) != len(b.shape):
            raise LoweringError(f"dot of {a.type} and {b.type}")
        if acc is None:
            acc = self.zeros((*a.shape[:-1], b.shape[-1]), f32 if a.is_float else i32)
        return self.emit(tt.DotOp(a.ssa, b.ssa, acc.ssa, precision=precision, max_imprecise=max_imprecise))

    def reduce(self, x: Value, axis: int, kind: str) -> Value:
        """Elements along `axis` combined: max, min, sum, prod, or, and, xor, umax, umin. Rank 1 gives a scalar."""
        combine = _combiner(kind)
        return self.reduce_many([x], axis, lambda a, b: (combine(a[0], b[0]),))[0]

    def reduce_many(self, xs: Sequence[Value], axis: int, combine: Combine) -> tuple[Value, ...]:
        """Several tensors of one shape reduced together; `combine` takes two tuples of scalars and gives one."""
        operands, axis = self._same_shapes(xs, axis)
        region = self._combine_region(operands, combine, tt.ReduceReturnOp)
        op = self.emit_op(tt.ReduceOp([x.ssa for x in operands], axis, region))
        return tuple(Value(self, result.type, ssa=result) for result in op.results)

    def cumsum(self, x: Value, axis: int = 0, *, reverse: bool = False) -> Value:
        """Inclusive prefix sums along `axis`; from the end if `reverse`."""
        return self.scan_many([x], axis, lambda a, b: (a[0] + b[0],), reverse=reverse)[0]

    def scan_many(
        self, xs: Sequence[Value], axis: int, combine: Combine, *, reverse: bool = False
    ) -> tuple[Value, ...]:
        """Inclusive prefix combination (associative) of several tensors of one shape together."""
        operands, axis = self._same_shapes(xs, axis)
        region = self._combine_region(operands, combine, tt.ScanReturnOp)
        op = self.emit_op(tt.ScanOp([x.ssa for x in operands], axis, region, reverse=reverse))
        return tuple(Value(self, result.type, ssa=result) for result in op.results)

    def _same_shapes(self, xs: Sequence[Value], axis: int) -> tuple[list[Value], int]:
        shape = values.broadcast_shapes(*(x.shape for x in xs))
        axis = axis + len(shape) if axis < 0 else axis
        if not 0 <= axis < len(shape):
            raise LoweringError(f"axis {axis} is outside the shape {shape}")
        layout = values.common_layout(*xs)
        return [values.broadcast_to(x, shape, layout) for x in xs], axis

    def _combine_region(
        self, xs: Sequence[Value], combine: Combine, end: type[tt.ReduceReturnOp] | type[tt.ScanReturnOp]
    ) -> Region:
        block = Block(arg_types=[x.dtype for x in xs] * 2)
        arguments = tuple(Value(self, argument.type, ssa=argument) for argument in block.args)
        with self.insert_into(block, isolated=True):
            combined = combine(arguments[: len(xs)], arguments[len(xs) :])
            self.emit_op(end(*(x.ssa for x in combined)))
        return Region(block)

    # ------------------------------------------------------------ control flow

    def for_loop(
        self,
        lower: Value | Number,
        upper: Value | Number,
        step: Value | Number,
        carried: Sequence[Value] = (),
        *,
        num_stages: int | None = None,
    ) -> ForLoop:
        """`scf.for` over [lower, upper) with a positive step; bounds share one integer type, i32 if all are numbers.

        `num_stages` asks Triton to pipeline this loop's loads that deep.
        """
        bounds = [lower, upper, step]
        partner = next((bound for bound in bounds if isinstance(bound, Value)), self.constant(0, i32))
        attributes = {} if num_stages is None else {"tt.num_stages": IntegerAttr(num_stages, i32)}
        return ForLoop(self, [values.lift(partner, bound) for bound in bounds], carried, attributes)

    def if_else(self, condition: Value) -> IfElse:
        """`scf.if` on a scalar i1."""
        return IfElse(self, condition)

    def while_loop(self, carried: Sequence[Value]) -> WhileLoop:
        """`scf.while`: a condition region, then a body, over carried values."""
        return WhileLoop(self, carried)


Combine = Callable[[tuple[Value, ...], tuple[Value, ...]], Sequence[Value]]

_REDUCTIONS = {
    **{"sum": "add", "prod": "mul"},
    **{name: name for name in ("max", "min", "umax", "umin", "or", "and", "xor")},
}


def _combiner(kind: str) -> Callable[[Value, Value], Value]:
    if kind not in _REDUCTIONS:
        raise LoweringError(f"reduction '{kind}' is not one of {', '.join(_REDUCTIONS)}")
    return lambda a, b: values.binary(_REDUCTIONS[kind], a, b)
