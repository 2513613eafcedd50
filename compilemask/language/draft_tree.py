"""Draft trees of speculative decoding: a draft token sees the text and its own branch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, cast

from xdsl.ir import SSAValue

from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer, SymbolicTable
from compilemask.language.traced import Line, chosen, emit_lines, emit_where, smaller
from compilemask.language.values import Value, integer, scalar, table

if TYPE_CHECKING:
    import torch

    from compilemask.language.values import Scalar, Table


@dataclass(frozen=True, eq=False, repr=False)
class _DraftTree(Mask):
    parents: Value
    prefix: Value
    drafts: Value
    depth: int
    LABEL: ClassVar[str] = "draft_tree"

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("draft_tree: the end of the tree", (self.prefix, self.drafts), lambda a, b: a + b),)

    def emit(self, builder: Builder) -> SSAValue:
        prefix, drafts = builder.scalar("prefix", self.prefix), builder.scalar("drafts", self.drafts)
        numbers = {"prefix": prefix, "drafts": drafts}
        text = emit_where(builder, self._text, numbers)
        data = {"parents": builder.table("parents", self.parents), **numbers}
        branch = emit_lines(builder, (prefix, builder.constant(1)), self._branch, data)
        return builder.add(dialect.UnionOp(text, branch), "visible")

    def _text(self, q: Integer, kv: Integer, prefix: Integer, drafts: Integer) -> Condition:
        return (q < prefix + drafts) & (kv < smaller(q + 1, prefix))

    def _branch(self, q: Integer, line: Integer, parents: SymbolicTable, prefix: Integer, drafts: Integer) -> Line:
        """Lines of one key, one for each draft; the root's parent is -1, and so is its parent in turn."""
        own = q - prefix
        branch = [own]
        for _ in range(self.depth):
            branch.append(parents[branch[-1]])
        seen = reduce(lambda a, b: a | b, [line == node for node in branch])
        key = prefix + line
        inside = (own >= 0) & (own < drafts)
        return Line(key, chosen(seen, key + 1, key), 0, chosen(inside, own + 1, 0))


def draft_tree(parents: Table, prefix: Scalar, depth: int) -> Mask:
    """Position prefix + i is draft i. It sees the text, kv < prefix, itself and its ancestors; the text is causal.

    At most depth + 2 intervals per row. Queries behind the tree see nothing.

    Source: Medusa (arXiv:2401.10774), EAGLE (arXiv:2401.15077), SpecInfer (arXiv:2305.09781).

    Args:
        parents: int32/int64 data of shape [n], [B, n] or [B, H, n] for n drafts: parents[i] < i, and -1 for a root.
        prefix: tokens of the text, at least 0; an int or int32/int64 data of shape [], [B] or [B, H].
        depth: ancestors that a draft has at most, at least 0; an int, part of the mask's structure.

    Raises:
        MaskError: wrong type, rank or range, or (in host memory) a parent that is not before its child, or a branch
            with more ancestors; where it is used, if the tree ends behind the last query and the last key.
    """
    checked = table("draft_tree: parents", parents, -1)
    levels = integer("draft_tree: depth", depth, 0, 256)
    assert not isinstance(checked.data, int)
    if checked.data.device.type == "cpu":
        _check_tree(checked.data, levels)
    count = scalar("draft_tree: drafts", int(checked.data.shape[-1]))
    return _DraftTree(checked, scalar("draft_tree: prefix", prefix, 0), count, levels)


def _check_tree(parents: torch.Tensor, depth: int) -> None:
    for tree in cast("list[list[int]]", parents.reshape(-1, parents.shape[-1]).tolist()):
        ancestors: list[int] = []
        for child, parent in enumerate(tree):
            if parent >= child:
                raise MaskError(f"draft_tree: a parent must stand before its child, but parents[{child}] is {parent}")
            ancestors.append(0 if parent < 0 else ancestors[parent] + 1)
        if max(ancestors) > depth:
            raise MaskError(f"draft_tree: a draft has {max(ancestors)} ancestors, more than depth={depth}")


__all__ = ["draft_tree"]
