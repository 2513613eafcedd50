"""Neighborhood attention (NATTEN): windows in two or three dimensions that are moved inside the image at its edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from compilemask.language.grid_window import Clamped, GridWindow, check_fits, per_axis
from compilemask.language.mask import Mask
from compilemask.language.values import Value, scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


def _natten(
    what: str, sizes: tuple[Value, ...], window: int | Sequence[int], dilation: int | Sequence[int], origin: Scalar
) -> Mask:
    reach, step = (
        per_axis(f"{what}: {name}", value, len(sizes)) for name, value in (("window", window), ("dilation", dilation))
    )
    check_fits(what, [w * d for w, d in zip(reach, step, strict=True)], sizes)
    axes = tuple(Clamped(w, d) for w, d in zip(reach, step, strict=True))
    return GridWindow(what, sizes, scalar(f"{what}: origin", origin, 0), axes)


def natten2d(
    height: Scalar,
    width: Scalar,
    window: int | tuple[int, int],
    dilation: int | tuple[int, int] = 1,
    origin: Scalar = 0,
) -> Mask:
    """Each token of an image sees the `window` lines and columns around it, moved inside the image at its edges, so
    that every token sees equally many: y0 <= ky < y0 + w with y0 = min(max(y - w // 2, 0), height - w), and so in x.

    An interval per line of the window. With dilation d an axis is seen in steps: only positions with the remainder of
    the token's own modulo d count, among which the window is laid. Steps within a line are decided by the predicate,
    inside the window (a bounded form). The image holds positions origin <= p < origin + height * width, with
    y = (p - origin) // width; others see nothing.

    Source: NATTEN (Hassani et al. 2022, arXiv:2204.07143, and arXiv:2209.15001 for dilation).

    Args:
        height, width: at least window * dilation; ints or int32/int64 data of shape [], [B] or [B, H].
        window: tokens along each axis, at least 1; one int or one for each axis, part of the mask's structure. A window
            of an even size has one token more before its own.
        dilation: at least 1, as `window`.
        origin: position of the first image token, at least 0.

    Raises:
        MaskError: a value is out of its range or no integer, or the window does not fit the image; where it is used, if
            the image (its values being in host memory) ends behind the last query and the last key.
    """
    sizes = scalar("natten2d: height", height, 1), scalar("natten2d: width", width, 1)
    return _natten("natten2d", sizes, window, dilation, origin)


def natten3d(
    frames: Scalar,
    height: Scalar,
    width: Scalar,
    window: int | tuple[int, int, int],
    dilation: int | tuple[int, int, int] = 1,
    origin: Scalar = 0,
) -> Mask:
    """`natten2d` with a third axis: each token of a video sees the window of frames, lines and columns around it.

    An interval per line of the window, kt * kh in all. Position p of the video is frame p // (height * width).

    Args:
        frames, height, width: at least window * dilation; ints or int32/int64 data of shape [], [B] or [B, H].
        window, dilation: one int or one for each of frames, height and width, part of the mask's structure.
        origin: position of the first token, at least 0.

    Raises:
        MaskError: as `natten2d`.
    """
    given = zip(("frames", "height", "width"), (frames, height, width), strict=True)
    return _natten("natten3d", tuple(scalar(f"natten3d: {n}", v, 1) for n, v in given), window, dilation, origin)


__all__ = ["natten2d", "natten3d"]
