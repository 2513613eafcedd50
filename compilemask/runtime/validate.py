"""Checks of what a caller hands to attention: every fault is raised here, before anything is launched."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_gradtrackingtensor
from torch.autograd import forward_ad

from compilemask.dialects.tiling_score import LARGEST_NUMBER
from compilemask.errors import (
    DescriptorError,
    DeviceError,
    DTypeError,
    GradientError,
    MaskError,
    ScaleError,
    ScoreError,
    ShapeError,
)
from compilemask.lowering.descriptor_layout import KEYS, Layout
from compilemask.lowering.patch_grid import Patches
from compilemask.passes.score_gradient import float_tables
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.score_gradient import gradient_op
from compilemask.runtime.scoring import Scoring

if TYPE_CHECKING:
    from compilemask.score import Score

MAX_HEAD_DIM = 256
"""Largest D of the device's kernel."""
MAX_GRID = 65535
"""Largest number of heads or batches, a limit of CUDA grids."""
MAX_LENGTH = 2**28
"""Longest sequence: positions are 32-bit integers, and shared patterns are evaluated far behind all of them."""
TILE_ROWS = range(16, 257, 16)
"""Rows that query tiles may have."""
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_NAMES = ("q", "k", "v")


class Problem(NamedTuple):
    """Sizes of one attention."""

    batch: int
    query_heads: int
    key_heads: int
    queries: int
    keys: int
    head_dim: int


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Problem:
    """Sizes of q [B, Hq, Sq, D], k and v [B, Hkv, Skv, D]. Raises ShapeError, DTypeError or DeviceError."""
    tensors = dict(zip(_NAMES, (q, k, v), strict=True))
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise DTypeError(f"{name} is a {type(tensor).__name__}, expected a torch.Tensor")
        if tensor.is_nested or tensor.layout != torch.strided:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            raise ShapeError(f"{name} is a {kind} tensor, expected a dense (torch.strided) one")
        if tensor.dim() != 4:
            raise ShapeError(
                f"{name} has shape {tuple(tensor.shape)}, expected rank 4: [batch, heads, positions, head_dim]"
            )
    for name, tensor in list(tensors.items())[1:]:
        if tensor.device != q.device:
            raise DeviceError(f"{name} is on {tensor.device}, q on {q.device}; expected one device")
        if tensor.dtype != q.dtype:
            raise DTypeError(f"{name} is {tensor.dtype}, q is {q.dtype}; expected one dtype")
    _check_dtype(q)
    _check_sizes(q, k, v)
    return Problem(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3])


_problems: dict[tuple[object, ...], Problem] = {}
_KEPT_PROBLEMS = 1024


def known_problem(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Problem:
    """As `check_tensors`, of dense tensors without symbolic sizes: equal sizes, types and devices are checked once."""
    key = (q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device)
    found = _problems.get(key)
    if found is None:
        found = check_tensors(q, k, v)
        if len(_problems) >= _KEPT_PROBLEMS:
            _problems.clear()
        _problems[key] = found
    return found


def _check_dtype(q: torch.Tensor) -> None:
    allowed = _FLOATS + ((torch.float64,) if q.device.type == "cpu" else ())
    if q.device.type not in ("cpu", "cuda"):
        raise DeviceError(f"q is on {q.device}; there is a backend for cpu and cuda")
    if q.dtype not in allowed:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise DTypeError(f"q is {q.dtype}; on {q.device.type} expected one of {names}")


def _check_sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape[0] != q.shape[0]:
            raise ShapeError(f"{name} has batch {tensor.shape[0]}, q has {q.shape[0]}; expected the same")
        if tensor.shape[3] != q.shape[3]:
            raise ShapeError(f"{name} has head_dim {tensor.shape[3]}, q has {q.shape[3]}; expected the same")
    if k.shape[1:3] != v.shape[1:3]:
        raise ShapeError(
            f"k has {k.shape[1]} heads x {k.shape[2]} positions, v has {v.shape[1]} x {v.shape[2]}; expected the same"
        )
    if q.shape[3] < 1:
        raise ShapeError("head_dim is 0, expected at least 1")
    if q.device.type == "cuda" and q.shape[3] > MAX_HEAD_DIM:
        raise ShapeError(f"head_dim is {q.shape[3]}; the device's kernel takes at most {MAX_HEAD_DIM}")
    heads, key_heads = q.shape[1], k.shape[1]
    if (key_heads == 0) != (heads == 0) or (key_heads and heads % key_heads):
        raise ShapeError(f"q has {heads} heads, k has {key_heads}; expected a multiple")
    if q.device.type == "cuda" and max(heads, q.shape[0]) > MAX_GRID:
        raise ShapeError(f"batch {q.shape[0]} and heads {heads} must be at most {MAX_GRID} on a GPU")


def check_scale(scale: float | None, head_dim: int) -> float:
    """The scale of the scores, 1 / sqrt(head_dim) if not given. Raises ScaleError unless it is a finite f32."""
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise DTypeError(f"scale is a {type(scale).__name__}, expected a number")
    try:
        number = float(scale)
    except OverflowError:  # an int, and too long to be printed
        raise ScaleError(f"scale is an int of {int(scale).bit_length()} bits, expected a finite number") from None
    if not abs(number) <= LARGEST_NUMBER:
        raise ScaleError(f"scale is {scale}, expected a finite float32 number")
    return number


def check_lengths(queries: int, keys: int) -> None:
    """Raise ShapeError unless both lengths are 0..2^28."""
    if type(queries) is type(keys) is int and 0 <= queries <= MAX_LENGTH and 0 <= keys <= MAX_LENGTH:
        return
    for name, length in (("queries", queries), ("keys", keys)):
        if isinstance(length, bool) or not isinstance(length, int):
            raise DTypeError(f"{name} is a {type(length).__name__}, expected an int")
        if not 0 <= length <= MAX_LENGTH:
            raise ShapeError(f"{name} is {length}, expected 0 to {MAX_LENGTH}")


def check_rows(rows: int) -> None:
    """Raise ShapeError unless query tiles may have so many rows."""
    if isinstance(rows, bool) or not isinstance(rows, int):
        raise DTypeError(f"rows is a {type(rows).__name__}, expected an int")
    if rows not in TILE_ROWS:
        raise ShapeError(
            f"rows is {rows}, expected a multiple of {TILE_ROWS.step} from {TILE_ROWS[0]} to {TILE_ROWS[-1]}"
        )


def check_patches(patches: Patches, queries: int, keys: int, rows: int | None) -> None:
    """Raise ShapeError unless tiles may be patches of an image in a sequence of these lengths, DTypeError unless they
    are `Patches`.
    """
    if not isinstance(patches, Patches):
        raise DTypeError(f"patches are a {type(patches).__name__}, expected compilemask.Patches")
    if (queries, keys) != (patches.length, patches.length):
        raise ShapeError(f"{queries} queries and {keys} keys, but patches are of {patches.length} positions")
    tiles = (patches.queries.tile, patches.keys.tile)
    if tiles[0] not in TILE_ROWS or tiles[1] != KEYS:
        raise ShapeError(
            f"patches {patches.query_patch} and {patches.key_patch} hold {tiles[0]} queries and {tiles[1]} keys: "
            f"expected a multiple of {TILE_ROWS.step} up to {TILE_ROWS[-1]}, and {KEYS}"
        )
    if rows not in (None, tiles[0]):
        raise ShapeError(f"rows is {rows}, but a patch holds {tiles[0]} queries")


def check_mask_shape(shape: tuple[int, int], batch: int, heads: int) -> None:
    """Raise MaskError unless a mask for `shape` = (B or 1, H or 1) fits `batch` x `heads`."""
    if shape == (1, 1):
        return
    for name, of_mask, expected in (("batch", shape[0], batch), ("heads", shape[1], heads)):
        if of_mask not in (1, expected):
            raise MaskError(f"the mask has {name} {of_mask}, q has {expected}; expected 1 or {expected}")


def check_descriptor(layout: Layout, device: torch.device, problem: Problem, where: torch.device) -> None:
    """Raise DescriptorError, MaskError or DeviceError unless a descriptor fits q, k and v on device `where`."""
    if layout.lengths != (problem.queries, problem.keys):
        raise DescriptorError(
            f"the descriptor was built for {layout.lengths[0]} queries and {layout.lengths[1]} keys, "
            f"q and k have {problem.queries} and {problem.keys}"
        )
    if device != where:
        raise DeviceError(f"the descriptor is on {device}, q on {where}; expected one device")
    check_mask_shape(layout.batch_shape, problem.batch, problem.query_heads)


def check_unpatched(descriptor: Descriptor) -> None:
    """Raise DescriptorError if positions are in patched order, in which a score modification cannot count them."""
    if descriptor.layout.patches is not None:
        raise DescriptorError("modified scores need a descriptor whose tiles are no patches")


def check_score(score: Score, problem: Problem, where: torch.device, return_lse: bool) -> Scoring:
    """A score modification as an attention on device `where` takes it. Raises ScoreError unless it fits."""
    plan = getattr(score, "plan", None)
    if plan is None:
        raise ScoreError(f"score is a {type(score).__name__}, expected a Score, such as score.softcap(30.0)")
    if return_lse and not plan.has_lse:
        raise ScoreError("pointwise weights have no log-sum-exp; return_lse must be False")
    for name, table, *room in plan.captured:
        if table.device != where:
            raise ScoreError(f"{name} of the score is on {table.device}, q on {where}; expected one device")
        if table.dtype == torch.float64 and where.type != "cpu":
            raise ScoreError(f"{name} of the score is float64; on {where.type} expected float32, float16 or bfloat16")
        sizes = (("batch", table.shape[0], problem.batch), ("heads", table.shape[1], problem.query_heads))
        for axis, size, expected in sizes:
            if size not in (1, expected):
                raise ScoreError(f"{name} of the score has {axis} {size}, q has {expected}; expected 1 or {expected}")
        for axis, entries, needed in zip(("queries", "keys"), room, (problem.queries, problem.keys), strict=True):
            if entries is not None and entries < needed:
                raise ScoreError(f"{name} of the score has entries for {entries} {axis}, got {needed} {axis}")
    return Scoring(plan.text, [table.data for table in plan.captured], list(plan.numbers))


def check_no_tangents(*tensors: torch.Tensor) -> None:
    """Raise GradientError for tensors with a tangent of forward-mode differentiation: attention has none."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise GradientError("attention has no forward-mode derivative (jvp); it has a gradient")


def needs_gradient(*tensors: torch.Tensor) -> bool:
    """Whether a gradient will be expected, or may be: a traced torch.vmap hides whether one is.

    Raises GradientError inside torch.func.grad, which takes no operators of others.
    """
    if not torch.is_grad_enabled():
        return False
    if torch.compiler.is_compiling():
        return torch._C._are_functorch_transforms_active() or any(x.requires_grad for x in tensors)
    if torch._C._are_functorch_transforms_active():
        if any(is_gradtrackingtensor(tensor) for tensor in tensors):
            raise GradientError("attention cannot stand in torch.func.grad; use torch.autograd.grad")
        return any(_unmapped(tensor).requires_grad for tensor in tensors)
    return any(tensor.requires_grad for tensor in tensors)


def _unmapped(x: torch.Tensor) -> torch.Tensor:
    """What torch.vmap has made a mapped tensor of."""
    while is_batchedtensor(x):
        x = get_unwrapped(x)
    return x


def check_transposed(descriptor: Descriptor) -> None:
    """Raise GradientError unless a descriptor has its transpose, DescriptorError unless a backend takes its rows."""
    if descriptor.transposed is None:
        raise GradientError(
            "q, k or v requires a gradient, and the descriptor was built without its transpose; "
            "build it with compile(mask).descriptor(..., gradient=True), or call attention under torch.no_grad()"
        )
    if descriptor.device.type == "cuda" and descriptor.layout.rows != 128:
        raise DescriptorError(
            f"the descriptor has tiles of {descriptor.layout.rows} query rows; for gradients on a GPU expected 128"
        )


def check_score_gradient(scoring: Scoring) -> None:
    """Raise GradientError unless a score modification has a gradient, with regard to all that it reads."""
    if torch.compiler.is_compiling():
        return
    for table in scoring.tensors:
        # A view knows nothing of a gradient that its tensor asked for later, or of one made without gradients.
        if table.grad_fn is None and table._base is not None and table._base.requires_grad:
            raise GradientError(
                "a tensor of the score requires a gradient, and did not where the score was made; make it again"
            )
    if scoring.region:
        gradient_op(scoring.text, tuple(float_tables(scoring.op)) if scoring.op is not None else ())
