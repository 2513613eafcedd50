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
from compilemask.language.values import Value
from compilemask.language.values import offsets as checked_offsets

if TYPE_CHECKING:
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


def shared_prompt(offsets: Table) -> Mask:
    """Causal; the prompt sees itself, each answer sees the prompt and itself, but no other answer.

    Segment 0, positions 0 <= p < offsets[1], is the prompt; each further segment offsets[s] <= p < offsets[s + 1] is
    an answer. Segments may be empty; positions behind the last one see the prompt only.

    Args:
        offsets: ascending int32/int64 data that starts with 0, of shape [n + 2], [B, n + 2] or [B, H, n + 2] for n
            answers.

    Raises:
        MaskError: wrong type or rank, fewer than 2 entries, or (in host memory) not ascending or not starting with 0;
            where it is used, if the last offset (in host memory) is greater than the numbers of queries and of keys.
    """
    checked = checked_offsets("shared_prompt: offsets", offsets)
    assert not isinstance(checked.data, int)
    if checked.data.device.type == "cpu" and (first := int(checked.data[..., 0].max())):
        raise MaskError(f"shared_prompt: offsets must start with 0, got {first}")
    return _SharedPrompt(checked)


__all__ = ["shared_prompt"]
