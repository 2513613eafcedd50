"""How the Hopper kernel is chosen, and what the CUDA driver is given, with a driver that only takes notes."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from xdsl.dialects.builtin import bf16

import compilemask
from compilemask.errors import DescriptorError, DeviceError
from compilemask.lowering.patch_grid import Patches, PatchGrid
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule
from compilemask.lowering.tiling_to_ttg.attention_frame import kernel_arguments
from compilemask.runtime import compile
from compilemask.runtime.gpu import driver, hopper, tensor_map
from compilemask.runtime.gpu.attention_cuda import attention_cuda
from compilemask.runtime.gpu.binary import Binary
from compilemask.runtime.gpu.driver import Kernel
from compilemask.runtime.gpu.hopper import best_rows, has_hopper_kernel, heads_together, prepare_launch
from compilemask.runtime.gpu.patch_maps import PatchMaps, has_patch_maps
from compilemask.runtime.gpu.target import Target
from compilemask.runtime.gpu.tensor_map import TensorMaps, is_aligned, is_readable
from compilemask.runtime.parameters import Parameter
from compilemask.runtime.program import kernel_arguments as kernel_arguments_of


class Driver:
    """Notes what tensor maps and launches it is asked for."""

    def __init__(self) -> None:
        self.maps: list[Any] = []
        self.launches: list[Any] = []
        self.contexts: list[int | None] = []
        self.status = 0

    def cuGetErrorName(self, status: int, name: Any) -> int:
        return _put(name, b"CUDA_ERROR_FAKE")

    def cuCtxGetCurrent(self, context: Any) -> int:
        return _put(context, 7 if threading.current_thread() is threading.main_thread() else None)

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.contexts.append(context.value)
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        return _put(context, 7)

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        return _put(module, 8)

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        return _put(function, 9)

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        return 0

    def cuTensorMapEncodeTiled(self, start: int, *arguments: Any) -> int:
        assert start % 64 == 0
        dtype, rank, address, *arrays = arguments
        self.maps.append((dtype, rank, address, *map(list, arrays[:4]), *arrays[4:]))
        ctypes.memset(start, len(self.maps), 128)
        return self.status

    def cuLaunchKernel(self, *arguments: Any) -> int:
        self.launches.append(arguments)
        return self.status


def _put(place: Any, value: Any) -> int:
    place._obj.value = value
    return 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    for module in (driver, tensor_map):
        monkeypatch.setattr(module, "library", lambda: fake)
    return fake


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
    x = what()
    assert (is_aligned(x) and is_readable(x.shape, x.stride(), x.element_size())) is expected


def maps_of(x: torch.Tensor, rows: int) -> TensorMaps:
    return TensorMaps(x.shape, x.stride(), x.dtype, rows)


def test_a_tensor_map_lists_dimensions_from_the_last(fake: Driver) -> None:
    x = half(2, 100, 4, 128).transpose(1, 2)
    maps = maps_of(x, 64)
    first = maps[x.data_ptr()]
    assert first == bytes([1] * 128)
    (dtype, rank, address, shape, strides, box, steps, *modes) = fake.maps[0]
    assert (dtype, rank, address) == (9, 4, x.data_ptr())
    assert shape == [128, 100, 4, 2]
    assert strides == [2 * 4 * 128, 2 * 128, 2 * 100 * 4 * 128]
    assert box == [64, 64, 1, 1]
    assert steps == [1, 1, 1, 1]
    assert modes == [0, 3, 2, 0]
    assert maps[x.data_ptr()] is first
    assert maps[x.data_ptr() + 64] != first
    assert fake.maps[1][2] == x.data_ptr() + 64
    assert len(fake.maps) == 2


def test_strides_of_dimensions_of_one_element_are_valid(fake: Driver) -> None:
    x = half(1, 1, 100, 64).as_strided((1, 1, 100, 64), (7, 3, 64, 1))
    assert len(maps_of(x, 64)[x.data_ptr()]) == 128
    assert fake.maps[0][4] == [128, 128, 128]


def test_maps_of_an_image(fake: Driver) -> None:
    """Of the sequence, the tokens before the image, and the image line by line."""
    grid = PatchGrid(10, (20, 30), (8, 16), 700)
    x = half(2, 700, 4, 128).transpose(1, 2)
    line = 2 * 4 * 128
    PatchMaps.of(x.shape, x.stride(), x.dtype, 64, grid).at(x.data_ptr())
    sequence, before, image = fake.maps
    assert sequence[2:6] == (x.data_ptr(), [128, 700, 4, 2], [line, 256, 700 * line], [64, 64, 1, 1])
    assert before[2:6] == (x.data_ptr(), [128, 10, 4, 2], [line, 256, 700 * line], [64, 64, 1, 1])
    assert image[1] == 5
    assert image[2:4] == (x.data_ptr() + 10 * line, [128, 30, 20, 4, 2])
    assert image[4:6] == ([line, 30 * line, 256, 700 * line], [64, 16, 4, 1, 1])


def test_maps_of_a_video_at_the_beginning(fake: Driver) -> None:
    grid = PatchGrid(0, (5, 6, 9), (4, 4, 8), 300)
    x = half(2, 4, 300, 64)
    found = PatchMaps.of(x.shape, x.stride(), x.dtype, 128, grid).at(x.data_ptr())
    assert found[0] == found[1]
    image = fake.maps[1]
    assert image[1:4] == (5, x.data_ptr(), [64, 9, 6, 5, 8])
    assert image[4:6] == ([128, 9 * 128, 54 * 128, 300 * 128], [64, 8, 4, 4, 1])


@pytest.mark.parametrize(
    ("x", "sizes", "expected"),
    [
        (half(2, 4, 300, 64), (5, 6, 9), True),
        (half(2, 300, 4, 64).transpose(1, 2), (15, 18), True),
        (half(2, 300, 4, 64).transpose(1, 2), (5, 6, 9), False),
        (half(1, 300, 4, 64).transpose(1, 2), (5, 6, 9), True),
        (half(2, 300, 1, 64).transpose(1, 2), (5, 6, 9), True),
    ],
)
def test_which_tensors_have_patches(x: torch.Tensor, sizes: tuple[int, ...], expected: bool) -> None:
    """TMA has five dimensions: batches and heads of a video must be one."""
    assert has_patch_maps(x.shape, x.stride(), 2, sizes) is expected


def test_old_tensor_maps_are_forgotten(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_map, "KEPT_MAPS", 2)
    maps = maps_of(half(1, 1, 8, 64), 64)
    assert [len(maps[address]) for address in (16, 32, 48, 48)] == [128] * 4
    assert [found[2] for found in fake.maps] == [16, 32, 48]


def test_errors_of_the_driver_are_raised(fake: Driver) -> None:
    kernel = Kernel(_binary(HopperConfig()), str, 0)
    fake.status = 700
    with pytest.raises(DeviceError, match=r"encode a tensor map .*: CUDA_ERROR_FAKE \(700\)"):
        _ = maps_of(half(1, 1, 8, 64), 64)[16]
    with pytest.raises(DeviceError, match="launch attention"):
        kernel((1, 1, 1), 0, [b""] * 4 + [0] * 15 + [1.0])


def test_a_thread_without_a_context_gets_that_of_the_kernel(fake: Driver) -> None:
    kernel = Kernel(_binary(HopperConfig()), str, 0)
    call = partial(kernel, (1, 1, 1), 0, [b""] * 4 + [0] * 15 + [1.0])
    for _ in range(2):
        call()
    assert fake.contexts == []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            pool.submit(call).result()
        assert fake.contexts == [7]
        pool.submit(Kernel, _binary(HopperConfig()), str, 0).result()
    assert fake.contexts == [7, 7]


def test_a_launch_reaches_c_whole(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments have no declared types, which take long: pointers need all bits, and lengths of grids 32."""
    seen: list[tuple[int, ...]] = []
    types = (ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)

    @ctypes.CFUNCTYPE(ctypes.c_int, *types)
    def take(*arguments: int) -> int:
        seen.append(arguments)
        return 0

    address = ctypes.cast(take, ctypes.c_void_p).value
    assert address is not None
    monkeypatch.setattr(fake, "cuLaunchKernel", ctypes.CFUNCTYPE(ctypes.c_int)(address))
    kernel = Kernel(_binary(HopperConfig()), str, 0)
    kernel((2**31 - 1, 65535, 3), 2**47 + 8, [b""] * 4 + [0] * 15 + [1.0])
    *numbers, pointers, extra = seen[0]
    assert numbers == [9, 2**31 - 1, 65535, 3, 384, 1, 1, 1000, 2**47 + 8]
    assert pointers == ctypes.addressof(kernel._local.memory[1])
    assert extra is None


def _binary(config: HopperConfig) -> Binary:
    pointers = len(kernel_arguments(config)) - 15
    formats = ["128s"] * 4 + ["Q"] * pointers + ["i"] * 10 + ["f"] + ["Q"] * 2
    sizes = [struct.calcsize(f"={part}") for part in formats]
    offsets = tuple(sum(sizes[:index]) for index in range(len(sizes)))
    return Binary(b"", "attention", 384, 1000, "=" + "".join(formats), offsets, (0, 0))


@pytest.mark.parametrize("schedule", Schedule)
def test_arguments_of_a_launch(fake: Driver, schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    config = HopperConfig(schedule=schedule)
    counter = torch.zeros(2, dtype=torch.int32)
    hopper._plan.cache_clear()
    monkeypatch.setattr(hopper, "_kernel", lambda *_: Kernel(_binary(config), str, 0))
    monkeypatch.setattr(hopper, "_counter", lambda _: counter)
    monkeypatch.setattr(hopper, "_processors", lambda _: 5)
    q, k, v = half(2, 6, 300, 128), half(2, 3, 500, 128), half(2, 3, 500, 128)
    out, lse = torch.empty_like(q), torch.empty(2, 6, 300)
    descriptor = compile(compilemask.causal()).descriptor(300, 500)
    launch = prepare_launch(q, k, v, out, lse, descriptor, 0.5, config)
    assert len(launch.arguments) == len(kernel_arguments(config))
    assert launch.programs == (3 * 12 if schedule is Schedule.GRID else 5)
    launch.kernel((launch.programs, 1, 1), 99, launch.arguments)
    function, *grid, shared, stream, pointers, extra = fake.launches[0]
    assert (function.value, grid) == (9, [launch.programs, 1, 1, 384, 1, 1])
    assert (shared, stream.value, extra) == (1000, 99, None)
    given = list(pointers)[: len(launch.arguments)]
    names = [argument.name for argument in kernel_arguments(config)]
    at = dict(zip(names, given, strict=True))
    assert ctypes.string_at(at["k"], 128) == bytes([2] * 128)
    base = descriptor.buffer.data_ptr()
    assert ctypes.c_uint64.from_address(at["visits"]).value == base + 4 * descriptor.layout.visits
    numbers = [ctypes.c_int32.from_address(at[name]).value for name in names[-11:-1]]
    assert numbers == [6, 2, 300, 500, 3, 0, 0, 12, 12, 12]
    assert ctypes.c_float.from_address(at["scale"]).value == 0.5
    if schedule is Schedule.ATOMIC:
        assert ctypes.c_uint64.from_address(at["counter"]).value == counter.data_ptr()
    again = prepare_launch(q.clone(), k, v, torch.empty_like(q), lse, descriptor, 0.25, config)
    assert again.arguments[0] != launch.arguments[0]
    assert again.arguments[1:3] == launch.arguments[1:3]
    assert hopper._plan.cache_info().misses == 1
    hopper._plan.cache_clear()


@pytest.mark.parametrize(
    ("dtype", "keys", "score", "keeps_peaks"),
    [
        (torch.bfloat16, 4096, "", True),
        (torch.bfloat16, 4095, "", False),
        (torch.float16, 4096, "", False),
        (torch.bfloat16, 4096, compilemask.score.softcap(3.0).plan.text, False),
        (torch.bfloat16, 4096, compilemask.score.silu().plan.text, False),
        (torch.bfloat16, 4096, compilemask.score.sink(torch.zeros(6)).plan.text, True),
    ],
)
def test_which_calls_keep_first_peaks(
    dtype: torch.dtype, keys: int, score: str, keeps_peaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[HopperConfig] = []

    def binary(_: int, __: torch.dtype, config: HopperConfig, ___: str) -> Binary:
        asked.append(config)
        return _binary(config)

    monkeypatch.setattr(hopper, "hopper_binary", binary)
    monkeypatch.setattr(hopper, "_kernel", lambda *_: None)
    monkeypatch.setattr(hopper, "_processors", lambda _: 132)
    monkeypatch.setattr(hopper, "target_of", lambda _: hopper.HOPPER)
    for kept in (hopper._plan, hopper._chosen_plan, hopper._chosen):
        kept.cache_clear()
    q, k = (torch.empty(1, 6, length, 128, dtype=dtype) for length in (300, keys))
    layout = compile(compilemask.causal()).descriptor(300, keys).layout
    assert hopper._chosen_plan(*hopper.kind_of(q, k, k), layout, score) is not None
    assert [config.keeps_peaks for config in asked] == [keeps_peaks]
    for kept in (hopper._plan, hopper._chosen_plan, hopper._chosen):
        kept.cache_clear()


def test_arguments_of_a_launch_with_patches(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    patches = Patches(20, (16, 40), 20 + 640 + 3, (8, 16), (16, 8))
    config = HopperConfig(query_patch=(8, 16), key_patch=(16, 8))
    monkeypatch.setattr(hopper, "_kernel", lambda *_: None)
    monkeypatch.setattr(hopper, "_processors", lambda _: 5)
    hopper._plan.cache_clear()
    q, k = half(1, 4, 663, 128), half(1, 2, 663, 128)
    out, lse = torch.empty_like(q), torch.empty(1, 4, 663)
    descriptor = compile(compilemask.clear(16, 40, 3, text=20)).descriptor(663, 663, patches=patches)
    launch = prepare_launch(q, k, k, out, lse, descriptor, 0.5, config)
    names = [argument.name for argument in kernel_arguments(config)]
    at = dict(zip(names, launch.arguments, strict=True))
    assert [names[0], *names[9:12]] == ["q", "out", "out_before", "out_image"]
    assert [at[name] for name in names[:12]] == [bytes([number] * 128) for number in range(1, 13)]
    assert [found[1] for found in fake.maps] == [4, 4, 5] * 4
    assert (at["queries"], at["keys"], at["query_tiles"]) == (128 + 6 * 128 + 3, 128 + 5 * 128 + 3, 8)
    assert [at[name] for name in names[-5:]] == [20, 663, 16, 40, 0.5]
    with pytest.raises(DescriptorError, match="no patches"):
        prepare_launch(q, k, k, out, lse, compile(compilemask.causal()).descriptor(663, 663), 0.5, config)
    with pytest.raises(DescriptorError, match="Patches"):
        prepare_launch(q, k, k, out, lse, descriptor, 0.5, HopperConfig())
    hopper._plan.cache_clear()


def test_builds_are_kept_by_what_decides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of one form share a build, which is given their addresses each time."""
    mask = compilemask.shared_prompt(torch.tensor([0, 20, 50])) & compilemask.padding(torch.tensor([50]))
    program = compile(mask).program
    launched: list[list[Any]] = []
    monkeypatch.setattr(program, "loaded", lambda _: dict.fromkeys(("count", "fill", "patterns")))
    monkeypatch.setattr("compilemask.runtime.program.KEPT_BUILDS", 3)
    monkeypatch.setattr("compilemask.runtime.program.empty", lambda shape, *_: torch.empty(shape, dtype=torch.int32))
    monkeypatch.setattr("compilemask.runtime.program.launch_in_order", lambda *given: launched.append(given[2]))
    cpu, table = torch.device("cpu"), torch.tensor([[0, 20, 50], [0, 30, 50]], dtype=torch.int32)
    names = [parameter.name for parameter in compile(mask).parameters]
    lengths = torch.tensor([[50], [40]], dtype=torch.int32)

    def parameters(table: torch.Tensor) -> list[Parameter]:
        return [Parameter(name, value) for name, value in zip(names, (table, lengths), strict=True)]

    def build(table: torch.Tensor, length: int = 50) -> Any:
        return program._build_for(parameters(table), length, length, cpu)

    first, other = build(table), table.clone()
    assert build(table) is first
    assert build(other) is first
    for given in (table, other):
        descriptor = first(parameters(given))
        assert launched[-1] == kernel_arguments_of(descriptor.buffer.data_ptr(), first.layout, parameters(given))
        assert launched[-1][-8:] == [given.data_ptr(), 3, 3, 0, lengths.data_ptr(), 1, 1, 0]
    others = [build(table, 60), build(table[:, :2]), build(table[:1])]
    assert all(other is not first and other.arguments != first.arguments for other in others)
    assert len(program._builds) <= 3
    assert build(table).arguments == first.arguments
    assert build(table, 0) is None


def test_heads_that_share_the_cache() -> None:
    assert heads_together((1, 16, 8192, 128), 2, 8192, 16, 16) == (8, 4)
    assert heads_together((1, 8, 32768, 128), 2, 32768, 8, 8) == (2, 2)
    assert heads_together((1, 8, 32768, 128), 2, 32768, 32, 32) == (8, 8)
    assert heads_together((1, 8, 1000, 128), 2, 1000, 16, 16) == (16, 16)
    assert heads_together((1, 8, 8192, 128), 2, 16, 32, 32) == (32, 32)
    assert heads_together((1, 1, 10**6, 128), 2, 10**6, 4, 4) == (4, 4)


def test_which_inputs_take_the_hopper_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "target_of", lambda _: Target("cuda", 90))
    x = half(1, 2, 10, 128)
    assert has_hopper_kernel(x, x, x)
    assert not has_hopper_kernel(x, x, half(1, 2, 10, 132)[..., :128])
    assert not has_hopper_kernel(x.float(), x.float(), x.float())
    assert has_hopper_kernel(*[half(1, 2, 10, 96)] * 3)
    assert has_hopper_kernel(*[half(1, 2, 10, 8)] * 3)
    assert not has_hopper_kernel(*[half(1, 2, 1, 12)] * 3)
    assert not has_hopper_kernel(*[half(1, 2, 10, 136)] * 3)
    monkeypatch.setattr(hopper, "target_of", lambda _: Target("cuda", 100))
    assert not has_hopper_kernel(x, x, x)


def test_without_a_driver_there_is_an_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    with pytest.raises(DeviceError, match="the CUDA driver cannot be used"):
        driver.library()


def test_what_triton_cannot_compile_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from compilemask.errors import TargetError

    def fail(*_: object) -> Binary:
        raise TargetError("no")

    monkeypatch.setattr(hopper, "hopper_binary", fail)
    hopper._chosen.cache_clear()
    with pytest.warns(RuntimeWarning, match="portable kernel: no"):
        assert hopper._chosen(128, torch.bfloat16, Schedule.GRID, "", 128, True) is None
    hopper._chosen.cache_clear()


def test_rows_of_the_tiles_that_attention_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 where there are no more tiles than processors; else 192 where the Hopper kernel has three consumers."""
    monkeypatch.setattr(hopper, "target_of", lambda _: Target("cuda", 90))
    monkeypatch.setattr(hopper, "_processors", lambda _: 5)
    monkeypatch.setattr(hopper, "hopper_binary", lambda *_: None)
    for cached in (hopper._best_rows, hopper._chosen):
        cached.cache_clear()
    x = half(1, 2, 300, 64)
    assert best_rows(x, x, x) == 192
    for expected, given in ((192, half(1, 2, 300, 40)), (None, half(1, 2, 300, 128)), (64, half(1, 2, 256, 128))):
        assert best_rows(given, given, given) == expected
    assert best_rows(half(1, 2, 256, 64), x, x) == 64
    assert best_rows(x.float(), x.float(), x.float()) is None
    assert best_rows(x, x, half(1, 2, 300, 68)[..., :64]) is None
    assert hopper._chosen(128, torch.bfloat16, Schedule.GRID, "", 192, True) is None
    for cached in (hopper._best_rows, hopper._chosen):
        cached.cache_clear()


def test_rows_that_a_kernel_does_not_compute() -> None:
    q = half(1, 2, 300, 64)
    low, high = (compile(compilemask.causal()).descriptor(300, rows=rows) for rows in (128, 192))
    for descriptor, config in ((low, HopperConfig.choose(64, bf16, 192)), (high, HopperConfig.choose(64, bf16))):
        with pytest.raises(DescriptorError, match="query rows, the kernel takes"):
            prepare_launch(q, q, q, q, torch.empty(1, 2, 300), descriptor, 0.5, config)
    with pytest.raises(DescriptorError, match="tiles of 192 query rows; for these inputs expected 128"):
        attention_cuda(q, q, q, high, 0.5)


def test_programs_persist_if_there_are_more_tiles_than_processors() -> None:
    assert Schedule.choose(132, 132) is Schedule.GRID
    assert Schedule.choose(133, 132) is Schedule.ATOMIC


def test_a_negative_scale_is_that_of_negative_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(hopper, "attention_cuda", lambda *arguments: given.append(arguments))
    monkeypatch.setattr(hopper, "_processors", lambda _: 5)
    q, k, v = (torch.randn(1, 2, 10, 16) for _ in range(3))
    descriptor = compile(compilemask.causal()).descriptor(10)
    for scale in (-0.5, 0.5):
        hopper.attention_gpu(q, k, v, descriptor, scale)
    assert [arguments[4] for arguments in given] == [0.5, 0.5]
    assert torch.equal(given[0][0], -q)
    assert given[1][0] is q
