"""Descriptors whose tiles of an image are patches: equal to brute force, and the kernels build what the CPU builds."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from descriptor_checks import check_against_dense
from test_descriptor_kernels import build, kernels_of
from test_interval_patch import CASES, LOW_CASES, Case

import compilemask as cm
from compilemask.dialects.semantics import interval as semantics
from compilemask.errors import DescriptorError, ShapeError
from compilemask.lowering.patch_grid import Patches
from compilemask.runtime import Descriptor
from compilemask.runtime.compiled import Compiled
from compilemask.runtime.parameters import image_parameters

CPU = torch.device("cpu")


def patched(case: Case) -> Compiled:
    """The compiled mask with the image as parameters, as its patched program takes it."""
    compiled = cm.compile(case.mask)
    program = compiled.program.in_patches((case.queries, case.keys))
    return Compiled(program, (*compiled.parameters, *image_parameters(case.patches)))


def dense(case: Case, compiled: Compiled) -> torch.Tensor:
    """The mask in patched order, missing rows included."""
    sizes = case.patches.queries.total, case.patches.keys.total
    masks = []
    for b in range(cm.compile(case.mask).batch_shape[0]):
        arguments = [parameter.of_mask(b, 0) for parameter in compiled.parameters]
        masks.append(semantics.visible(compiled.program.intervals, arguments, *sizes))
    return torch.from_numpy(np.stack(masks))[:, None]


ALL_CASES = {**CASES, **LOW_CASES}


@pytest.mark.parametrize("name", ALL_CASES)
def test_equal_to_brute_force(name: str) -> None:
    case = ALL_CASES[name]
    length = case.patches.length
    descriptor = cm.compile(case.mask).descriptor(length, length, patches=case.patches)
    assert descriptor.layout.lengths == (length, length)
    check_against_dense(descriptor, dense(case, patched(case)))


@pytest.mark.parametrize("name", ALL_CASES)
def test_kernels_build_what_the_cpu_builds(name: str) -> None:
    case = ALL_CASES[name]
    compiled = patched(case)
    length = case.patches.length
    expected = cm.compile(case.mask).descriptor(length, length, patches=case.patches)
    assert build(compiled, expected.layout, kernels=kernels_of(compiled.program)) == expected


@pytest.mark.parametrize("inside", [False, True])
def test_the_program_follows_where_lines_lie(inside: bool) -> None:
    """A mask whose lines all lie in the image has no families for others."""
    case = CASES["clear"] if inside else LOW_CASES["lower, disk"]
    program = cm.compile(case.mask)._program_in(case.patches)
    assert program.inside == inside
    assert pickle.loads(pickle.dumps(program)).inside == inside


def test_gradients_need_patches_of_one_shape() -> None:
    case = CASES["clear, high tiles"]
    length = case.patches.length
    with pytest.raises(ShapeError, match="one shape"):
        cm.compile(case.mask).descriptor(length, length, patches=case.patches, gradient=True)
    same = replace(case.patches, query_patch=(8, 16))
    descriptor = cm.compile(case.mask).descriptor(length, length, patches=same, gradient=True)
    assert descriptor.transposed is not None
    assert descriptor.transposed.layout.patches == same


def test_through_its_buffer_and_its_tensors() -> None:
    case = CASES["natten3d"]
    length = case.patches.length
    descriptor = cm.compile(case.mask).descriptor(length, length, patches=case.patches)
    assert Descriptor.from_buffer(descriptor.buffer) == descriptor
    assert Descriptor.of_tensors(descriptor.tensors).layout == descriptor.layout
    damaged = descriptor.buffer.clone()
    damaged[17] += 1
    with pytest.raises(DescriptorError, match="damaged"):
        Descriptor.from_buffer(damaged)
    damaged[17] = -1
    with pytest.raises(DescriptorError, match="damaged"):
        Descriptor.from_buffer(damaged)


def test_a_tile_is_seen_as_full_though_rows_are_missing() -> None:
    patches = Patches(0, (20, 20), 400, (8, 16), (8, 16))
    descriptor = cm.compile(cm.full()).descriptor(400, 400, patches=patches)
    assert [visits.full for visits in descriptor.tiles_of()] == [((0, 1), (2, 3))] * 6


@pytest.mark.parametrize(
    ("patches", "queries", "keys", "rows"),
    [
        (Patches(0, (19, 37), 703, (8, 16), (8, 16)), 703, 704, None),
        (Patches(0, (19, 37), 800, (8, 16), (8, 16)), 703, 703, None),
        (Patches(0, (19, 37), 703, (8, 16), (8, 8)), 703, 703, None),
        (Patches(0, (19, 37), 703, (9, 3), (8, 16)), 703, 703, None),
        (Patches(0, (19, 37), 703, (12, 16), (8, 16)), 703, 703, 128),
    ],
)
def test_what_fits_not(patches: Patches, queries: int, keys: int, rows: int | None) -> None:
    with pytest.raises(ShapeError):
        cm.compile(cm.full()).descriptor(queries, keys, patches=patches, rows=rows)


def test_another_raster_is_refused() -> None:
    """Lines of another image would be taken for those of this one."""
    patches = Patches(0, (19, 37), 703, (8, 16), (8, 16))
    for wrong in (replace(patches, sizes=(37, 19)), replace(patches, origin=3, length=706)):
        with pytest.raises(ShapeError, match="raster"):
            cm.compile(cm.natten2d(19, 37, 5)).descriptor(wrong.length, wrong.length, patches=wrong)
