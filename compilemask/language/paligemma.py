"""PaliGemma and pi0: blocks of tokens, each of which sees itself and all blocks before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from compilemask.errors import MaskError
from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer, SymbolicTable
from compilemask.language.traced import Pointwise
from compilemask.language.values import LIMIT, Value, ascends, scalar, table

if TYPE_CHECKING:
    from compilemask.language.values import Scalar, Table


@dataclass(frozen=True, eq=False, repr=False)
class _PaliGemma(Pointwise):
    blocks: Value
    lengths: Value
    LABEL: ClassVar[str] = "paligemma"
    ASCENDING: ClassVar[tuple[str, ...]] = ("blocks",)

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("paligemma: the number of positions", (self.blocks,), lambda blocks: blocks.shape[-1]),)

    def visible(self, q: Integer, kv: Integer, blocks: SymbolicTable, lengths: Integer) -> Condition:
        return (blocks[kv] <= blocks[q]) & (kv < lengths)


def paligemma(blocks: Table, lengths: Scalar = LIMIT) -> Mask:
    """blocks[kv] <= blocks[q] and kv < lengths: each token sees its own block and all blocks before it. One interval
    per row.

    blocks are the numbers of the tokens' blocks, cumsum(starts) if starts[p] is 1 for the first token of a block. A
    prefix that sees itself is one block, each token that is causal a block of its own.

    Source: PaliGemma (arXiv:2407.07726) and pi0 (arXiv:2410.24164), `make_attn_mask` of big_vision.

    Args:
        blocks: ascending int32/int64 data of shape [n], [B, n] or [B, H, n] for n positions; those behind have the last
            number.
        lengths: keys without padding, which is at the end; an int or int32/int64 data of shape [], [B] or [B, H].

    Raises:
        MaskError: wrong type or rank, a negative length, or (in host memory) blocks that do not ascend; where it is
            used, if the table (in host memory) has more positions than there are queries and than there are keys.
    """
    checked = table("paligemma: blocks", blocks)
    assert not isinstance(checked.data, int)
    if checked.data.device.type == "cpu" and not ascends(checked.data):
        raise MaskError("paligemma: blocks must ascend")
    return _PaliGemma(checked, scalar("paligemma: lengths", lengths, 0))


__all__ = ["paligemma"]
