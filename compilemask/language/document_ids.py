"""Packed documents, given by the number of each token's document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from compilemask.errors import MaskError
from compilemask.language.extent import Extent
from compilemask.language.mask import Mask
from compilemask.language.predicate import Condition, Integer, SymbolicTable
from compilemask.language.traced import Pointwise
from compilemask.language.values import Value, ascends, table

if TYPE_CHECKING:
    from compilemask.language.values import Table


@dataclass(frozen=True, eq=False, repr=False)
class _DocumentIds(Pointwise):
    ids: Value
    LABEL: ClassVar[str] = "document_ids"

    def extents(self) -> tuple[Extent, ...]:
        return (Extent("document_ids: the number of ids", (self.ids,), lambda ids: ids.shape[-1]),)

    def visible(self, q: Integer, kv: Integer, ids: SymbolicTable) -> Condition:
        return ids[q] == ids[kv]


@dataclass(frozen=True, eq=False, repr=False)
class _AscendingIds(_DocumentIds):
    ASCENDING: ClassVar[tuple[str, ...]] = ("ids",)


def document_ids(ids: Table, ascending: bool | None = None) -> Mask:
    """ids[q] == ids[kv]: each query sees the keys of its own document, wherever they stand.

    One interval per row if the ids ascend, as those of packed documents do. If not, a row may see any number of
    intervals: then the predicate decides about every pair (a bounded form). `document` takes offsets instead.
    Positions behind the last id belong to the last document.

    Args:
        ids: int32/int64 data of shape [n], [B, n] or [B, H, n] for n positions.
        ascending: whether ids never fall. None looks at ids in host memory, and takes ids in device memory for
            unsorted, as a look would wait for the device. True for those is a promise: a wrong one gives a wrong mask.

    Raises:
        MaskError: wrong type or rank, or ids in host memory that do not ascend as promised; where it is used, if there
            are more ids (in host memory) than queries and than keys, or they no longer ascend.
    """
    checked = table("document_ids: ids", ids)
    assert not isinstance(checked.data, int)
    on_host = checked.data.device.type == "cpu"
    if ascending is not None and not isinstance(ascending, bool):
        raise MaskError(f"document_ids: ascending must be True, False or None, got {ascending!r}")
    if ascending and on_host and not ascends(checked.data):
        raise MaskError("document_ids: ids do not ascend, but ascending=True says so")
    if ascending is None:
        ascending = on_host and ascends(checked.data)
    return _AscendingIds(checked) if ascending else _DocumentIds(checked)


__all__ = ["document_ids"]
