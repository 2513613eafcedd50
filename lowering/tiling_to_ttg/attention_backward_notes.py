"""What the producer tells the consumers of the backward kernel about a step: some words beside its queries."""

from __future__ import annotations

from typing import NamedTuple

from compilemask.lowering.tiling_to_tt.builder import Value
from compilemask.lowering.tiling_to_ttg.attention_backward_frame import Frame
from compilemask.lowering.tiling_to_ttg.attention_config import CONSUMERS
from compilemask.lowering.tiling_to_ttg.shared_words import load_words, store_words


class Note(NamedTuple):
    """About a step, all i32."""

    block: Value
    """The first of the blocks that it adds to (`attention_backward_sums.py`)."""
    pattern: Value
    """Number of the query tile's pattern; -1 if all pairs of existing keys are visible."""
    blind: Value
    """Not 0 if there may be queries that see nothing."""
    seeing: tuple[Value, ...]
    """For each warpgroup, bits of the octets of its queries of which some see one of the warpgroup's keys."""


def leave_note(frame: Frame, place: Value, note: Note) -> None:
    """Stores it in a stage of the ring, where it can be read until the stage is given back."""
    assert frame.notes is not None
    store_words(frame.kb, frame.notes[place], [note.block, note.pattern, note.blind, *note.seeing])


def read_note(frame: Frame, place: Value) -> Note:
    """The note on the step in a stage that is full, for a warpgroup."""
    assert frame.notes is not None
    block, pattern, blind, *seeing = load_words(frame.kb, frame.notes[place], 4, len(Note._fields) - 1 + CONSUMERS)
    return Note(block, pattern, blind, tuple(seeing))
