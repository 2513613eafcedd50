"""The mask language: constructors of masks, their algebra, and masks from IR text."""

from compilemask.language.bigbird import bigbird
from compilemask.language.blocks import blocks
from compilemask.language.builder import Parameter
from compilemask.language.causal import causal
from compilemask.language.causal_blockwise import causal_blockwise
from compilemask.language.causal_document import causal_document
from compilemask.language.chunked import chunked
from compilemask.language.clear import clear
from compilemask.language.dilated_window import dilated_window
from compilemask.language.document import document
from compilemask.language.document_ids import document_ids
from compilemask.language.draft_tree import draft_tree
from compilemask.language.from_mask_mod import from_mask_mod
from compilemask.language.gappy import gappy
from compilemask.language.hstu import hstu
from compilemask.language.hstu_arbitrary import hstu_arbitrary
from compilemask.language.image import box2d, disk2d
from compilemask.language.leaves import band, cols, full, rows
from compilemask.language.longformer import longformer
from compilemask.language.mask import Mask
from compilemask.language.natten import natten2d, natten3d
from compilemask.language.padding import padding
from compilemask.language.paligemma import paligemma
from compilemask.language.periodic import periodic
from compilemask.language.place import concatenate
from compilemask.language.predicate import where
from compilemask.language.prefix_lm import prefix_lm
from compilemask.language.random_eviction import random_eviction
from compilemask.language.sam_window import sam_window
from compilemask.language.shared_prompt import shared_prompt
from compilemask.language.show_o import show_o
from compilemask.language.sink_window import sink_window
from compilemask.language.slices import slices
from compilemask.language.sliding_tile import sliding_tile2d, sliding_tile3d
from compilemask.language.sliding_window import sliding_window
from compilemask.language.strided import strided
from compilemask.language.text import load, parse
from compilemask.language.topk_blocks import topk_blocks
from compilemask.language.transformer_xl import transformer_xl
from compilemask.language.transfusion import transfusion
from compilemask.language.window import window

__all__ = [
    "Mask",
    "Parameter",
    "band",
    "bigbird",
    "blocks",
    "box2d",
    "causal",
    "causal_blockwise",
    "causal_document",
    "chunked",
    "clear",
    "cols",
    "concatenate",
    "dilated_window",
    "disk2d",
    "document",
    "document_ids",
    "draft_tree",
    "from_mask_mod",
    "full",
    "gappy",
    "hstu",
    "hstu_arbitrary",
    "load",
    "longformer",
    "natten2d",
    "natten3d",
    "padding",
    "paligemma",
    "parse",
    "periodic",
    "prefix_lm",
    "random_eviction",
    "rows",
    "sam_window",
    "shared_prompt",
    "show_o",
    "sink_window",
    "slices",
    "sliding_tile2d",
    "sliding_tile3d",
    "sliding_window",
    "strided",
    "topk_blocks",
    "transformer_xl",
    "transfusion",
    "where",
    "window",
]
