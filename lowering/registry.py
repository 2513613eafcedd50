"""Passes by name, and pipelines as text: `mask-to-interval,interval-normalize{max-arity=8},canonicalize,cse`.

Packages add passes through the entry point group `compilemask.passes` and dialects through `compilemask.dialects`;
each entry is the name of a pass or a dialect and the object, a class derived from `ModulePass` or a `Dialect`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import parse_pipeline as parse_specs
from xdsl.utils.exceptions import ArgSpecParseError

from compilemask.errors import PipelineError
from compilemask.passes.instrument import described

GROUP = "compilemask.passes"
_OWN = "compilemask.passes"
_LOWERING = "compilemask.lowering"

BUILT_IN: dict[str, str] = {
    "canonicalize": "xdsl.transforms.canonicalize:CanonicalizePass",
    "cse": "xdsl.transforms.common_subexpression_elimination:CommonSubexpressionElimination",
    "dce": "xdsl.transforms.dead_code_elimination:DeadCodeElimination",
    "interval-patch": f"{_OWN}.interval_patch:IntervalPatchPass",
    "interval-normalize": f"{_OWN}.interval_normalize:IntervalNormalizePass",
    "legalize-copy-segments": f"{_OWN}.legalize_copy_segments:LegalizeCopySegmentsPass",
    "legalize-descriptor-arguments": f"{_OWN}.legalize_descriptor_arguments:LegalizeDescriptorArgumentsPass",
    "legalize-descriptor-types": f"{_OWN}.legalize_descriptor_types:LegalizeDescriptorTypesPass",
    "legalize-partition-captures": f"{_OWN}.legalize_partition_captures:LegalizePartitionCapturesPass",
    "mask-transpose": f"{_OWN}.mask_transpose:MaskTransposePass",
    "prove": f"{_OWN}.prove:ProvePass",
    "score-gradient": f"{_OWN}.score_gradient:ScoreGradientPass",
    "interval-to-tiling": f"{_LOWERING}.interval_to_tiling:IntervalToTilingPass",
    "mask-to-interval": f"{_LOWERING}.mask_to_interval:MaskToIntervalPass",
    "tiling-to-scf": f"{_LOWERING}.tiling_to_scf.attention_pass:TilingToScfPass",
    "tiling-to-tt": f"{_LOWERING}.tiling_to_tt.attention:TilingToTtPass",
    "tiling-to-tt-split": f"{_LOWERING}.tiling_to_tt.attention_split:TilingToTtSplitPass",
}
"""Where the passes are that come with CompileMask: each is imported when it is asked for."""


def built_in_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """How to get each pass of CompileMask by its name."""
    return {name: (lambda place=place: _built_in(place)) for name, place in BUILT_IN.items()}


def known_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """How to get each pass by its name, those of other packages included.

    Raises PipelineError if a package gives a pass a name that is taken.
    """
    found = built_in_passes()
    for entry in _entries():
        if entry.name in found:
            raise PipelineError(f"there are two passes {entry.name!r}; one is {entry.value}")
        found[entry.name] = lambda entry=entry: _foreign(entry)
    return found


@cache
def _entries() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _built_in(place: str) -> type[ModulePass]:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _foreign(entry: EntryPoint) -> type[ModulePass]:
    try:
        kind = entry.load()
    except Exception as error:
        raise PipelineError(f"the pass {entry.name!r} cannot be loaded from {entry.value}: {error}") from error
    if not isinstance(kind, type) or not issubclass(kind, ModulePass) or getattr(kind, "name", None) != entry.name:
        raise PipelineError(f"{entry.value} is not a ModulePass named {entry.name!r}")
    return kind


def parse_pipeline(text: str) -> list[ModulePass]:
    """The passes that a pipeline names, with their options.

    Raises PipelineError if it is malformed, names an unknown pass or gives a pass an option that it does not take.
    """
    if not isinstance(text, str):
        raise PipelineError(f"a pipeline is a text, not a {type(text).__name__}")
    known, passes = known_passes(), list[ModulePass]()
    try:
        specs = list(parse_specs(text))
    except ArgSpecParseError as error:
        raise PipelineError(f"malformed pipeline {text!r}: {error}") from None
    for spec in specs:
        if spec.name not in known:
            raise PipelineError(f"there is no pass {spec.name!r}; there are {', '.join(sorted(known))}")
        try:
            passes.append(known[spec.name]().from_spec(spec))
        except PipelineError:
            raise
        except Exception as error:
            raise PipelineError(f"{spec.name}: {error}") from None
    return passes


def print_pipeline(passes: Iterable[ModulePass]) -> str:
    """The text that `parse_pipeline` reads."""
    return ",".join(described(item) for item in passes)


def insert(passes: Sequence[ModulePass], where: str, name: str, new: Sequence[ModulePass]) -> list[ModulePass]:
    """`passes` with `new` ones "before" or "after" the first pass called `name`.

    Raises PipelineError if there is no such pass.
    """
    for position, item in enumerate(passes):
        if item.name == name:
            split = position + (where == "after")
            return [*passes[:split], *new, *passes[split:]]
    raise PipelineError(f"the pipeline {print_pipeline(passes)} has no pass {name!r}")


__all__ = ["BUILT_IN", "built_in_passes", "insert", "known_passes", "parse_pipeline", "print_pipeline"]
