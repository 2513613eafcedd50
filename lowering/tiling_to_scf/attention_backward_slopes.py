"""Weights and slopes of a block of rows and the listed ones: what both functions of the backward pass begin with.

    weight = 2^(score - lse)        slope = weight * (d out . v - delta)

where delta is what the row's gradient has along its output, less the gradient of its lse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from compilemask.lowering.tiling_to_scf.attention_frame import Frame, Signature
from compilemask.lowering.tiling_to_scf.attention_products import Rows, listed_blocks, products
from compilemask.lowering.tiling_to_scf.attention_tiles import sees
from compilemask.lowering.tiling_to_scf.builder import Value
from compilemask.lowering.tiling_to_scf.exponential import exp2

_INPUTS = ("query", "key", "value", "grad_out")


def signature(name: str, *gradients: str) -> Signature:
    """Of a function that computes some gradients."""
    return Signature(name, (*_INPUTS, *gradients), ("lse", "delta"))


class Side(NamedTuple):
    """A tensor whose rows lie in lanes, and listed rows that they are multiplied with."""

    lanes: str
    listed: Rows


@dataclass(frozen=True)
class PerQuery:
    """lse, in powers of 2, and delta of the query that stands at a place of the list, or of the queries in lanes."""

    lse: Callable[[Value], Value]
    delta: Callable[[Value], Value]


def slopes(frame: Frame, score: Side, grad: Side, of: PerQuery, count: Value, masked: bool) -> None:
    """Store weights and slopes of `count` listed rows; 0 for pairs that are not visible, whatever they hold."""
    fb, lanes = frame.fb, frame.blocks.lanes
    weights, found = frame.tile_of("weights"), frame.tile_of("slopes")

    def visible(place: Value, number: Value) -> Value:
        return fb.select(sees(frame, place), number, frame.zeros()) if masked else number

    with listed_blocks(frame, count) as block:
        for place, product in zip(block.places, products(frame, *score, block.places), strict=True):
            fb.store(visible(place, exp2(fb, product - of.lse(place))), weights, place * lanes)
        for place, product in zip(block.places, products(frame, *grad, block.places), strict=True):
            slope = fb.load(weights, place * lanes, lanes) * (product - of.delta(place))
            fb.store(visible(place, slope), found, place * lanes)
