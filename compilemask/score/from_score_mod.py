"""Score modifications from FlexAttention's score_mods, unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compilemask.errors import MaskError, ScoreError
from compilemask.language.from_mask_mod import captured_names, entries_of, label_of, walk
from compilemask.language.user_code import SideEffects, located
from compilemask.score.builder import ScoreBuilder
from compilemask.score.score import Score

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from compilemask.language.from_mask_mod_graph import Node
    from compilemask.score.from_score_mod_graph import ScoreGraph

    ScoreMod = Callable[..., Any]
    """FlexAttention's `score_mod(score, b, h, q_idx, kv_idx)`."""

HINT = "from_score_mod: the score_mod"
"""How errors name the function."""


@dataclass(frozen=True, eq=False, repr=False)
class FromScoreMod(Score):
    """See `from_score_mod`."""

    graph: ScoreGraph
    result: Node
    names: tuple[str, ...]
    rooms: dict[tuple[int, str], int | None]
    label: str

    @property
    def name(self) -> str:
        return self.label

    def emit(self, builder: ScoreBuilder, score: SSAValue) -> SSAValue:
        from compilemask.score.from_score_mod_graph import ScoreEmitter

        used = {node.payload for node in walk(self.result) if node.kind.endswith("read")}
        tables: list[Any] = [None] * len(self.names)
        for number, (name, table) in enumerate(zip(self.names, self.graph.tables, strict=True)):
            if number in used and not isinstance(table.data, int):
                room = [
                    entries_of(self.rooms[number, axis], table.data) if (number, axis) in self.rooms else None
                    for axis in ("q", "kv")
                ]
                tables[number] = builder.table(name, table.data, *room)
        emitter = ScoreEmitter(builder.block, tables, {self.graph.score: score}, builder)
        return emitter.value(self.result)


def from_score_mod(score_mod: ScoreMod, B: int | None = None, H: int | None = None) -> Score:
    """A score modification from a FlexAttention `score_mod(score, b, h, q_idx, kv_idx)`, which stays as it is.

    The function is called once, on symbols, as `from_mask_mod` calls a mask_mod, and may use floats besides: Python's
    operators, torch's pointwise functions (exp, tanh, abs, where, clamp, ...) and captured float tensors. All floats
    are float32. Captured tensors are read when attention runs; Python numbers become constants of the structure, so
    that a number that changes is better a captured tensor of shape [].

    Args:
        score_mod: the function.
        B, H: numbers of batches and of query heads, if captured tensors have more.

    Raises:
        ScoreError: the function cannot be traced (the message says what it did and where), or has side effects; where
            it is used, if it reads a table at q_idx or kv_idx and there are more queries or keys than entries.
    """
    from compilemask.language.from_mask_mod_trace import HINT as MASK_HINT
    from compilemask.language.from_mask_mod_trace import Traced, TraceMode, as_array, refuse
    from compilemask.score.from_score_mod_rules import ScoreTracer, apply_score

    if not callable(score_mod):
        raise ScoreError(
            f"from_score_mod takes a score_mod(score, b, h, q_idx, kv_idx), got {type(score_mod).__name__}"
        )
    effects = SideEffects(score_mod)
    try:
        tracer = ScoreTracer(B, H)
        graph = tracer.graph
        nodes = (graph.score, *tracer.axes(), graph.node("q"), graph.node("kv"))
        try:
            with TraceMode(tracer, apply_score):
                elements = tracer.elements(score_mod(*(Traced.of(as_array(node)) for node in nodes)))
            if elements.size != 1:
                refuse(f"returns a tensor of shape {list(elements.shape)}, expected []")
            result = graph.as_float(elements.item())
        except Exception as error:
            raise located(error, score_mod, HINT) from error
        effects.check(HINT)
    except MaskError as error:
        # What traces mask_mods traces this, and speaks of one.
        raise ScoreError(str(error).replace(MASK_HINT, HINT)) from error
    names = captured_names(score_mod, tracer.sources)
    return FromScoreMod(graph, result, names, tracer.rooms, label_of(score_mod, "score_mod"))


__all__ = ["from_score_mod"]
