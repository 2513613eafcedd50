"""Layouts of the `ttg` dialect: how a tensor lies in threads' registers, and how a buffer lies in shared memory.

A register layout is the encoding of a tensor type, a shared layout a parameter of `!ttg.memdesc`. All are printed in
full, `#ttg.blocked<{sizePerThread = [8], ...}>`, as Triton's parser takes them without aliases. One CTA per cluster:
the parameters that split a tensor over several CTAs are not defined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, BoolAttr, DictionaryAttr, IntAttr, i1
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.narrowing import is_array, is_integer, is_plain_integer

WARP_SIZE = 32
WGMMA_ROWS = 16
"""Rows of a wgmma instruction per warp; the four warps of a warpgroup take 64."""


# ---------------------------------------------------------------- parameters as a dictionary


class _DictionaryParameters(ParametrizedAttribute):
    """Parameters printed as `<{key = value, ...}>`, those that equal their default left out."""

    KEYS: ClassVar[Mapping[str, str]] = {}
    DEFAULTS: ClassVar[Mapping[str, Attribute]] = {}

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            position = parser.pos
            given = parser.parse_attribute()
        if not isinstance(given, DictionaryAttr):
            parser.raise_error(f"#{cls.name} has a dictionary of parameters", position, parser.pos)
        entries = dict(given.data)
        parameters: list[Attribute] = []
        for key in cls.KEYS.values():
            value = entries.pop(key, None)
            if value is None and key not in cls.DEFAULTS:
                parser.raise_error(f"#{cls.name} needs {key}", position, parser.pos)
            parameters.append(cls.DEFAULTS[key] if value is None else _from_dictionary(value))
        if entries:
            parser.raise_error(f"#{cls.name} has no {', '.join(entries)}", position, parser.pos)
        return parameters

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string("<{")
        separator = ""
        for field, key in self.KEYS.items():
            value = getattr(self, field)
            if self.DEFAULTS.get(key) != value:
                printer.print_string(f"{separator}{key} = ")
                _print_value(printer, value)
                separator = ", "
        printer.print_string("}>")


def _from_dictionary(value: Attribute) -> Attribute:
    if is_integer(value) and value.type != i1:
        return IntAttr(value.value.data)
    if is_array(value):
        return ArrayAttr([_from_dictionary(entry) for entry in value])
    return value


def _print_value(printer: Printer, value: Attribute) -> None:
    if is_plain_integer(value):
        printer.print_string(str(value.data))
    elif is_integer(value):
        printer.print_string("true" if value.value.data else "false")
    elif is_array(value):
        with printer.in_square_brackets():
            printer.print_list(value.data, lambda entry: _print_value(printer, entry))
    else:
        printer.print_attribute(value)


def _ints(values: Sequence[int]) -> ArrayAttr[IntAttr]:
    return ArrayAttr([IntAttr(value) for value in values])


def _list(values: ArrayAttr[IntAttr]) -> list[int]:
    return [value.data for value in values]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise VerifyException(message)


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _require_permutation(order: ArrayAttr[IntAttr]) -> None:
    _require(sorted(_list(order)) == list(range(len(order))), f"order {_list(order)} is not a permutation")


# ---------------------------------------------------------------- registers


class RegisterLayout(_DictionaryParameters, ABC):
    """How a tensor's elements lie in registers, lanes and warps."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Dimensions of the tensors that it lays out."""

    @property
    @abstractmethod
    def num_warps(self) -> int:
        """Warps that hold the tensor."""


@irdl_attr_definition
class BlockedLayout(RegisterLayout):
    """Each thread holds a block of `size_per_thread`, threads and warps tile the tensor, `order[0]` fastest."""

    name = "ttg.blocked"
    size_per_thread: ArrayAttr[IntAttr]
    threads_per_warp: ArrayAttr[IntAttr]
    warps_per_cta: ArrayAttr[IntAttr]
    order: ArrayAttr[IntAttr]
    KEYS: ClassVar[Mapping[str, str]] = {
        "size_per_thread": "sizePerThread",
        "threads_per_warp": "threadsPerWarp",
        "warps_per_cta": "warpsPerCTA",
        "order": "order",
    }

    @classmethod
    def of(
        cls,
        size_per_thread: Sequence[int],
        threads_per_warp: Sequence[int],
        warps_per_cta: Sequence[int],
        order: Sequence[int],
    ) -> BlockedLayout:
        """A blocked layout from Python numbers."""
        return cls(_ints(size_per_thread), _ints(threads_per_warp), _ints(warps_per_cta), _ints(order))

    @property
    def rank(self) -> int:
        return len(self.order)

    @property
    def num_warps(self) -> int:
        return prod(_list(self.warps_per_cta))

    def verify(self) -> None:
        tiles = (self.size_per_thread, self.threads_per_warp, self.warps_per_cta)
        _require(all(len(tile) == self.rank > 0 for tile in tiles), f"#{self.name}: ranks differ")
        _require(all(_is_power_of_two(n) for tile in tiles for n in _list(tile)), f"#{self.name}: powers of two only")
        _require(prod(_list(self.threads_per_warp)) == WARP_SIZE, f"#{self.name}: a warp has {WARP_SIZE} threads")
        _require_permutation(self.order)


@irdl_attr_definition
class LinearLayout(RegisterLayout):
    """Coordinates as XOR of basis vectors, one for each bit of the register, lane and warp index."""

    name = "ttg.linear"
    register: ArrayAttr[ArrayAttr[IntAttr]]
    lane: ArrayAttr[ArrayAttr[IntAttr]]
    warp: ArrayAttr[ArrayAttr[IntAttr]]
    block: ArrayAttr[ArrayAttr[IntAttr]]
    KEYS: ClassVar[Mapping[str, str]] = {key: key for key in ("register", "lane", "warp", "block")}

    @classmethod
    def of(
        cls, register: Sequence[Sequence[int]], lane: Sequence[Sequence[int]], warp: Sequence[Sequence[int]]
    ) -> LinearLayout:
        """A linear layout of one CTA from Python numbers."""
        bits = [ArrayAttr([_ints(basis) for basis in bases]) for bases in (register, lane, warp)]
        return cls(bits[0], bits[1], bits[2], ArrayAttr([]))

    @property
    def bases(self) -> list[list[int]]:
        """All basis vectors: registers, lanes, warps, CTAs."""
        return [_list(basis) for bases in (self.register, self.lane, self.warp, self.block) for basis in bases]

    @property
    def rank(self) -> int:
        return len(self.bases[0])

    @property
    def num_warps(self) -> int:
        return 1 << len(self.warp)

    def verify(self) -> None:
        _require(1 << len(self.lane) == WARP_SIZE, f"#{self.name}: five lane bases are needed")
        _require(not self.block.data, f"#{self.name}: one CTA has no block basis")
        _require(len({len(basis) for basis in self.bases}) == 1, f"#{self.name}: bases differ in rank")
        single_bit = all(sum(map(bool, basis)) <= 1 and _is_power_of_two(max(basis) or 1) for basis in self.bases)
        _require(single_bit, f"#{self.name}: a basis moves along one dimension by a power of two")
        used = [tuple(basis) for basis in self.bases if any(basis)]
        _require(len(set(used)) == len(used), f"#{self.name}: a basis vector occurs twice")


@irdl_attr_definition
class NvidiaMmaLayout(RegisterLayout):
    """The accumulator of tensor cores; version 3 is wgmma, `instr_shape` being [16, N, K]."""

    name = "ttg.nvidia_mma"
    version_major: IntAttr
    version_minor: IntAttr
    warps_per_cta: ArrayAttr[IntAttr]
    instr_shape: ArrayAttr[IntAttr]
    KEYS: ClassVar[Mapping[str, str]] = {
        "version_major": "versionMajor",
        "version_minor": "versionMinor",
        "warps_per_cta": "warpsPerCTA",
        "instr_shape": "instrShape",
    }

    @classmethod
    def wgmma(cls, n: int, k: int = 16, warps: Sequence[int] = (4, 1)) -> NvidiaMmaLayout:
        """Hopper's accumulator of instructions 64 x n x k; `warps` along rows and columns."""
        return cls(IntAttr(3), IntAttr(0), _ints(warps), _ints((WGMMA_ROWS, n, k)))

    @property
    def rank(self) -> int:
        return len(self.warps_per_cta)

    @property
    def num_warps(self) -> int:
        return prod(_list(self.warps_per_cta))

    def verify(self) -> None:
        warps, shape = _list(self.warps_per_cta), _list(self.instr_shape)
        _require(self.version_major.data in (2, 3), f"#{self.name}: version {self.version_major.data} is unknown")
        _require(len(warps) in (2, 3) and all(map(_is_power_of_two, warps)), f"#{self.name}: warpsPerCTA {warps}")
        if self.version_major.data == 3:
            fits = len(shape) == 3 and shape[0] == WGMMA_ROWS and shape[1] % 8 == 0 and 8 <= shape[1] <= 256
            _require(fits and shape[2] in (8, 16, 32), f"#{self.name}: {shape} is no wgmma instruction")
            _require(warps[0] % 4 == 0, f"#{self.name}: wgmma needs four warps along rows, got {warps}")


@irdl_attr_definition
class SliceLayout(RegisterLayout):
    """The parent layout with dimension `dim` removed: of a reduction's result, or before `tt.expand_dims`."""

    name = "ttg.slice"
    dim: IntAttr
    parent: RegisterLayout
    KEYS: ClassVar[Mapping[str, str]] = {"dim": "dim", "parent": "parent"}

    @classmethod
    def of(cls, dim: int, parent: RegisterLayout) -> SliceLayout:
        """The slice of a layout along one dimension."""
        return cls(IntAttr(dim), parent)

    @property
    def rank(self) -> int:
        return self.parent.rank - 1

    @property
    def num_warps(self) -> int:
        return self.parent.num_warps

    def verify(self) -> None:
        _require(0 <= self.dim.data < self.parent.rank > 1, f"#{self.name}: no dimension {self.dim.data} in the parent")


@irdl_attr_definition
class DotOperandLayout(RegisterLayout):
    """An operand of a matrix product held in registers; `k_width` elements along K side by side (0: not given)."""

    name = "ttg.dot_op"
    op_idx: IntAttr
    parent: RegisterLayout
    k_width: IntAttr
    KEYS: ClassVar[Mapping[str, str]] = {"op_idx": "opIdx", "parent": "parent", "k_width": "kWidth"}
    DEFAULTS: ClassVar[Mapping[str, Attribute]] = {"kWidth": IntAttr(0)}

    @classmethod
    def of(cls, op_idx: int, parent: RegisterLayout, k_width: int = 0) -> DotOperandLayout:
        """Operand 0 (left) or 1 (right) of products whose accumulator has the layout `parent`."""
        return cls(IntAttr(op_idx), parent, IntAttr(k_width))

    @property
    def rank(self) -> int:
        return self.parent.rank

    @property
    def num_warps(self) -> int:
        return self.parent.num_warps

    def verify(self) -> None:
        _require(self.op_idx.data in (0, 1), f"#{self.name}: opIdx {self.op_idx.data} is not 0 or 1")
        if isinstance(self.parent, NvidiaMmaLayout):
            _require(self.k_width.data > 0, f"#{self.name}: kWidth is needed")
            hopper = self.parent.version_major.data == 3
            _require(not hopper or self.op_idx.data == 0, f"#{self.name}: wgmma takes only operand 0 from registers")


# ---------------------------------------------------------------- shared memory


@irdl_attr_definition
class SharedMemorySpace(ParametrizedAttribute):
    """`#ttg.shared_memory`: the memory space of buffers in shared memory."""

    name = "ttg.shared_memory"


class SharedLayout(_DictionaryParameters):
    """How a buffer's elements lie in shared memory."""


@irdl_attr_definition
class NvmmaSharedLayout(SharedLayout):
    """Rows of `swizzle` bytes, permuted as TMA writes and wgmma reads them; 0 for no swizzle."""

    name = "ttg.nvmma_shared"
    swizzle: IntAttr
    transposed: BoolAttr
    element_bit_width: IntAttr
    rank_: IntAttr
    KEYS: ClassVar[Mapping[str, str]] = {
        "swizzle": "swizzlingByteWidth",
        "transposed": "transposed",
        "element_bit_width": "elementBitWidth",
        "rank_": "rank",
    }
    DEFAULTS: ClassVar[Mapping[str, Attribute]] = {"rank": IntAttr(2)}

    @classmethod
    def of(
        cls, element_bit_width: int, *, swizzle: int = 128, transposed: bool = False, rank: int = 2
    ) -> NvmmaSharedLayout:
        """A layout from Python numbers; `transposed` if the first of the last two dimensions is contiguous."""
        flag = BoolAttr.from_bool(transposed)
        return cls(IntAttr(swizzle), flag, IntAttr(element_bit_width), IntAttr(rank))

    @property
    def rank(self) -> int:
        """Dimensions of the buffers that it lays out, without those of an array of buffers."""
        return self.rank_.data

    @property
    def is_transposed(self) -> bool:
        """Whether the first of the last two dimensions is contiguous."""
        return bool(self.transposed.value.data)

    def require_rows(self, shape: Sequence[int]) -> None:
        """Raise VerifyException unless the contiguous dimension of a buffer fills the swizzled rows."""
        row = shape[-2] if self.is_transposed else shape[-1]
        size = row * self.element_bit_width.data // 8
        _require(size >= self.swizzle.data, f"rows of {size} bytes in #{self.name} with {self.swizzle.data} of swizzle")

    def verify(self) -> None:
        _require(self.swizzle.data in (0, 32, 64, 128), f"#{self.name}: {self.swizzle.data} bytes of swizzle")
        _require(
            self.element_bit_width.data in (8, 16, 32), f"#{self.name}: {self.element_bit_width.data}-bit elements"
        )
        _require(1 <= self.rank <= 5, f"#{self.name}: rank {self.rank}")
        _require(self.rank > 1 or self.swizzle.data == 0, f"#{self.name}: one dimension takes no swizzle")


@irdl_attr_definition
class SwizzledSharedLayout(SharedLayout):
    """Rows in which groups of `vec` elements are permuted by row; `vec = perPhase = maxPhase = 1` is plain."""

    name = "ttg.swizzled_shared"
    vec: IntAttr
    per_phase: IntAttr
    max_phase: IntAttr
    order: ArrayAttr[IntAttr]
    KEYS: ClassVar[Mapping[str, str]] = {
        "vec": "vec",
        "per_phase": "perPhase",
        "max_phase": "maxPhase",
        "order": "order",
    }

    @classmethod
    def of(cls, order: Sequence[int], *, vec: int = 1, per_phase: int = 1, max_phase: int = 1) -> SwizzledSharedLayout:
        """A layout from Python numbers, by default without swizzle."""
        return cls(IntAttr(vec), IntAttr(per_phase), IntAttr(max_phase), _ints(order))

    @property
    def rank(self) -> int:
        """Dimensions of the buffers that it lays out, without those of an array of buffers."""
        return len(self.order)

    def verify(self) -> None:
        numbers = (self.vec.data, self.per_phase.data, self.max_phase.data)
        _require(all(map(_is_power_of_two, numbers)), f"#{self.name}: powers of two only")
        _require_permutation(self.order)


BARRIER_LAYOUT = SwizzledSharedLayout.of([0])
"""The layout of mbarriers and of plain one-dimensional buffers."""

LAYOUTS: tuple[type[ParametrizedAttribute], ...] = (
    BlockedLayout,
    LinearLayout,
    NvidiaMmaLayout,
    SliceLayout,
    DotOperandLayout,
    SharedMemorySpace,
    NvmmaSharedLayout,
    SwizzledSharedLayout,
)
