"""Calls like others before: all that may differ between two calls with tensors of one form is seen."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from compare import random_inputs
from test_direct import LEFT_TO_THE_DISPATCHER
from test_hopper_runtime import Driver, half

import compilemask as cm
from compilemask.errors import DescriptorError, DeviceError, GradientError, MaskError, ScaleError
from compilemask.runtime.calls import known_calls, known_forms
from compilemask.runtime.calls.direct_gradient import attention_with_gradient
from compilemask.runtime.calls.known_calls import KnownCall, direct_call
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu import hopper, launch, split_keys, tensor_map
from compilemask.runtime.gpu.target import Target
from compilemask.runtime.program import Program


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    known_calls.forget()
    yield
    known_calls.forget()


def inputs(queries: int = 40, keys: int = 40, heads: int = 2) -> tuple[torch.Tensor, ...]:
    return random_inputs(1, heads, heads, queries, keys, 16)


def known(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> KnownCall:
    found = direct_call(q, k, v)
    assert found is not None
    return found


# ---------------------------------------------------------------- which calls are known


def test_like_calls_are_one() -> None:
    first = known(*inputs())
    assert known(*inputs()) is first
    with torch.no_grad():
        assert known(*inputs()) is first
    assert known(*inputs(queries=30)) is not first
    assert known(*inputs(keys=30)) is not first
    assert known(*inputs(heads=4)) is not first
    assert known(*(x.double() for x in inputs())) is not first
    assert known(*inputs()) is first


def test_each_form_is_known_by_itself() -> None:
    q, k, v = inputs()
    forms = [
        (q, k, v),
        (q, k, v.transpose(1, 2).contiguous().transpose(1, 2)),
        (q, k.clone().requires_grad_(), v),
        (q, k[:, :, :30], v[:, :, :30]),
    ]
    calls = [known(*form) for form in forms]
    assert len(set(calls)) == 4
    assert [known(*form) for form in forms] == calls
    assert [call.requires_gradient for call in calls] == [False, False, True, False]
    assert calls[3].problem.keys == 30


def test_few_of_one_shape_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs()
    first = known(q, k, v)
    for more in range(1, known_forms.KEPT_ALIKE + 1):
        assert known(q, k, v) is first
        known(q, k, torch.zeros(1, 2, 40, 16 + more)[..., :16])
    assert known(q, k, v) is not first
    monkeypatch.setattr(known_forms, "KEPT_SHAPES", 2)
    for queries in range(10, 20):
        known(*inputs(queries))
    assert len(known_calls._known.all()) <= 2


def test_caches_of_many_lengths() -> None:
    """As in decoding: q has one shape, and each other length of keys is remembered as well."""
    q, k, v = inputs(queries=1, keys=80)
    calls = [known(q, k[:, :, :keys], v[:, :, :keys]) for keys in range(1, 81)]
    assert [known(q, k[:, :, :keys], v[:, :, :keys]) for keys in range(1, 81)] == calls
    assert [call.problem.keys for call in calls] == list(range(1, 81))


def test_a_tensor_that_stands_twice() -> None:
    q, k, _ = inputs()
    out = cm.attention(q, k, k, cm.causal())
    assert torch.equal(cm.attention(q, k, k, cm.causal()), out)
    assert torch.equal(cm.attention(q, k, k.clone(), cm.causal()), out)
    assert known(q, k, k) is not known(q, k, k)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LEFT_TO_THE_DISPATCHER)
def test_left_to_the_dispatcher_though_known(name: str) -> None:
    q, k, v = inputs()
    call = known(q, k, v)
    seen: list[object] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.extend([direct_call(x, k, v), direct_call(k, x, v), direct_call(k, v, x)])
        return x

    LEFT_TO_THE_DISPATCHER[name](look, q)
    assert seen == [None] * 3
    assert known(q, k, v) is call


def test_python_dispatcher_though_known() -> None:
    from torch._dispatch.python import enable_python_dispatcher

    tensors = inputs()
    known(*tensors)
    with enable_python_dispatcher():
        assert direct_call(*tensors) is None


def test_without_guards_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs()
    expected = cm.attention(q, k, v, cm.causal())
    known_calls.forget()
    monkeypatch.setattr(known_forms, "guard_of", lambda *_: None)
    for _ in range(2):
        assert torch.equal(cm.attention(q, k, v, cm.causal()), expected)
    assert not known_calls._known.all()


# ---------------------------------------------------------------- what no form tells


def test_gradients_are_enabled_or_not() -> None:
    q, k, v = inputs()
    q.requires_grad_()
    mask = cm.causal()
    descriptor = cm.compile(mask).descriptor(40)
    for _ in range(2):
        with torch.no_grad():
            assert not cm.attention(q, k, v, mask).requires_grad
            assert not cm.attention(q, k, v, descriptor).requires_grad
        assert cm.attention(q, k, v, mask).requires_grad
        with pytest.raises(GradientError, match="without its transpose"):
            cm.attention(q, k, v, descriptor)
    q.requires_grad_(False)
    assert not cm.attention(q, k, v, mask).requires_grad


def test_inference_mode() -> None:
    q, k, v = inputs()
    mask = cm.causal()
    for _ in range(2):
        assert not cm.attention(q, k, v, mask).is_inference()
        with torch.inference_mode():
            assert cm.attention(q, k, v, mask).is_inference()


def test_scales() -> None:
    q, k, v = inputs()
    default, other = cm.attention(q, k, v, cm.causal()), cm.attention(q, k, v, cm.causal(), scale=0.5)
    assert torch.equal(cm.attention(q, k, v, cm.causal()), default)
    assert torch.equal(cm.attention(q, k, v, cm.causal(), scale=0.25), default)
    assert not torch.equal(default, other)
    with pytest.raises(ScaleError):
        cm.attention(q, k, v, cm.causal(), scale=float("inf"))


def test_descriptors() -> None:
    q, k, v = inputs()
    right = cm.compile(cm.causal()).descriptor(40)
    wrong = [
        (cm.compile(cm.causal()).descriptor(50), DescriptorError),
        (cm.compile(cm.causal()).descriptor(40, 50), DescriptorError),
        (cm.compile(cm.document(torch.tensor([[[0, 40]] * 3]))).descriptor(40), MaskError),
        (Descriptor(right.buffer.to("meta"), right.layout), DeviceError),
    ]
    expected = cm.attention(q, k, v, cm.causal())
    for _ in range(2):
        assert torch.equal(cm.attention(q, k, v, right), expected)
        for descriptor, error in wrong:
            with pytest.raises(error):
                cm.attention(q, k, v, descriptor)


def test_what_is_known_of_a_layout_is_not_taken_for_that_of_another() -> None:
    """Another could come to lie where a layout lay, if that was not held."""
    call, descriptor = known(*inputs()), cm.compile(cm.causal()).descriptor(40).clone()
    descriptor = replace(descriptor, layout=replace(descriptor.layout))
    call.check(descriptor)
    held = weakref.ref(descriptor.layout)
    del descriptor
    gc.collect()
    assert held() is not None


def test_masks() -> None:
    q, k, v = inputs()
    ends = torch.tensor([0, 10, 40], dtype=torch.int32)
    moving = cm.document(ends)
    for mask in (cm.causal(), cm.window(5), cm.compile(cm.window(7)), moving, cm.full()) * 2:
        dense = (mask if isinstance(mask, cm.Mask) else cm.window(7)).dense(40, 40)
        reference = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.as_tensor(dense))
        assert torch.allclose(cm.attention(q, k, v, mask), reference, atol=1e-5)
    before = cm.attention(q, k, v, moving)
    ends[1] = 25
    assert not torch.equal(cm.attention(q, k, v, moving), before)


def test_masks_that_do_not_fit() -> None:
    q, k, v = inputs()
    cm.attention(q, k, v, cm.hstu(40))
    for _ in range(2):
        with pytest.raises(MaskError):
            cm.attention(q, k, v, cm.hstu(100))
        with pytest.raises(MaskError, match="compile takes a mask"):
            cm.attention(q, k, v, "causal")  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_a_mask_is_not_kept_alive_nor_taken_for_another() -> None:
    q, k, v = inputs()
    call, mask = known(q, k, v), cm.window(3)
    cm.attention(q, k, v, mask)
    (given,) = call._given
    found = call.descriptor(given, mask)
    assert found is not None
    assert call.descriptor(given, cm.window(4)) is None
    gone = weakref.ref(mask)
    del mask
    gc.collect()
    assert gone() is None
    assert call.descriptor(given, cm.window(4)) is None


def test_descriptors_that_are_no_longer_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_calls, "KEPT_OF_A_CALL", 40)
    q, k, v = inputs()
    mask = cm.causal()
    expected = cm.attention(q, k, v, mask)
    # Of masks that are gone the next ones take the identity.
    others = [cm.window(width) for width in range(1, 50)]
    for other in others:
        cm.attention(q, k, v, other)
        assert torch.equal(cm.attention(q, k, v, mask), expected)
    (call,) = known_calls._known.all()
    assert len(call._given) <= known_calls.KEPT_OF_A_CALL
    assert sum(kept.descriptor is not None for _, kept in call._given.values()) <= 16


class Foreign:
    """What is compiled as masks are, and cannot be referred to weakly."""

    __slots__ = ("key", "limits", "module", "parameters")

    def __init__(self, mask: cm.Mask) -> None:
        self.key, self.limits, self.module, self.parameters = mask.key, mask.limits, mask.module, mask.parameters


def test_masks_of_others() -> None:
    q, k, v = inputs()
    for _ in range(2):
        mask: Any = Foreign(cm.causal())
        assert torch.equal(cm.attention(q, k, v, mask), cm.attention(q, k, v, cm.causal()))


def test_debug_forgets() -> None:
    q, k, v = inputs()
    mask = cm.causal()
    cm.attention(q, k, v, mask)
    program = cm.compile(mask).program
    with cm.debug():
        assert not known_calls._known.all()
        cm.attention(q, k, v, mask)
        assert cm.compile(mask).program is not program


# ---------------------------------------------------------------- on a GPU that takes notes


class Gpu:
    """What is asked of a GPU."""

    def __init__(self) -> None:
        self.stream, self.is_capturing, self.is_current = 0, False, True
        self.launches: list[tuple[str, int, list[Any]]] = []
        """Kernel, stream and arguments."""
        self.portable: list[tuple[Any, ...]] = []
        """Arguments of the kernel for all GPUs."""


class Kernel:
    """One that notes its launches."""

    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu, self.name = gpu, name

    def __call__(self, grid: object, stream: int, arguments: list[Any]) -> None:
        self.gpu.launches.append((self.name, stream, arguments))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    gpu, driver = Gpu(), Driver()

    def portable(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        gpu.portable.append(arguments)
        return torch.empty_like(arguments[0]), torch.empty(arguments[0].shape[:3])

    monkeypatch.setattr(tensor_map, "library", lambda: driver)
    monkeypatch.setattr(hopper, "_processors", lambda _: 132)
    monkeypatch.setattr(hopper, "target_of", lambda _: Target("cuda", 90))
    monkeypatch.setattr(hopper, "hopper_binary", lambda *_: None)
    monkeypatch.setattr(hopper, "_kernel", lambda dim, dtype, config, *_: Kernel(gpu, f"{dim} {config.rows}"))
    monkeypatch.setattr(hopper, "is_current", lambda _: gpu.is_current)
    monkeypatch.setattr(
        hopper, "empty_here", lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype)
    )
    monkeypatch.setattr(hopper, "attention_cuda", portable)
    monkeypatch.setattr(launch, "current_stream", lambda _: gpu.stream)
    monkeypatch.setattr(known_calls, "current_stream", lambda _: gpu.stream)
    monkeypatch.setattr(known_calls, "is_capturing", lambda: gpu.is_capturing)
    monkeypatch.setattr(known_calls, "_kind_on_gpu", hopper.kind_of)
    caches: list[Any] = [hopper._plan, hopper._chosen_plan, hopper._best_rows, hopper._chosen]
    for cached in caches:
        cached.cache_clear()
    yield gpu
    for cached in caches:
        cached.cache_clear()


def halves(keys: int = 300) -> tuple[torch.Tensor, ...]:
    return half(1, 2, 300, 64), half(1, 2, keys, 64), half(1, 2, keys, 64)


def test_a_launch_has_the_addresses_of_its_call(gpu: Gpu) -> None:
    mask = cm.causal()
    calls = [halves() for _ in range(3)]
    results = [cm.attention(*call, mask=mask, return_lse=True) for call in calls]
    assert [name for name, *_ in gpu.launches] == ["64 64"] * 3
    plan = hopper.plan_along(hopper.kind_of(*calls[0]), cm.compile(mask).descriptor(300, rows=64).layout)
    assert plan is not None
    for (q, k, v), (out, lse), (_, _, arguments) in zip(calls, results, gpu.launches, strict=True):
        tensors = (q, k, v, out)
        assert arguments[:4] == [maps[x.data_ptr()] for maps, x in zip(plan.maps, tensors, strict=True)]
        assert arguments[4] == lse.data_ptr()
        assert (out.shape, out.dtype, lse.shape, lse.dtype) == (q.shape, q.dtype, q.shape[:3], torch.float32)
        assert out.is_contiguous()


def test_descriptors_of_one_call(gpu: Gpu) -> None:
    call, compiled = halves(), cm.compile(cm.causal())
    given = [compiled.descriptor(300, rows=rows) for rows in (64, 128, 192, 64)]
    for descriptor in given * 2:
        cm.attention(*call, mask=descriptor, scale=0.5)
    assert [name for name, *_ in gpu.launches] == ["64 64", "64 128", "64 192", "64 64"] * 2
    for descriptor, (_, _, arguments) in zip(given * 2, gpu.launches, strict=True):
        base = descriptor.buffer.data_ptr()
        assert arguments[5] == base + 4 * descriptor.layout.order
        assert 0.5 in arguments


def test_a_mask_of_tables_is_transposed_once_attention_has_started(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x.requires_grad_() for x in halves())
    build, built = Program.build, list[tuple[bool, int]]()

    def noted(program: Program, *arguments: Any) -> Descriptor:
        built.append((program is transposed, len(gpu.launches)))
        return build(program, *arguments)

    monkeypatch.setattr(Program, "build", noted)
    for ends in ((0, 100, 300), (0, 20, 300)):
        offsets = torch.tensor(ends, dtype=torch.int32)
        mask = cm.document(offsets) & cm.causal()
        transposed = cm.compile(mask).program.transposed
        del built[:], gpu.launches[:]
        out = cm.attention(q, k, v, mask)
        assert built == [(False, 0), (True, 1)]
        expected = cm.compile(mask).descriptor(300, gradient=True)
        saved = out.grad_fn.saved_tensors[5:]  # type: ignore[union-attr]
        assert all(torch.equal(a, b) for a, b in zip(saved, expected.tensors, strict=True))
    with pytest.raises(MaskError, match="batch 3, q has 1"):
        cm.attention(q, k, v, cm.padding(torch.tensor([1, 2, 3])))
    with pytest.raises(MaskError, match="300"):
        cm.attention(q, k, v, cm.document(torch.tensor([0, 301], dtype=torch.int32)))


def test_few_layouts_are_kept_of_a_call(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_calls, "KEPT_OF_A_CALL", 3)
    call, descriptor = halves(), cm.compile(cm.causal()).descriptor(300)
    for _ in range(10):
        cm.attention(*call, mask=replace(descriptor, layout=replace(descriptor.layout)))
    (found,) = known_calls._known.all()
    assert 0 < len(found._fitting) <= 3
    assert 0 < len(found._plans) <= 3


def test_layouts_of_plans_are_held(gpu: Gpu) -> None:
    call, descriptor = halves(), cm.compile(cm.causal()).descriptor(300).clone()
    descriptor = replace(descriptor, layout=replace(descriptor.layout))
    cm.attention(*call, mask=descriptor)
    (known_call,) = known_calls._known.all()
    assert [layout for layout, _ in known_call._plans.values()] == [descriptor.layout]
    assert [id(layout) for layout, _ in known_call._plans.values()] == list(known_call._plans)


def test_addresses_that_tma_cannot_read(gpu: Gpu) -> None:
    q, k, v = halves()
    shifted = torch.zeros(q.numel() + 1, dtype=q.dtype)[1:].view(q.shape)
    assert shifted.stride() == q.stride()
    mask = cm.causal()
    for _ in range(2):
        cm.attention(q, k, v, mask)
        for bad in ((shifted, k, v), (q, shifted, v), (q, k, shifted)):
            cm.attention(*bad, mask=mask)
    assert len(gpu.launches) == 2
    assert [arguments[3].layout.rows for arguments in gpu.portable] == [128] * 6


def test_negative_scales(gpu: Gpu) -> None:
    q, k, v = halves()
    q.fill_(1)
    for scale in (0.5, -0.5, 0.0, -0.5):
        cm.attention(q, k, v, cm.causal(), scale=scale)
    scales = [arguments[-1] for *_, arguments in gpu.launches]
    assert scales == [0.5, 0.5, 0.0, 0.5]


@pytest.mark.parametrize("first", [0, None, 3])
def test_splits_that_are_forced(first: int | None, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """They decide on the rows of a descriptor and on the kernel, in the `with` alone."""
    splits: list[int] = []

    def split(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        splits.append(arguments[-1].splits)
        return torch.empty_like(arguments[0]), torch.empty(arguments[0].shape[:3])

    monkeypatch.setattr(hopper, "attention_split", split)
    call, mask = halves(), cm.causal()
    descriptor = cm.compile(mask).descriptor(300)
    for forced in (first, None, 3, 0, None):
        with nullcontext() if forced is None else split_keys.forced(forced):
            del splits[:], gpu.launches[:]
            for given in (mask, descriptor):
                cm.attention(*call, mask=given)
            assert splits == ([forced] * 2 if forced else [])
            assert [name for name, *_ in gpu.launches] == ([] if forced else ["64 64", "64 128"])


def test_keys_that_are_split(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    split = []
    monkeypatch.setattr(hopper, "attention_split", lambda *arguments: split.append(arguments) or arguments[:2])
    q, k, v = half(1, 2, 1, 64), half(1, 2, 5000, 64), half(1, 2, 5000, 64)
    mask = cm.full()
    for _ in range(3):
        cm.attention(q, k, v, mask)
        cm.attention(q, k, v, cm.compile(mask).descriptor(1, 5000))
    assert len(split) == 6
    assert not gpu.launches


def test_streams_and_captures(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    call, mask = halves(), cm.causal()
    built: list[int] = []
    build = cm.Compiled._built_on

    def noted(*arguments: Any) -> Descriptor:
        built.append(gpu.stream)
        return build(*arguments)

    monkeypatch.setattr(cm.Compiled, "_built_on", noted)
    for stream in (0, 0, 7, 7, 0):
        gpu.stream = stream
        cm.attention(*call, mask=mask)
    assert [stream for _, stream, _ in gpu.launches] == [0, 0, 7, 7, 0]
    assert built == [0, 7]
    gpu.is_capturing = True
    for _ in range(2):
        cm.attention(*call, mask=mask)
    assert built == [0, 7, 0, 0]
    gpu.is_capturing = False
    cm.attention(*call, mask=mask)
    assert len(built) == 4


def test_another_current_device(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[object] = []

    class Device:
        """Makes a device the current one."""

        def __init__(self, device: object) -> None:
            entered.append(device)

        def __enter__(self) -> None:
            gpu.is_current = True

        def __exit__(self, *_: object) -> None:
            gpu.is_current = False

    monkeypatch.setattr(torch.cuda, "device", Device)
    for is_current in (True, False, True):
        gpu.is_current = is_current
        cm.attention(*halves(), mask=cm.causal())
    assert len(gpu.launches) == 3
    assert entered == [torch.device("cpu")]


def test_kernels_are_forgotten(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    call, descriptor = halves(), cm.compile(cm.causal()).descriptor(300)
    cm.attention(*call, mask=descriptor)
    monkeypatch.setattr(hopper, "_kernel", lambda *_: Kernel(gpu, "new"))
    cm.attention(*call, mask=descriptor)
    hopper._plan.cache_clear()
    hopper._chosen_plan.cache_clear()
    known_calls.forget()
    cm.attention(*call, mask=descriptor)
    assert [name for name, *_ in gpu.launches] == ["64 128", "64 128", "new"]


def test_with_and_without_a_gradient(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take descriptors of other rows."""
    q, k, v = halves()
    q.requires_grad_()
    mask = cm.causal()
    for _ in range(2):
        assert cm.attention(q, k, v, mask).requires_grad
        with torch.no_grad():
            assert not cm.attention(q, k, v, mask).requires_grad
    assert [name for name, *_ in gpu.launches] == ["64 128", "64 64"] * 2


def test_the_same_descriptor_for_each_gradient(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Descriptor] = []

    def noted(call: KnownCall, *arguments: Any) -> Any:
        seen.append(arguments[3])
        return attention_with_gradient(call, *arguments)

    monkeypatch.setattr("compilemask.runtime.calls.operator.attention_with_gradient", noted)
    q, k, v = halves()
    q.requires_grad_()
    mask = cm.causal()
    for _ in range(3):
        cm.attention(q, k, v, mask)
    assert seen[0] is seen[1] is seen[2]
    assert seen[0].transposed is not None


UNUSUAL: dict[str, Callable[[], Any]] = {
    "float32": lambda: tuple(x.float() for x in halves()),
    "strides": lambda: tuple(half(1, 2, 300, 68)[..., :64] for _ in range(3)),
    "head dimension": lambda: tuple(half(1, 2, 300, 136) for _ in range(3)),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_the_hopper_kernel_does_not_take(name: str, gpu: Gpu) -> None:
    call, mask = UNUSUAL[name](), cm.causal()
    for _ in range(2):
        cm.attention(*call, mask=mask)
    assert len(gpu.portable) == 2
    assert not gpu.launches
