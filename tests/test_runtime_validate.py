"""Bad arguments are refused before anything runs, with the error class and the value named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import random_inputs
from test_descriptor_build_cpu import built, roomy

from compilemask.errors import (
    CompileMaskError,
    DescriptorError,
    DeviceError,
    DTypeError,
    GradientError,
    MaskError,
    ScaleError,
    ShapeError,
)
from compilemask.runtime.calls.operator import attention
from compilemask.runtime.cpu import build_cpu
from compilemask.runtime.gpu.target import parse_target
from compilemask.runtime.parameters import Parameter, batch_shape, checked_parameter
from compilemask.runtime.program import rows_of_mask

Change = Callable[[dict[str, Any]], None]


def arguments() -> dict[str, Any]:
    q, k, v = random_inputs(2, 4, 2, 100, 120, 16)
    return {"q": q, "k": k, "v": v, "mask": built("causal", 100, 120)}


def with_(**changes: Callable[[Any], Any]) -> Change:
    def change(given: dict[str, Any]) -> None:
        for name, function in changes.items():
            given[name] = function(given.get(name))

    return change


def both(function: Callable[[Any], Any]) -> Change:
    return with_(k=function, v=function)


def every(function: Callable[[Any], Any]) -> Change:
    return with_(q=function, k=function, v=function)


CASES: dict[str, tuple[Change, type[CompileMaskError], str]] = {
    "no tensor": (with_(k=lambda k: k.tolist()), DTypeError, "k is a list"),
    "rank of q": (with_(q=lambda q: q[0]), ShapeError, r"q has shape \(4, 100, 16\)"),
    "rank of v": (with_(v=lambda v: v[None]), ShapeError, "v has shape"),
    "two dtypes": (with_(k=lambda k: k.half()), DTypeError, "k is torch.float16, q is torch.float32"),
    "integers": (every(lambda x: x.int()), DTypeError, "torch.int32"),
    "complex": (every(lambda x: x.cfloat()), DTypeError, "expected one of float16"),
    "two devices": (with_(v=lambda v: v.to("meta")), DeviceError, "v is on meta"),
    "no backend": (every(lambda x: x.to("meta")), DeviceError, "backend"),
    "head_dim of k": (with_(k=lambda k: k[..., :8]), ShapeError, "k has head_dim 8, q has 16"),
    "head_dim 0": (every(lambda x: x[..., :0]), ShapeError, "head_dim is 0"),
    "batch of k": (both(lambda x: x[:1]), ShapeError, "k has batch 1, q has 2"),
    "keys of v": (with_(v=lambda v: v[:, :, :7]), ShapeError, "v has 2 x 7"),
    "heads of v": (with_(v=lambda v: v[:, :1]), ShapeError, "v has 1 x 120"),
    "heads do not divide": (with_(q=lambda q: q[:, :3]), ShapeError, "q has 3 heads, k has 2"),
    "no key heads": (both(lambda x: x[:, :0]), ShapeError, "q has 4 heads, k has 0"),
    "scale is nan": (with_(scale=lambda _: float("nan")), ScaleError, "scale is nan"),
    "scale is inf": (with_(scale=lambda _: float("inf")), ScaleError, "scale is inf"),
    "scale is a tensor": (with_(scale=lambda _: torch.ones(1)), DTypeError, "scale is a Tensor"),
    "other queries": (with_(q=lambda q: q[:, :, :99]), DescriptorError, "100 queries and 120 keys"),
    "other keys": (both(lambda x: x[:, :, :99]), DescriptorError, "q and k have 100 and 99"),
    "no transpose": (with_(q=lambda q: q.requires_grad_()), GradientError, "without its transpose"),
    "no mask": (with_(mask=lambda _: "causal"), MaskError, "str"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    change, error, message = CASES[name]
    given = arguments()
    attention(**given)
    change(given)
    with pytest.raises(error, match=message):
        attention(**given)


def test_errors_are_the_built_in_ones_too() -> None:
    given = arguments()
    with pytest.raises(ValueError, match="rank 4"):
        attention(given["q"][0], given["k"], given["v"], given["mask"])
    with pytest.raises(ValueError, match="finite"):
        attention(**given, scale=float("nan"))


def test_masks_of_other_batches_or_heads() -> None:
    layout = roomy(100, 120, masks=3)
    descriptor = build_cpu.build(layout, [rows_of_mask(func("causal"), (), layout)] * 3)
    given = arguments()
    with pytest.raises(MaskError, match="heads 3, q has 4"):
        attention(given["q"], given["k"], given["v"], descriptor)


def func(name: str) -> Any:
    from interval_samples import SAMPLES

    return SAMPLES[name].func


def test_no_gradient_is_needed_without_grad() -> None:
    given = arguments()
    given["q"].requires_grad_()
    with torch.no_grad():
        assert not attention(**given).requires_grad


@pytest.mark.parametrize(("queries", "keys"), [(0, 120), (100, 0), (0, 0)])
def test_empty_sequences_work(queries: int, keys: int) -> None:
    q, k, v = random_inputs(2, 4, 2, queries, keys, 16)
    out, lse = attention(q, k, v, built("nothing", queries, keys), return_lse=True)
    assert out.shape == q.shape
    assert not out.any()
    assert (lse == -torch.inf).all()


@pytest.mark.parametrize(
    ("value", "is_table", "error"),
    [
        (1.5, False, DTypeError),
        (True, False, DTypeError),
        (2**31, False, MaskError),
        (torch.ones(3), True, DTypeError),
        (torch.ones(0, dtype=torch.int32), True, ShapeError),
        (torch.ones(1, 1, 1, 3, dtype=torch.int32), True, ShapeError),
        ("abc", True, DTypeError),
        (["a"], True, DTypeError),
    ],
)
def test_bad_parameters(value: object, is_table: bool, error: type[Exception]) -> None:
    with pytest.raises(error, match="limit"):
        checked_parameter("limit", value, is_table)


def test_tables_must_agree() -> None:
    tables = [Parameter(f"t{n}", torch.zeros(n, 1, 4, dtype=torch.int32)) for n in (2, 3)]
    with pytest.raises(ShapeError, match="t3 has batch 3"):
        batch_shape(tables)


@pytest.mark.parametrize("text", ["", "cuda", "cuda:", "cuda:91", "cuda:sm_90", "hip:90", "rocm:gfx942", "cuda:90a"])
def test_bad_targets(text: str) -> None:
    with pytest.raises(CompileMaskError, match="cuda:90"):
        parse_target(text)


@pytest.mark.parametrize("text", ["cuda:80", "cuda:90", "cuda:100", "cuda:120", "hip:gfx942"])
def test_targets(text: str) -> None:
    assert str(parse_target(text)) == text
    assert parse_target(text).threads_of_warp == (64 if text.startswith("hip") else 32)
