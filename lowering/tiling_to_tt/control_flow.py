"""Loops and branches of a kernel under construction, as context managers that carry values."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Protocol

from xdsl.dialects import scf
from xdsl.dialects.builtin import i1
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from compilemask.dialects.narrowing import is_integer_type
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.value import Emitter, Value


class RegionEmitter(Emitter, Protocol):
    """What a loop or branch needs of the kernel that it belongs to."""

    def emit_op(self, op: Operation) -> Operation:
        """Append an operation at the insertion point."""
        ...

    def insert_into(self, block: Block) -> AbstractContextManager[None]:
        """Emit into `block` inside the `with`."""
        ...


def _require_types(what: str, values: Sequence[Value], expected: Sequence[Attribute]) -> None:
    found = [value.type for value in values]
    if found != list(expected):
        raise LoweringError(f"{what}: got ({', '.join(map(str, found))}), need ({', '.join(map(str, expected))})")


class _Structured:
    """Shared: open on `with`, emit the operation when it ends without an error, then offer `results`."""

    def __init__(self, kernel: RegionEmitter) -> None:
        self.kernel = kernel
        self._results: tuple[Value, ...] | None = None

    @property
    def results(self) -> tuple[Value, ...]:
        """The values that come out, after the `with` has ended."""
        if self._results is None:
            raise LoweringError("results exist after the `with` has ended")
        return self._results

    def _wrap(self, values: Sequence[SSAValue]) -> tuple[Value, ...]:
        return tuple(Value(self.kernel, value.type, ssa=value) for value in values)

    def _emit(self, op: Operation) -> None:
        self._results = self._wrap(self.kernel.emit_op(op).results)


class ForLoop(_Structured):
    """`scf.for`: `index` and `carried` are this iteration's values; a body that carries values ends with `yield_`."""

    def __init__(
        self,
        kernel: RegionEmitter,
        bounds: Sequence[Value],
        carried: Sequence[Value],
        attributes: Mapping[str, Attribute],
    ) -> None:
        super().__init__(kernel)
        self._attributes = attributes
        index_type = bounds[0].type
        if not is_integer_type(index_type):
            raise LoweringError(f"loop bounds are integers, not {index_type}")
        _require_types("loop bounds", bounds, [index_type] * 3)
        self._bounds, self._initial = [bound.ssa for bound in bounds], [value.ssa for value in carried]
        self._types = [value.type for value in carried]
        self._block = Block(arg_types=[index_type, *self._types])
        self._yielded = False
        self.index, *rest = self._wrap(self._block.args)
        self.carried = tuple(rest)

    def __enter__(self) -> ForLoop:
        self._scope = self.kernel.insert_into(self._block)
        self._scope.__enter__()
        return self

    def yield_(self, *values: Value) -> None:
        """The carried values of the next iteration; the last statement of the body."""
        if self._yielded:
            raise LoweringError("a loop body yields once")
        _require_types("loop yield", values, self._types)
        self.kernel.emit_op(scf.YieldOp(*(value.ssa for value in values)))
        self._yielded = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._yielded:
                self.yield_()
        finally:
            self._scope.__exit__(None, None, None)
        if kind is None:
            lower, upper, step = self._bounds
            op = scf.ForOp(lower, upper, step, self._initial, self._block)
            op.attributes |= self._attributes
            self._emit(op)


class IfElse(_Structured):
    """`scf.if`: fill `then()` and, if anything is yielded, `otherwise()`; both yield the same types."""

    def __init__(self, kernel: RegionEmitter, condition: Value) -> None:
        super().__init__(kernel)
        _require_types("if condition", [condition], [i1])
        self._condition = condition.ssa
        self._yields: dict[int, list[Attribute]] = {}
        self._blocks: list[Block | None] = [None, None]
        self._current = 0

    def __enter__(self) -> IfElse:
        return self

    def then(self) -> AbstractContextManager[None]:
        """The branch taken if the condition holds."""
        return self._branch(0)

    def otherwise(self) -> AbstractContextManager[None]:
        """The branch taken if it does not."""
        return self._branch(1)

    @contextmanager
    def _branch(self, index: int) -> Generator[None, None, None]:
        if self._blocks[index] is not None:
            raise LoweringError("this branch is already filled")
        block = self._blocks[index] = Block()
        self._current = index
        with self.kernel.insert_into(block):
            yield
            if index not in self._yields:
                self.yield_()

    def yield_(self, *values: Value) -> None:
        """The values that this branch gives; its last statement."""
        if self._current in self._yields:
            raise LoweringError("a branch yields once")
        self._yields[self._current] = [value.type for value in values]
        self.kernel.emit_op(scf.YieldOp(*(value.ssa for value in values)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        then, otherwise = self._blocks
        if then is None:
            raise LoweringError("an if needs a then()")
        types = self._yields[0]
        if types != self._yields.get(1, []):
            raise LoweringError(f"the branches yield different types: {types} and {self._yields.get(1, [])}")
        self._emit(scf.IfOp(self._condition, types, Region(then), None if otherwise is None else Region(otherwise)))


class WhileLoop(_Structured):
    """`scf.while`: `condition()` ends with `continue_if`, whose values go to `body()`, or out as `results`."""

    def __init__(self, kernel: RegionEmitter, carried: Sequence[Value]) -> None:
        super().__init__(kernel)
        self._initial, self._types = [value.ssa for value in carried], [value.type for value in carried]
        self._passed: list[Attribute] | None = None
        self._before = Block(arg_types=self._types)
        self._after: Block | None = None
        self._yielded = False

    def __enter__(self) -> WhileLoop:
        return self

    @contextmanager
    def condition(self) -> Generator[tuple[Value, ...], None, None]:
        """Decides whether to go on, from the carried values."""
        with self.kernel.insert_into(self._before):
            yield self._wrap(self._before.args)
        if self._passed is None:
            raise LoweringError("a while condition ends with continue_if")

    def continue_if(self, condition: Value, *values: Value) -> None:
        """Go on to the body with these values if the i1 condition holds, else leave with them."""
        _require_types("while condition", [condition], [i1])
        self._passed = [value.type for value in values]
        self.kernel.emit_op(scf.ConditionOp(condition.ssa, *(value.ssa for value in values)))

    @contextmanager
    def body(self) -> Generator[tuple[Value, ...], None, None]:
        """The body, given the values of `continue_if`."""
        if self._passed is None:
            raise LoweringError("fill condition() before body()")
        block = self._after = Block(arg_types=self._passed)
        with self.kernel.insert_into(block):
            yield self._wrap(block.args)
        if not self._yielded:
            raise LoweringError("a while body ends with yield_")

    def yield_(self, *values: Value) -> None:
        """The carried values of the next round; the last statement of the body."""
        _require_types("while yield", values, self._types)
        self.kernel.emit_op(scf.YieldOp(*(value.ssa for value in values)))
        self._yielded = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        if self._after is None or self._passed is None:
            raise LoweringError("a while loop needs a condition() and a body()")
        self._emit(scf.WhileOp(self._initial, self._passed, Region(self._before), Region(self._after)))
