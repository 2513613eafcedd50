"""FlexAttention's interface: the same arguments, the same results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from compilemask.errors import MaskError, ShapeError
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent, Length, by_mask
from compilemask.language.from_mask_mod import from_mask_mod
from compilemask.language.leaves import full
from compilemask.language.mask import Mask
from compilemask.runtime.calls.operator import attention
from compilemask.score import Score, from_score_mod

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask
    from xdsl.ir import SSAValue

    from compilemask.language.from_mask_mod import MaskMod
    from compilemask.score.from_score_mod import ScoreMod


class _ForLengths(Mask):
    """A mask that was made for certain numbers of queries and keys."""

    def __init__(self, inner: Mask, lengths: tuple[int, int]) -> None:
        self._inner, self._lengths = inner, lengths

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def operands(self) -> tuple[Mask, ...]:
        return (self._inner,)

    def extents(self) -> tuple[Extent, ...]:
        return (_ExactLengths("the BlockMask", (), lambda: self._lengths),)

    def emit(self, builder: Builder) -> SSAValue:
        return builder.region(self._inner)


class _ExactLengths(Extent):
    """Refuses all other numbers of queries and keys."""

    def check(self, given: Sequence[int | torch.Tensor], queries: Length, keys: Length) -> None:
        wanted: tuple[int, int] = cast("Any", self.end)()
        for lengths in by_mask(queries, keys):
            if lengths != wanted:
                raise MaskError(
                    f"{self.what} is for {wanted[0]} queries and {wanted[1]} keys, got {lengths[0]} and {lengths[1]}; "
                    "make a new one for other lengths"
                )


def from_block_mask(
    block_mask: BlockMask,
    B: int | None = None,
    H: int | None = None,
    *,
    blocks: bool | None = None,
) -> Mask:
    """The mask of a FlexAttention `BlockMask`: its mask_mod (see `from_mask_mod`), for its lengths.

    `create_block_mask` computes the blocks from the mask_mod, so they say nothing new and are not read. A BlockMask
    that was put together from blocks (`BlockMask.from_kv_blocks`) says more than its mask_mod: `blocks=True` intersects
    the mask with the blocks. That is also done, if not told otherwise, where there is no mask_mod but the trivial one.

    Args:
        block_mask: the block mask.
        B, H: numbers of batches and query heads, if the mask_mod computes with b or h and the BlockMask is for one.
        blocks: whether only pairs inside the blocks are visible.

    Raises:
        MaskError: as `from_mask_mod`; where the mask is used, if the lengths are not those of the BlockMask.
    """
    from torch.nn.attention.flex_attention import BlockMask, noop_mask

    if not isinstance(block_mask, BlockMask):
        raise MaskError(f"from_block_mask takes a BlockMask, got {type(block_mask).__name__}")
    mask_mod = block_mask.mask_mod
    if blocks or (blocks is None and mask_mod in (None, noop_mask)):
        mask_mod = _with_blocks(block_mask, mask_mod)
    batches, heads = (size if size > 1 else given for size, given in zip(block_mask.shape[:2], (B, H), strict=True))
    queries, keys = block_mask.seq_lengths
    return _ForLengths(from_mask_mod(mask_mod, batches, heads), (int(queries), int(keys)))


def _with_blocks(block_mask: BlockMask, mask_mod: MaskMod | None) -> MaskMod:
    """The mask_mod, inside the blocks only."""
    rows, columns = block_mask.BLOCK_SIZE
    blocks = block_mask.to_dense().to(torch.int32)
    by_batch, by_head = (size > 1 for size in blocks.shape[:2])

    def inside_blocks(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        inside = blocks[b if by_batch else 0, h if by_head else 0, q_idx // rows, kv_idx // columns] != 0
        return inside if mask_mod is None else inside & mask_mod(b, h, q_idx, kv_idx)

    return inside_blocks


def _mask_for(mask_mod: MaskMod | None, block_mask: BlockMask | None, batches: int, heads: int) -> Mask:
    if mask_mod is not None and block_mask is not None:
        raise MaskError("flex_attention takes a block_mask or a mask_mod, got both")
    if mask_mod is not None:
        return from_mask_mod(mask_mod, batches, heads)
    return full() if block_mask is None else from_block_mask(block_mask, batches, heads)


def _score_for(score_mod: ScoreMod | None, batches: int, heads: int) -> Score | None:
    return None if score_mod is None else from_score_mod(score_mod, batches, heads)


_untraced_score = cast("Callable[..., Score | None]", torch.compiler.disable(_score_for))
_untraced = cast("Callable[..., Mask]", torch.compiler.disable(_mask_for))
"""What torch.compile calls as it is."""


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
    mask_mod: MaskMod | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, AuxOutput]:
    """`torch.nn.attention.flex_attention.flex_attention` with the same arguments.

    Of a block mask, the mask_mod is used (`from_block_mask`); `mask_mod` gives one directly, and no block mask need
    ever be made. Rows that see no key give 0 and a log-sum-exp of -inf.

    Args:
        query: [B, Hq, Sq, D].
        key, value: [B, Hkv, Skv, D].
        score_mod: `score_mod(score, b, h, q_idx, kv_idx)`, which `from_score_mod` takes.
        block_mask: a BlockMask for these lengths.
        scale: of the scores; 1 / sqrt(D) if not given.
        enable_gqa: whether Hkv may be a divisor of Hq.
        return_lse: also return the log-sum-exp [B, Hq, Sq], float32.
        kernel_options: ignored; they tune other kernels.
        return_aux: what else to return; `lse` only.
        mask_mod: `mask_mod(b, h, q_idx, kv_idx)` in place of a block mask.

    Raises:
        MaskError: maximal scores were asked for, both a block_mask and a mask_mod, or both return_lse and return_aux,
            were given, or `from_mask_mod` cannot take the mask_mod.
        ScoreError: `from_score_mod` cannot take the score_mod.
        ShapeError: Hq and Hkv differ without `enable_gqa`.
        CompileMaskError: whatever `attention` raises.
    """
    if return_aux is not None and return_lse:
        raise MaskError(
            "flex_attention takes return_lse or return_aux, got both; AuxRequest(lse=True) asks for the lse"
        )
    if return_aux is not None and return_aux.max_scores:
        raise MaskError("flex_attention: maximal scores are not supported; ask for AuxRequest(lse=True) only")
    if not enable_gqa and query.dim() == 4 and key.dim() == 4 and query.shape[1] != key.shape[1]:
        raise ShapeError(f"query has {query.shape[1]} heads, key {key.shape[1]}; with enable_gqa=True they may differ")
    mask = _untraced(mask_mod, block_mask, query.shape[0], query.shape[1])
    score = _untraced_score(score_mod, query.shape[0], query.shape[1])
    out, lse = attention(query, key, value, mask, scale=scale, return_lse=True, score=score)
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return out, AuxOutput(lse=lse if return_aux.lse else None)
    return (out, lse) if return_lse else out


__all__ = ["flex_attention", "from_block_mask"]
