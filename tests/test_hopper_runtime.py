"""How the Hopper kernel is chosen, and what the CUDA driver is given, with a driver that only takes notes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import compilemask
from compilemask.errors import DeviceError
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule
from compilemask.lowering.tiling_to_ttg.attention_frame import kernel_arguments
from compilemask.runtime import compile, hopper, hopper_driver
from compilemask.runtime.hopper import has_hopper_kernel, heads_together, prepare_launch
from compilemask.runtime.hopper_compile import Binary
from compilemask.runtime.hopper_driver import Kernel, has_tensor_map, tensor_map
from compilemask.runtime.target import Target


class Driver:
    """Notes what tensor maps and launches it is asked for."""

    cuuint32_t = cuuint64_t = int

    def __init__(self) -> None:
        self.maps: list[Any] = []
        self.launches: list[Any] = []
        self.status = 0

    def __getattr__(self, name: str) -> Any:
        return _Names(name)

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> tuple[int, Any]:
        self.maps.append(arguments)
        buffer = ctypes.create_string_buffer(bytes([len(self.maps)] * 128), 128)
        return self.status, SimpleNamespace(getPtr=lambda: ctypes.addressof(buffer), keep=buffer)

    def cuModuleLoadData(self, image: bytes) -> tuple[int, str]:
        return 0, "module"

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[int, str]:
        return 0, name.decode()

    def cuFuncSetAttribute(self, function: str, attribute: Any, value: int) -> tuple[int]:
        return (0,)

    def CUlaunchConfig(self) -> Any:
        return SimpleNamespace()

    def cuLaunchKernelEx(self, config: Any, function: str, pointers: int, extra: int) -> tuple[int]:
        self.launches.append((vars(config).copy(), function, pointers))
        return (self.status,)


class _Names(str):
    """A name whose members are names."""

    def __getattr__(self, name: str) -> _Names:
        return _Names(name)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    fake = Driver()
    for module in (hopper, hopper_driver):
        monkeypatch.setattr(module, "bindings", lambda: fake)
    hopper_driver._maps.clear()
    yield fake
    hopper_driver._maps.clear()


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (lambda: half(2, 4, 100, 64), True),
        (lambda: half(2, 100, 4, 64).transpose(1, 2), True),
        (lambda: half(2, 4, 100, 72)[..., :64], True),
        (lambda: half(2, 4, 100, 68)[..., :64], False),
        (lambda: half(2, 4, 100, 72)[..., 1:65], False),
        (lambda: half(2, 4, 64, 100).transpose(2, 3), False),
        (lambda: half(1, 4, 100, 64).expand(2, 4, 100, 64), False),
        (lambda: half(3, 4, 100, 64)[:1].expand(1, 4, 100, 64), True),
        (lambda: half(2, 4, 0, 64), False),
    ],
)
def test_what_tma_reads(what: Callable[[], torch.Tensor], expected: bool) -> None:
    assert has_tensor_map(what()) is expected


def test_a_tensor_map_lists_dimensions_from_the_last(driver: Driver) -> None:
    x = half(2, 100, 4, 128).transpose(1, 2)
    first = tensor_map(x, 64)
    assert first == bytes([1] * 128)
    (_, rank, address, shape, strides, box, steps, *_) = driver.maps[0]
    assert (rank, address) == (4, x.data_ptr())
    assert shape == [128, 100, 4, 2]
    assert strides == [2 * 4 * 128, 2 * 128, 2 * 100 * 4 * 128]
    assert box == [64, 64, 1, 1]
    assert steps == [1, 1, 1, 1]
    assert tensor_map(x, 64) is first
    assert tensor_map(x, 128) != first
    assert len(driver.maps) == 2


def test_strides_of_dimensions_of_one_element_are_valid(driver: Driver) -> None:
    tensor_map(half(1, 1, 100, 64).as_strided((1, 1, 100, 64), (7, 3, 64, 1)), 64)
    assert driver.maps[0][4] == [128, 128, 128]


def test_old_tensor_maps_are_forgotten(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper_driver, "KEPT_MAPS", 2)
    tensors = [half(1, 1, 8, 64) for _ in range(4)]
    for x in tensors:
        tensor_map(x, 64)
    assert len(hopper_driver._maps) == 2


def test_errors_of_the_driver_are_raised(driver: Driver) -> None:
    driver.status = 700
    with pytest.raises(DeviceError, match="tensor map"):
        tensor_map(half(1, 1, 8, 64), 64)
    with pytest.raises(DeviceError, match="launch attention"):
        Kernel(_binary(HopperConfig()))(1, 0, [b""] * 4 + [0] * 14 + [1.0])


def _binary(config: HopperConfig) -> Binary:
    pointers = len(kernel_arguments(config)) - 14
    formats = ["128s"] * 4 + ["Q"] * pointers + ["i"] * 9 + ["f"] + ["Q"] * 2
    sizes = [struct.calcsize(f"={part}") for part in formats]
    offsets = tuple(sum(sizes[:index]) for index in range(len(sizes)))
    return Binary(b"", "attention", 384, 1000, "=" + "".join(formats), offsets, (0, 0))


@pytest.mark.parametrize("schedule", Schedule)
def test_arguments_of_a_launch(driver: Driver, schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    config = HopperConfig(schedule=schedule)
    counter = torch.zeros(2, dtype=torch.int32)
    monkeypatch.setattr(hopper, "_kernel", lambda *_: Kernel(_binary(config)))
    monkeypatch.setattr(hopper, "_counter", lambda _: counter)
    monkeypatch.setattr(hopper, "_processors", lambda _: 5)
    q, k, v = half(2, 6, 300, 128), half(2, 3, 500, 128), half(2, 3, 500, 128)
    out, lse = torch.empty_like(q), torch.empty(2, 6, 300)
    descriptor = compile(compilemask.causal()).descriptor(300, 500)
    launch = prepare_launch(q, k, v, out, lse, descriptor, 0.5, config)
    assert len(launch.arguments) == len(kernel_arguments(config))
    assert launch.programs == (3 * 12 if schedule is Schedule.GRID else 5)
    launch.kernel(launch.programs, 99, launch.arguments)
    grid, function, pointers = driver.launches[0]
    assert (grid["gridDimX"], grid["blockDimX"], grid["sharedMemBytes"], grid["hStream"]) == (
        launch.programs,
        384,
        1000,
        99,
    )
    assert function == "attention"
    given = (ctypes.c_uint64 * len(launch.arguments)).from_address(pointers)
    names = [argument.name for argument in kernel_arguments(config)]
    at = dict(zip(names, given, strict=True))
    assert ctypes.string_at(at["k"], 128) == bytes([2] * 128)
    base = descriptor.buffer.data_ptr()
    assert ctypes.c_uint64.from_address(at["visits"]).value == base + 4 * descriptor.layout.visits
    numbers = [ctypes.c_int32.from_address(at[name]).value for name in names[-10:-1]]
    assert numbers == [6, 2, 300, 500, 3, 0, 0, 12, 12]
    assert ctypes.c_float.from_address(at["scale"]).value == 0.5
    if schedule is Schedule.ATOMIC:
        assert ctypes.c_uint64.from_address(at["counter"]).value == counter.data_ptr()


def test_heads_that_share_the_cache() -> None:
    key = torch.empty(1, 8, 32768, 128, dtype=torch.bfloat16, device="meta")
    assert heads_together(key, 8, 8) == 2
    assert heads_together(key, 32, 32) == 8
    assert heads_together(key[:, :, :1000], 16, 16) == 16
    assert heads_together(torch.empty(1, 1, 10**6, 128, dtype=torch.bfloat16, device="meta"), 4, 4) == 4


def test_which_inputs_take_the_hopper_kernel(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "target_of", lambda _: Target("cuda", 90))
    x = half(1, 2, 10, 128)
    assert has_hopper_kernel(x, x, x)
    assert not has_hopper_kernel(x, x, half(1, 2, 10, 132)[..., :128])
    assert not has_hopper_kernel(x.float(), x.float(), x.float())
    assert not has_hopper_kernel(*[half(1, 2, 10, 96)] * 3)
    monkeypatch.setattr(hopper, "target_of", lambda _: Target("cuda", 100))
    assert not has_hopper_kernel(x, x, x)
    monkeypatch.setattr(hopper, "target_of", lambda _: Target("cuda", 90))
    monkeypatch.setattr(hopper, "bindings", lambda: None)
    assert not has_hopper_kernel(x, x, x)


def test_without_a_driver_there_are_no_bindings() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    hopper_driver.bindings.cache_clear()
    assert hopper_driver.bindings() is None


def test_what_triton_cannot_compile_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from compilemask.errors import TargetError

    def fail(*_: object) -> Binary:
        raise TargetError("no")

    monkeypatch.setattr(hopper, "hopper_binary", fail)
    hopper._chosen.cache_clear()
    with pytest.warns(RuntimeWarning, match="portable kernel: no"):
        assert hopper._chosen(128, torch.bfloat16) is None
    hopper._chosen.cache_clear()
