"""A mask: an immutable expression over the (query, key) plane, its IR and its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, SupportsIndex

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.language.builder import Builder, Parameter
from compilemask.language.extent import Extent, Limit, Plane, check_limits
from compilemask.language.structure import Template, keep_template, known_template, structure_of
from compilemask.language.values import Value, common_batch

if TYPE_CHECKING:
    import numpy as np
    import torch

    from compilemask.language.values import Scalar

_LONGEST_NAME = 40


@dataclass(frozen=True)
class _Built:
    module: ModuleOp
    values: list[tuple[str, Value]]
    text: str

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The function's arguments, in order."""
        return tuple(Parameter(name, value.data, value.is_table) for name, value in self.values)

    @cached_property
    def batch_shape(self) -> tuple[int, int]:
        """(B, H)."""
        return common_batch(self.values)


class Mask(ABC):
    """Which keys each query sees. Masks combine: `&` intersection, `|` union, `-` difference, `~` complement; `place`,
    `shift` and `crop` say where.

    A mask holds no numbers of queries and keys: it fits all that hold the positions it speaks of (`check_lengths`).
    Its parameters are run-time data; masks of the same structure have the same IR, whatever the values.
    """

    LABEL: ClassVar[str] = "mask"
    HAS_BODIES: ClassVar[bool] = False
    """Whether `emit` writes the operands into bodies of its own operation."""

    @property
    def name(self) -> str:
        """The name of the mask's function in IR."""
        return self.LABEL

    @property
    def operands(self) -> tuple[Mask, ...]:
        """The masks that this one combines."""
        return ()

    def extents(self) -> tuple[Extent, ...]:
        """How long a sequence this mask's own parameters speak of; nothing if it fits any. Operands add theirs."""
        return ()

    def planes(self) -> tuple[Plane | None, ...]:
        """For each operand the part of the sequence that it masks; None for all of it."""
        return (None,) * len(self.operands)

    @abstractmethod
    def emit(self, builder: Builder) -> SSAValue:
        """Writes the mask's operations; its region."""

    # ---- what the compiler asks ----

    @cached_property
    def _built(self) -> _Built:
        structure = structure_of(self)
        template = known_template(structure[0]) if structure is not None else None
        if structure is not None and template is not None:
            named = [(name, structure[1][position]) for name, position in template.parameters]
            return _Built(template.module, named, template.text)
        builder = Builder()
        try:
            module = builder.finish(self.name, builder.region(self))
        except RecursionError:
            raise MaskError(f"@{self.name} is nested more deeply than Python's stack reaches") from None
        built = _Built(module, builder.values, str(module.body.block.first_op))
        if structure is not None:
            position = {id(value): index for index, value in enumerate(structure[1])}
            named = tuple((name, position[id(value)]) for name, value in builder.values)
            keep_template(structure[0], Template(module, built.text, named))
        return built

    def module(self) -> ModuleOp:
        """A new module that holds the mask as one verified `mask.func`."""
        return self._built.module.clone()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arguments of the mask's function, in order."""
        return self._built.parameters

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """The extents of this mask and of all that it combines, in terms of its parameters."""
        found: list[tuple[Extent, tuple[Plane, ...]]] = []
        seen: set[tuple[int, tuple[Plane, ...]]] = set()
        pending: list[tuple[Mask, tuple[Plane, ...]]] = [(self, ())]
        while pending:
            last, planes = pending.pop()
            if (id(last), planes) not in seen:
                seen.add((id(last), planes))
                found += [(extent, planes) for extent in last.extents()]
                inner = zip(last.operands, last.planes(), strict=True)
                pending += reversed([(operand, planes if own is None else (*planes, own)) for operand, own in inner])
        names = {value.identity: name for name, value in self._built.values}

        def named(values: tuple[Value, ...]) -> tuple[str, ...]:
            return tuple(names[value.identity] for value in values)

        return tuple(
            Limit(extent, named(extent.values), planes=tuple((plane, named(plane.values)) for plane in planes))
            for extent, planes in found
        )

    def check_lengths(self, queries: int, keys: int) -> None:
        """Whether the mask fits so many queries and keys.

        Fewer queries than keys fit (they are the first rows, or the last ones where a mask is aligned to the bottom
        right), and so do more positions than the mask speaks of. Windows, bands and strips fit any lengths. Parameters
        in device memory are not looked at. `dense` does not ask: it cuts off what lies outside.

        Raises:
            MaskError: the mask speaks of positions at which there is neither a query nor a key: offsets that end, an
                image or a history that reaches behind both, or a length of padding greater than the number of keys.
        """
        _check_sizes(queries, keys)
        check_limits(self.limits, {p.name: p.value for p in self.parameters}, queries, keys)

    @property
    def key(self) -> str:
        """Text that is equal for masks of one structure, and holds no run-time value."""
        return self._built.text

    @property
    def batch_shape(self) -> tuple[int, int]:
        """(B, H): how many batches and heads have parameters of their own; 1 if they share them."""
        return self._built.batch_shape

    def dense(self, queries: int, keys: int) -> torch.Tensor:
        """The visible pairs, as the mask dialect defines them: bool [B, H, queries, keys] on the CPU. For small sizes.

        Raises:
            MaskError: a size is no int or negative, or a position or predicate leaves 32 bits.
        """
        import numpy as np
        import torch

        from compilemask.dialects.semantics.mask import visible

        _check_sizes(queries, keys)
        func = self._built.module.body.block.first_op
        assert isinstance(func, dialect.FuncOp)
        batch, heads = self.batch_shape
        result = np.zeros((batch, heads, queries, keys), dtype=np.bool_)
        for b, h in np.ndindex(batch, heads):
            try:
                result[b, h] = visible(func, self.arguments(b, h), queries, keys)
            except OverflowError as error:
                raise MaskError(f"@{self.name} cannot be computed for {queries} x {keys} pairs: {error}") from None
        return torch.from_numpy(result)

    def arguments(self, batch: int = 0, head: int = 0) -> list[int | np.ndarray]:
        """The parameters' values for one (batch, head), in order: an int, or a table of shape [n] in host memory."""
        result: list[int | np.ndarray] = []
        for parameter in self.parameters:
            table = parameter.value
            if isinstance(table, int):
                result.append(table)
                continue
            if table.device.type == "meta":
                raise MaskError(f"@{self.name}: {parameter.name} is on meta, where it has no values")
            result.append(table[min(batch, table.shape[0] - 1), min(head, table.shape[1] - 1)].cpu().numpy())
        return result

    def named(self, name: str) -> Mask:
        """The same mask under another name in IR.

        Raises:
            MaskError: the name is not an identifier.
        """
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise MaskError(f"a mask's name must be an identifier, got {name!r}")
        return _Named(self, name)

    # ---- the algebra ----

    def __and__(self, other: Mask) -> Mask:
        return _Intersect(self, _operand("&", other))

    def __or__(self, other: Mask) -> Mask:
        return _Union(self, _operand("|", other))

    def __sub__(self, other: Mask) -> Mask:
        return _Subtract(self, _operand("-", other))

    def __invert__(self) -> Mask:
        return _Complement(self)

    def place(self, rows: tuple[Scalar, Scalar], cols: tuple[Scalar, Scalar]) -> Mask:
        """This mask on a part of the sequence: queries rows[0] <= q < rows[1] and keys cols[0] <= kv < cols[1].

        The mask counts positions from the begin of the part, and its numbers of queries and keys are those of the
        part; all pairs outside are invisible.

        Args:
            rows, cols: begin and end, at least 0; ints, or int32/int64 data of shape [], [B] or [B, H].

        Raises:
            MaskError: a bound is negative or no integer; where it is used, if the part reaches behind the sequence, or
                the mask does not fit the part.
        """
        from compilemask.language.place import placed

        return placed(self, rows, cols)

    def shift(self, rows: Scalar = 0, cols: Scalar = 0) -> Mask:
        """The mask moved as a picture: (q, kv) is visible if (q - rows, kv - cols) was; what moves in is invisible.

        The mask covers the pairs from (rows, cols) on, so that its numbers of queries and keys are as many less, or, at
        negative distances, more: then the first rows and keys of a longer sequence are left out.

        Args:
            rows, cols: by how much, of any sign; ints, or int32/int64 data of shape [], [B] or [B, H].

        Raises:
            MaskError: a distance is no integer.
        """
        from compilemask.language.place import shifted

        return shifted(self, rows, cols)

    def crop(self, rows: tuple[Scalar, Scalar] | None = None, cols: tuple[Scalar, Scalar] | None = None) -> Mask:
        """What the mask shows for queries rows[0] <= q < rows[1] and keys cols[0] <= kv < cols[1], at the same place.

        `mask.crop((a, b), (c, d)).shift(-a, -c)` is that part alone, as the mask of b - a queries and d - c keys.

        Args:
            rows, cols: begin and end, at least 0, or None for all.

        Raises:
            MaskError: a bound is negative or no integer.
        """
        from compilemask.language.place import cropped

        return cropped(self, rows, cols)

    def __bool__(self) -> bool:
        raise MaskError("a mask is neither true nor false; combine masks with & | - ~ instead of and, or, not")

    def __str__(self) -> str:
        return self.key

    def __repr__(self) -> str:
        shown = (f"{p.name}={p.value if isinstance(p.value, int) else list(p.value.shape)}" for p in self.parameters)
        return f"<mask {self.name}({', '.join(shown)})>"


def _check_sizes(queries: int, keys: int) -> None:
    for name, size in (("queries", queries), ("keys", keys)):
        if isinstance(size, bool) or not isinstance(size, SupportsIndex) or getattr(size, "shape", ()) != ():
            raise MaskError(f"the number of {name} must be an int, got {size!r} ({type(size).__name__})")
        if size < 0:
            raise MaskError(f"a mask has no {queries} x {keys} pairs")


def _operand(symbol: str, value: object) -> Mask:
    if not isinstance(value, Mask):
        raise MaskError(f"{symbol} combines two masks, got {type(value).__name__}")
    return value


class _Combination(Mask):
    """A mask made of others. Its name is put together once: combinations may be deep."""

    def __init__(self, name: str, *operands: Mask) -> None:
        readable = len(name) <= _LONGEST_NAME and all(operand.name != self.LABEL for operand in operands)
        self._name = name if readable else self.LABEL
        self._operands = operands

    @property
    def name(self) -> str:
        return self._name

    @property
    def operands(self) -> tuple[Mask, ...]:
        return self._operands


class _Binary(_Combination):
    WORD: ClassVar[str]
    OPERATION: ClassVar[type[dialect.UnionOp | dialect.IntersectOp | dialect.SubtractOp]]

    def __init__(self, lhs: Mask, rhs: Mask) -> None:
        super().__init__(f"{lhs.name}_{self.WORD}_{rhs.name}", lhs, rhs)

    def emit(self, builder: Builder) -> SSAValue:
        lhs, rhs = (builder.region(operand) for operand in self.operands)
        return builder.add(self.OPERATION(lhs, rhs), self.WORD)


class _Union(_Binary):
    WORD: ClassVar[str] = "or"
    OPERATION: ClassVar = dialect.UnionOp


class _Intersect(_Binary):
    WORD: ClassVar[str] = "and"
    OPERATION: ClassVar = dialect.IntersectOp


class _Subtract(_Binary):
    WORD: ClassVar[str] = "without"
    OPERATION: ClassVar = dialect.SubtractOp


class _Complement(_Combination):
    def __init__(self, inner: Mask) -> None:
        super().__init__(f"not_{inner.name}", inner)

    def emit(self, builder: Builder) -> SSAValue:
        return builder.add(dialect.ComplementOp(builder.region(self.operands[0])), "complement")


class _Named(_Combination):
    def __init__(self, inner: Mask, name: str) -> None:
        super().__init__(name, inner)
        self._name = name

    def emit(self, builder: Builder) -> SSAValue:
        return builder.region(self.operands[0])


__all__ = ["Mask"]
