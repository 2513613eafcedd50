"""Sliding windows by the name of the library whose convention counts their size: libraries disagree by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from compilemask.errors import MaskError
from compilemask.language.causal import causal
from compilemask.language.leaves import full
from compilemask.language.mask import Mask
from compilemask.language.narrowing import is_tuple
from compilemask.language.predicate import Condition, Integer
from compilemask.language.traced import Pointwise
from compilemask.language.values import Value, integer, scalar
from compilemask.language.window import window

if TYPE_CHECKING:
    from compilemask.language.values import Scalar

Convention = Literal["attention_gym", "hugging_face", "flash_attention"]
_SIDES = ("left", "right")


@dataclass(frozen=True, eq=False, repr=False)
class _CountedWindow(Pointwise):
    size: Value
    LABEL: ClassVar[str] = "sliding_window"

    def visible(self, q: Integer, kv: Integer, size: Integer) -> Condition:
        return (kv > q - size) & (kv <= q)


def sliding_window(size: Scalar | tuple[int, int], convention: Convention | None = None) -> Mask:
    """A sliding window as a library counts it; `window` is the same with sides of its own.

    - "attention_gym": 0 <= q - kv <= size, size + 1 keys.
    - "hugging_face", also torchtitan and Mistral: 0 <= q - kv < size, size keys.
    - "flash_attention": size is a pair (left, right), -left <= kv - q <= right, and -1 is no bound; queries and keys
      are aligned at their ends (the bottom right corner).

    One interval per row.

    Args:
        size: at least 0, for "hugging_face" at least 1; an int or int32/int64 data of shape [], [B] or [B, H]. For
            "flash_attention" two ints of at least -1.
        convention: which of the three; there is no default.

    Raises:
        MaskError: no convention or an unknown one, or a size that it does not have.
    """
    known = ", ".join(repr(name) for name in get_args(Convention))
    if convention is None:
        raise MaskError(f"sliding_window: a size of {size} means different windows; pass convention=, one of {known}")
    if not isinstance(convention, str):
        raise MaskError(f"sliding_window: convention must be one of {known}, got {convention!r}")
    if convention == "flash_attention":
        return _pair(size)
    if isinstance(size, tuple):
        raise MaskError(f"sliding_window: {convention} counts one size, got {size}")
    if convention == "attention_gym":
        return window(size).named("sliding_window")
    if convention == "hugging_face":
        return _CountedWindow(scalar("sliding_window: size", size, 1))
    raise MaskError(f"sliding_window: convention must be one of {known}, got {convention!r}")


def _pair(size: object) -> Mask:
    if not is_tuple(size) or len(size) != 2:
        raise MaskError(f"sliding_window: flash_attention takes a pair (left, right), got {size!r}")
    left, right = (integer(f"sliding_window: {name}", reach, -1) for name, reach in zip(_SIDES, size, strict=True))
    if left == right == -1:
        return full().named("sliding_window")
    if left == -1 and right == 0:
        return causal("bottom_right").named("sliding_window")
    return window(None if left == -1 else left, None if right == -1 else right, align="bottom_right").named(
        "sliding_window"
    )


__all__ = ["Convention", "sliding_window"]
