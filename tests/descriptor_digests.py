"""Digests of fixed descriptors, in a file by which builds on machines that never meet are compared.

`descriptor_digests.json` holds, for each mask, one digest for each of `SIZES` and each of the mask's two lists, its own
and the transposed one, in order. Every build, on whichever machine, must give these words. When the format, a layout or
a mask is changed on purpose, write the file anew:

    python tests/descriptor_digests.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from catalogue import CATALOGUE
from sample_masks import MASKS

import compilemask as cm
from compilemask.lowering.descriptor_layout import Layout
from compilemask.runtime.descriptor import Descriptor

SIZES = [(256, 256), (137, 137), (300, 1000), (640, 200)]
"""Queries and keys: whole tiles, odd ones, and more of either."""
MADE: dict[str, Callable[[int, int], cm.Mask]] = {
    **{name: entry.make for name, entry in CATALOGUE.items()},
    **{f"sample {name}": make for name, make in MASKS.items()},
}
"""All masks, by name. What is random in their parameters has fixed seeds."""
_FILE = Path(__file__).with_suffix(".json")
_DIGITS = 12

Build = Callable[[cm.Compiled, int, int], Descriptor | None]
"""From a mask and numbers of queries and keys to its descriptor."""


def digest(descriptor: Descriptor) -> str:
    """Of the words that a reader uses, as they lie in memory of the lowest byte first."""
    words = descriptor.check().defined().numpy().astype("<i4")
    return hashlib.sha256(words.tobytes()).hexdigest()[:_DIGITS]


def in_numpy(compiled: cm.Compiled, queries: int, keys: int) -> Descriptor:
    """The descriptor as the CPU builds it without a compiler."""
    return compiled.program._build_in_numpy(*of_masks(compiled, queries, keys))


def of_masks(compiled: cm.Compiled, queries: int, keys: int) -> tuple[Layout, list[list[object]]]:
    """The layout, and the arguments of each mask."""
    layout = compiled.program.layout(compiled.parameters, queries, keys)
    masks = [divmod(g, layout.heads) for g in range(layout.masks)]
    return layout, [[parameter.of_mask(*mask) for parameter in compiled.parameters] for mask in masks]


def digests(name: str, build: Build) -> list[str]:
    """Those of one mask by a build."""
    found: list[str] = []
    for queries, keys in SIZES:
        compiled = cm.compile(MADE[name](queries, keys))
        for descriptor in (build(compiled, queries, keys), build(compiled.transposed, keys, queries)):
            assert descriptor is not None
            found.append(digest(descriptor))
    return found


def check(name: str, build: Build) -> None:
    """Assert that a build gives the digests in the file."""
    lists = [f"{queries} x {keys}{of}" for queries, keys in SIZES for of in ("", ", transposed")]
    expected, found = kept()[name].split(), digests(name, build)
    different = [what for what, a, b in zip(lists, expected, found, strict=True) if a != b]
    assert not different, (
        f"{name}: other words than in {_FILE.name} for {'; '.join(different)}. Do test_descriptor_digests.py and "
        "test_descriptor_build_cpu.py pass? If they do, this build is wrong: test_descriptor_build_cpu_jit.py or "
        "gpu/test_gpu_descriptor.py shows the first word that differs, docs/descriptor.md what it means. If only the "
        "digests of numpy's build fail too, the format, a layout or the mask was changed: `python "
        "tests/descriptor_digests.py` writes the file anew."
    )


def kept() -> dict[str, str]:
    """The file: by mask, its digests with spaces between."""
    return json.loads(_FILE.read_text())


def main() -> None:
    """Write the file with what numpy builds."""
    torch.set_num_threads(1)
    _FILE.write_text(json.dumps({name: " ".join(digests(name, in_numpy)) for name in MADE}, indent=0) + "\n")


if __name__ == "__main__":
    main()
