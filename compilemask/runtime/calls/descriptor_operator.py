"""The operator `compilemask::descriptor`: a compiled mask's descriptor is built inside a graph of torch.compile.

A graph takes no Python object: a compiled mask comes as its handle, an integer, and its tables as tensors, so that
other masks, values and lengths are data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from compilemask.errors import MaskError
from compilemask.runtime.compiled import Compiled, compiled_of
from compilemask.runtime.descriptor import NUMBERS

_library = torch.library.Library("compilemask", "FRAGMENT")
_library.define(
    "descriptor(SymInt compiled, Tensor[] tables, SymInt queries, SymInt keys, bool gradient, Device device)"
    " -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _descriptor(
    compiled: int, tables: Sequence[torch.Tensor], queries: int, keys: int, gradient: bool, device: torch.device
) -> list[torch.Tensor]:
    known = compiled_of(compiled)
    if known is None:
        raise MaskError(
            "the compiled mask of a graph is no more, or in another process: keep it for as long as its graph runs, "
            "and save graphs that attend by a descriptor"
        )
    descriptor = known.with_tables(tables).descriptor(queries, keys, device, gradient=gradient)
    # What an operator returns belongs to its graph, and descriptors without tables are kept for others.
    return descriptor.tensors if tables else [x.clone() for x in descriptor.tensors]


def _fake(
    compiled: int, tables: Sequence[torch.Tensor], queries: int, keys: int, gradient: bool, device: torch.device
) -> list[torch.Tensor]:
    context = cast("Any", torch.library.get_ctx())
    found: list[torch.Tensor] = []
    for _ in range(2 if gradient else 1):
        found.append(torch.empty(context.new_dynamic_size(), dtype=torch.int32, device=device))
        found.append(torch.empty(NUMBERS, dtype=torch.int64, device="cpu"))
    return found


_library.impl("descriptor", _descriptor, "CompositeExplicitAutograd")
torch.library.register_fake("compilemask::descriptor", _fake, lib=_library)


def descriptor_tensors(
    compiled: Compiled, queries: int, keys: int, device: torch.device, *, gradient: bool
) -> list[torch.Tensor]:
    """`Descriptor.tensors` of a compiled mask, as torch.compile can trace it."""
    return torch.ops.compilemask.descriptor(compiled.handle, compiled.tables, queries, keys, gradient, device)
