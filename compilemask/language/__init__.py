"""The mask language: constructors of masks, their algebra, and masks from IR text."""

from compilemask.language.builder import Parameter
from compilemask.language.causal import causal
from compilemask.language.clear import clear
from compilemask.language.document import document
from compilemask.language.from_mask_mod import from_mask_mod
from compilemask.language.hstu import hstu
from compilemask.language.image import box2d, disk2d
from compilemask.language.leaves import band, cols, full, rows
from compilemask.language.mask import Mask
from compilemask.language.padding import padding
from compilemask.language.place import concatenate
from compilemask.language.predicate import where
from compilemask.language.shared_prompt import shared_prompt
from compilemask.language.text import load, parse
from compilemask.language.window import window

__all__ = [
    "Mask",
    "Parameter",
    "band",
    "box2d",
    "causal",
    "clear",
    "cols",
    "concatenate",
    "disk2d",
    "document",
    "from_mask_mod",
    "full",
    "hstu",
    "load",
    "padding",
    "parse",
    "rows",
    "shared_prompt",
    "where",
    "window",
]
