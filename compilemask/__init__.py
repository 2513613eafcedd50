"""Attention masks, compiled: masks are regions of the (query, key) plane, lowered through MLIR dialects to Triton IR.

Names load on first use, so that `compilemask.dialects`, `compilemask.passes` and `compilemask.lowering` stay free of
PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from compilemask import score
    from compilemask.errors import (
        CompileMaskError,
        DescriptorError,
        DeviceError,
        DialectError,
        DTypeError,
        GradientError,
        IRError,
        LoweringError,
        MaskError,
        MissingDependencyError,
        PipelineError,
        ScaleError,
        ScoreError,
        ShapeError,
        TargetError,
    )
    from compilemask.flex import flex_attention, from_block_mask
    from compilemask.language import (
        Mask,
        Parameter,
        band,
        bigbird,
        blocks,
        box2d,
        causal,
        causal_blockwise,
        causal_document,
        chunked,
        clear,
        cols,
        concatenate,
        dilated_window,
        disk2d,
        document,
        document_ids,
        draft_tree,
        from_mask_mod,
        full,
        gappy,
        hstu,
        hstu_arbitrary,
        load,
        longformer,
        natten2d,
        natten3d,
        padding,
        paligemma,
        parse,
        periodic,
        prefix_lm,
        random_eviction,
        rows,
        sam_window,
        shared_prompt,
        show_o,
        sink_window,
        slices,
        sliding_tile2d,
        sliding_tile3d,
        sliding_window,
        strided,
        topk_blocks,
        transformer_xl,
        transfusion,
        where,
        window,
    )
    from compilemask.observe import debug
    from compilemask.runtime import Compiled, Descriptor, Explanation, Patches, attention, compile, explain
    from compilemask.score import from_score_mod

__all__ = [
    "CompileMaskError",
    "Compiled",
    "DTypeError",
    "Descriptor",
    "DescriptorError",
    "DeviceError",
    "DialectError",
    "Explanation",
    "GradientError",
    "IRError",
    "LoweringError",
    "Mask",
    "MaskError",
    "MissingDependencyError",
    "Parameter",
    "Patches",
    "PipelineError",
    "ScaleError",
    "ScoreError",
    "ShapeError",
    "TargetError",
    "attention",
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
    "compile",
    "concatenate",
    "debug",
    "dilated_window",
    "disk2d",
    "document",
    "document_ids",
    "draft_tree",
    "explain",
    "flex_attention",
    "from_block_mask",
    "from_mask_mod",
    "from_score_mod",
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
    "score",
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

_FLEX = ("flex_attention", "from_block_mask")
_RUNTIME = ("Compiled", "Descriptor", "Explanation", "Patches", "attention", "compile", "explain")
"""The names that need PyTorch at once, as those of `_FLEX` do."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'compilemask' has no attribute {name!r}")
    if name == "score":
        return import_module("compilemask.score")
    if name in _FLEX:
        home = "flex"
    elif name == "from_score_mod":
        home = "score"
    elif name == "debug":
        home = "observe"
    else:
        home = "errors" if name.endswith("Error") else "runtime" if name in _RUNTIME else "language"
    value = getattr(import_module(f"compilemask.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
