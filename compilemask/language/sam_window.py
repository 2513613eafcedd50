"""Windows of an image that see themselves only, as in Swin and SAM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compilemask.language.grid_window import Cut, GridWindow, per_axis
from compilemask.language.mask import Mask
from compilemask.language.values import scalar

if TYPE_CHECKING:
    from compilemask.language.values import Scalar


def sam_window(height: Scalar, width: Scalar, size: int | tuple[int, int], origin: Scalar = 0) -> Mask:
    """y // size == ky // size and x // size == kx // size: an image in raster order is cut into windows, and each token
    sees its own. An interval per line of the window.

    Windows at the right and lower edge are smaller if the image does not divide. Positions are those of `natten2d`.

    Source: the window attention of SAM (Kirillov et al. 2023, arXiv:2304.02643; size 14) and Swin (arXiv:2103.14030).

    Args:
        height, width: at least 1; ints or int32/int64 data of shape [], [B] or [B, H].
        size: lines and columns of a window, at least 1; one int or one for each axis, part of the mask's structure.
        origin: position of the first image token, at least 0.

    Raises:
        MaskError: a value is out of its range or no integer; where it is used, if the image (its values being in host
            memory) ends behind the last query and the last key.
    """
    sizes = scalar("sam_window: height", height, 1), scalar("sam_window: width", width, 1)
    axes = tuple(Cut(part) for part in per_axis("sam_window: size", size, 2))
    return GridWindow("sam_window", sizes, scalar("sam_window: origin", origin, 0), axes)


__all__ = ["sam_window"]
