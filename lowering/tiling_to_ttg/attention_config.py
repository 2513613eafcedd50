"""How the Hopper attention kernel is built: stages, schedule, how warpgroups take turns, registers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import TypeAlias

from xdsl.dialects.builtin import AnyFloat, BFloat16Type, Float16Type

from compilemask.errors import LoweringError

TILE = 128
"""Keys of a descriptor's tile."""
ROWS = 64
"""Rows of a warpgroup: those of one wgmma."""
CONSUMERS = TILE // ROWS
"""Warpgroups that compute a tile of 128 rows."""
HEAD_DIMS = (64, 128)
COLUMNS = 8
"""Head dimensions are a multiple of it: rows are a multiple of 16 bytes."""
SHARED_MEMORY = 227 * 1024
"""Bytes that a program may have on sm_90."""
SHARED_REGISTERS = 128
"""Of a thread, where two programs of eight warps share a processor."""
BARRIER_BYTES = 1024
"""More than all mbarriers and the record of a tile take."""

Patch: TypeAlias = tuple[int, ...]
"""Positions of an image that are a tile: (height, width) or (frames, height, width)."""


class Schedule(Enum):
    """Which tiles a program computes."""

    GRID = "grid"
    """One: a program per tile, query head and batch."""
    STATIC = "static"
    """Every n-th, of n programs."""
    ATOMIC = "atomic"
    """The next one that no program has taken, by a counter in global memory."""

    @classmethod
    def choose(cls, tiles: int, programs: int) -> Schedule:
        """Persistent programs if there are more tiles than programs that run at once."""
        return cls.ATOMIC if tiles > programs else cls.GRID


@dataclass(frozen=True)
class HopperConfig:
    """One variant of the kernel, which computes a tile of rows and visits 128 keys at a time.

    `consumers` warpgroups compute 64 rows each, together those of a descriptor's query tile: 64, 128 or 192. One leaves
    room for a second program on the same processor, which computes while the first one waits. `stages` buffers each
    hold a tile of keys or values, and `more_keys` of keys, which then are copied one tile ahead of values.
    `named_barriers` lets the warpgroups take turns by hardware barriers instead of mbarriers. `hold_softmax` repeats
    the wait for values after the softmax: ptxas hoists the wait for their product above it otherwise, and nothing
    overlaps. `pin_rounding` converts weights where they are computed: LLVM sinks that into the next step otherwise,
    where f32 weights cost twice the registers. The peak of a row is left where it is until a score exceeds it by more
    than `slack` in base 2: sums and output need not fade, and weights up to 2^slack are as exact as others.
    With `keeps_peaks` it is left where the first visit has put it, and no visit looks for a larger one; tiles of which
    that makes a row inexact are computed again at the end, as without it (`attention_again.py`); for bf16, whose range
    is that of f32.
    `clean_values` has a warp zero the values of keys that no row of a partial tile sees, if there may be keys that no
    query sees, so that NaN and infinity in them reach nobody; without it all values of visited tiles must be finite.
    With `query_patch` and `key_patch` tiles of queries and keys are such patches of an image
    (`lowering/patch_grid.py`).
    """

    consumers: int = CONSUMERS
    stages: int = 2
    more_keys: int = 0
    schedule: Schedule = Schedule.GRID
    named_barriers: bool = True
    hold_softmax: bool = True
    pin_rounding: bool = True
    slack: float = 8.0
    keeps_peaks: bool = False
    clean_values: bool = True
    consumer_registers: int = 240
    producer_registers: int = 32
    query_patch: Patch | None = None
    key_patch: Patch | None = None

    def __post_init__(self) -> None:
        if self.consumers not in (1, 2, 3):
            raise LoweringError(f"{self.consumers} consumers; 1, 2 or 3 warpgroups compute a tile")
        if self.stages < min(self.consumers, 2):
            raise LoweringError(f"{self.stages} stages; warpgroups that take turns use two tiles at once")
        check_patches(self.query_patch, self.key_patch, self.rows)

    @property
    def rows(self) -> int:
        """R of the descriptors that the kernel follows."""
        return self.consumers * ROWS

    @property
    def key_stages(self) -> int:
        """Buffers for tiles of keys."""
        return self.stages + self.more_keys

    @property
    def keys_run_ahead(self) -> bool:
        """Whether keys of a tile are copied before the values of the one before."""
        return self.more_keys > 0

    @property
    def programs(self) -> int:
        """Programs that a processor runs at once."""
        return programs_at_once(self.rows)

    @property
    def tests_together(self) -> int:
        """How many bits are tested together (`inline_ptx.KEEP_WHERE_SET`), by measurement: 1 where nearly all visits
        are masked, 2 where others would suffer, or registers are few.
        """
        return 1 if self.query_patch is not None and self.consumers == CONSUMERS else 2

    @property
    def max_registers(self) -> int | None:
        """Of a thread when a program starts; None for what one program can have."""
        return SHARED_REGISTERS if self.programs > 1 else None

    @property
    def is_persistent(self) -> bool:
        """Whether a program computes more than one tile."""
        return self.schedule is not Schedule.GRID

    def shared_bytes(self, head_dim: int) -> int:
        """An upper bound on the shared memory of a program."""
        row = 2 * head_dim
        query_buffers = 2 if self.is_persistent else 1
        return query_buffers * self.rows * row + (self.key_stages + self.stages) * TILE * row + BARRIER_BYTES

    @classmethod
    def choose(
        cls,
        head_dim: int,
        element_type: AnyFloat,
        rows: int = 128,
        schedule: Schedule = Schedule.GRID,
        *,
        keeps_peaks: bool = True,
    ) -> HopperConfig:
        """The variant for a head dimension, element type and R of a descriptor. Raises LoweringError if there is none.

        With `keeps_peaks` rows keep their first peaks where that can be; scores must not be modified.

        At D = 64 exponentials take as long as products: three warpgroups hide one behind the other better than two. A
        thread has no registers for an output of D = 128 then, nor to hold the softmax behind a product.
        """
        check_supported(head_dim, element_type)
        match head_dim, rows:
            case 128, 128:
                chosen = cls()
            case 128, 64:
                # A persistent program has a second buffer for queries there. Values have one buffer, which is free
                # sooner where the wait for their product comes before the softmax.
                is_grid = schedule is Schedule.GRID
                chosen = cls(consumers=1, stages=1, more_keys=int(is_grid), hold_softmax=not is_grid)
            case 64, 64:
                chosen = cls(consumers=1)
            case 64, 128:
                chosen = cls(stages=4, consumer_registers=232, producer_registers=40)
            case 64, 192:
                chosen = cls(consumers=3, stages=4, hold_softmax=False, slack=0.0, consumer_registers=160)
            case _:
                raise LoweringError(f"no Hopper kernel for head_dim {head_dim} in tiles of {rows} rows")
        # Persistent programs of D = 128 that share a processor would spill registers.
        has_room = (head_dim, rows) != (128, 64) or schedule is Schedule.GRID
        keeps_peaks = keeps_peaks and has_room and isinstance(element_type, BFloat16Type)
        return replace(chosen, schedule=schedule, keeps_peaks=keeps_peaks)


def programs_at_once(rows: int) -> int:
    """How many programs with tiles of so many rows a processor runs at once."""
    return 2 if rows == ROWS else 1


def kernel_head_dim(head_dim: int) -> int | None:
    """D of the kernel that takes this one: TMA reads columns behind the last as 0 and does not write them."""
    fitting = (dim for dim in HEAD_DIMS if head_dim <= dim)
    return None if head_dim % COLUMNS else next(fitting, None)


def check_supported(head_dim: int, element_type: AnyFloat) -> None:
    """Raise LoweringError if no variant of the kernel takes such inputs."""
    if head_dim not in HEAD_DIMS or not isinstance(element_type, Float16Type | BFloat16Type):
        raise LoweringError(f"no Hopper kernel for head_dim {head_dim} in {element_type}; 64 and 128 in f16 and bf16")


def slice_rows(patch: Patch) -> int:
    """Positions of a slice of a patch across its outermost axis."""
    return prod(patch[1:])


def check_patches(query_patch: Patch | None, key_patch: Patch | None, rows: int) -> None:
    """Raise LoweringError unless there are no patches, or those of one image: of `rows` queries, and of a tile of keys.

    Warpgroups share them: 64 positions are whole slices.
    """
    if query_patch is None and key_patch is None:
        return
    if query_patch is None or key_patch is None or len(query_patch) != len(key_patch):
        raise LoweringError(f"patches {query_patch} of queries and {key_patch} of keys are not cut from one image")
    for patch, positions in ((query_patch, rows), (key_patch, TILE)):
        if len(patch) not in (2, 3) or min(patch) < 1 or prod(patch) != positions or ROWS % slice_rows(patch):
            raise LoweringError(
                f"a patch {patch} is no tile of {positions} positions along 2 or 3 axes, "
                f"of which {ROWS} are whole slices of its outermost axis"
            )
