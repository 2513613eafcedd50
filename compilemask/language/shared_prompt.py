"""One prompt shared by several answers: reward models, DPO ("share question" of FlashMask, arXiv:2410.01359)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent, last_offset
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer, SymbolicTable
from compilemask.language.traced import emit_where, first_at_least, larger, last_at_most
from compilemask.language.values import LIMIT, Value, common_batch
from compilemask.language.values import offsets as checked_offsets

if TYPE_CHECKING:
    import torch

    from compilemask.language.values import Table


@dataclass(frozen=True, eq=False, repr=False)
class _SharedPrompt(Mask):
    offsets: Value
    LABEL: ClassVar[str] = "shared_prompt"

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("shared_prompt: the last offset", (self.offsets,), last_offset),)

    def emit(self, builder: Builder) -> SSAValue:
        offsets = builder.table("offsets", self.offsets)
        zero, one = builder.constant(0), builder.constant(1)
        past = builder.add(dialect.BandOp(upper=zero), "past")
        answers = builder.add(dialect.SegmentsOp(offsets), "answers")
        own = builder.add(dialect.SameOp(answers), "own")
        end = builder.add(dialect.ReadOp(offsets, one), "end")
        prompt = builder.add(dialect.ColsOp(zero, end), "prompt")
        seen = builder.add(dialect.UnionOp(prompt, own), "seen")
        return builder.add(dialect.IntersectOp(past, seen), "visible")


@dataclass(frozen=True, eq=False, repr=False)
class _SharedPrompts(Mask):
    offsets: Value
    packs: Value
    LABEL: ClassVar[str] = "shared_prompt"

    def extents(self) -> tuple[Extent, ...]:
        named = (("offset", self.offsets), ("pack", self.packs))
        return tuple(Extent(f"shared_prompt: the last {name}", (value,), last_offset) for name, value in named)

    def emit(self, builder: Builder) -> SSAValue:
        data = {"offsets": builder.table("offsets", self.offsets), "packs": builder.table("packs", self.packs)}
        prompt = emit_where(builder, self._prompt, data)
        answers = builder.add(dialect.SegmentsOp(data["offsets"]), "answers")
        seen = builder.add(dialect.UnionOp(prompt, builder.add(dialect.SameOp(answers), "own")), "seen")
        past = builder.add(dialect.BandOp(upper=builder.constant(0)), "past")
        return builder.add(dialect.IntersectOp(past, seen), "visible")

    def _prompt(self, q: Integer, kv: Integer, offsets: SymbolicTable, packs: SymbolicTable) -> Condition:
        """The first segment of q's pack."""
        number = last_at_most(packs, q)
        begin = packs[number]
        end = offsets[larger(first_at_least(offsets, begin), 0) + 1]
        return (number >= 0) & (q < packs[LIMIT]) & (begin <= kv) & (kv < end)


def shared_prompt(offsets: Table, packs: Table | None = None) -> Mask:
    """Causal; the prompt sees itself, each answer sees the prompt and itself, but no other answer. Two intervals per
    row.

    Segment 0, positions 0 <= p < offsets[1], is the prompt; each further segment offsets[s] <= p < offsets[s + 1] is
    an answer. Segments may be empty; positions behind the last one see the prompt only.

    Several prompts, each with its answers, stand behind one another if `packs` says where: pack s holds positions
    packs[s] <= p < packs[s + 1], and the first segment in it is its prompt.

    Args:
        offsets: ascending int32/int64 data that starts with 0, of shape [n + 2], [B, n + 2] or [B, H, n + 2] for n
            answers.
        packs: some of the offsets, the first and the last one among them; data of the same kind, or None for one pack.

    Raises:
        MaskError: wrong type or rank, fewer than 2 entries, or (in host memory) not ascending or not starting with 0;
            where it is used, if the last offset (in host memory) is greater than the numbers of queries and of keys.
    """
    checked = checked_offsets("shared_prompt: offsets", offsets)
    assert not isinstance(checked.data, int)
    if checked.data.device.type == "cpu" and (first := int(checked.data[..., 0].max())):
        raise MaskError(f"shared_prompt: offsets must start with 0, got {first}")
    if packs is None:
        return _SharedPrompt(checked)
    bounds = checked_offsets("shared_prompt: packs", packs)
    assert not isinstance(bounds.data, int)
    if checked.data.device.type == bounds.data.device.type == "cpu":
        _check_packs(checked.data, bounds.data)
    return _SharedPrompts(checked, bounds)


def _check_packs(offsets: torch.Tensor, packs: torch.Tensor) -> None:
    common_batch([("shared_prompt: offsets", Value(offsets, offsets, False)), ("packs", Value(packs, packs, False))])
    batch, heads = (max(a, b) for a, b in zip(offsets.shape[:2], packs.shape[:2], strict=True))
    every, wanted = offsets.expand(batch, heads, -1), packs.expand(batch, heads, -1)
    missing = ~(wanted[..., :, None] == every[..., None, :]).any(dim=-1)
    if missing.any():
        raise MaskError(f"shared_prompt: packs must be offsets, but {int(wanted[missing][0])} is none")
    if (wanted[..., 0] != every[..., 0]).any() or (wanted[..., -1] != every[..., -1]).any():
        raise MaskError("shared_prompt: packs must begin with the first offset and end with the last one")


__all__ = ["shared_prompt"]
