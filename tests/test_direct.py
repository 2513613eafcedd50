"""Calls that go past PyTorch's dispatcher: only where it would do nothing, with equal results and equal errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import random_inputs
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import compilemask
from compilemask.errors import CompileMaskError
from compilemask.runtime import compile
from compilemask.runtime.calls import operator
from compilemask.runtime.calls.direct import is_direct


class Subclass(torch.Tensor):
    """A tensor with behavior of its own."""


class Mode(TorchDispatchMode):
    """Sees every operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def tensor() -> torch.Tensor:
    return random_inputs(1, 2, 2, 40, 40, 16)[0]


Seen = Callable[[torch.Tensor], torch.Tensor]


def in_context(context: Callable[[], Any], seen: Seen, x: torch.Tensor) -> None:
    with context():
        seen(x)


def in_dual_level(seen: Seen, x: torch.Tensor) -> None:
    with forward_ad.dual_level():
        seen(forward_ad.make_dual(x, torch.ones_like(x)))


def in_fx(seen: Seen, x: torch.Tensor) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    make_fx(lambda y: seen(y) + 1)(x)


def in_fake_mode(seen: Seen, x: torch.Tensor) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        seen(mode.from_tensor(x))


def in_profile(seen: Seen, x: torch.Tensor) -> None:
    with torch.autograd.profiler.profile():
        seen(x)


LEFT_TO_THE_DISPATCHER: dict[str, Callable[[Seen, torch.Tensor], Any]] = {
    "parameter": lambda seen, x: seen(torch.nn.Parameter(x)),
    "subclass": lambda seen, x: seen(x.as_subclass(Subclass)),
    "vmap": lambda seen, x: torch.vmap(seen)(x),
    "inside vmap": lambda seen, x: torch.vmap(lambda y: y + seen(x))(x),
    "grad": lambda seen, x: torch.func.grad(lambda y: seen(y).sum())(x),
    "jvp": lambda seen, x: torch.func.jvp(seen, (x,), (x,)),
    "functionalize": lambda seen, x: torch.func.functionalize(seen)(x),
    "dual": in_dual_level,
    "trace": lambda seen, x: torch.jit.trace(lambda y: seen(y) + 1, x, check_trace=False),
    "fx": in_fx,
    "fake": in_fake_mode,
    "autocast": lambda seen, x: in_context(lambda: torch.autocast("cpu", torch.bfloat16), seen, x),
    "dispatch mode": lambda seen, x: in_context(Mode, seen, x),
    "function mode": lambda seen, x: in_context(lambda: torch.device("cpu"), seen, x),
    "profile": in_profile,
    "negative": lambda seen, x: seen(torch.complex(x, x).conj().imag),
    "sparse": lambda seen, x: seen(x.to_sparse()),
    "meta": lambda seen, x: seen(x.to("meta")),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LEFT_TO_THE_DISPATCHER)
def test_left_to_the_dispatcher(name: str) -> None:
    seen: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(is_direct(x, x, x))
        return x

    LEFT_TO_THE_DISPATCHER[name](look, tensor())
    assert seen == [False]


def test_one_such_tensor_is_enough() -> None:
    x = tensor()
    strange = x.as_subclass(Subclass)
    assert is_direct(x, x, x)
    assert not any([is_direct(strange, x, x), is_direct(x, strange, x), is_direct(x, x, strange)])


def test_direct() -> None:
    x, leaf = tensor(), tensor().requires_grad_()
    assert is_direct(x, x, x)
    assert is_direct(leaf, x, x)
    with torch.no_grad():
        assert is_direct(leaf, leaf, leaf)
    with torch.inference_mode():
        assert is_direct(x, x, x)
        assert is_direct(*[tensor()] * 3)


def test_traced_by_torch_compile() -> None:
    descriptor = compile(compilemask.causal()).descriptor(40, 40)
    q, k, v = random_inputs(1, 2, 2, 40, 40, 16)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    traced = torch.compile(lambda: operator.attention(q, k, v, descriptor), fullgraph=True, backend=backend)
    assert torch.equal(traced(), operator.attention(q, k, v, descriptor))
    assert any("compilemask" in str(node.target) for node in graphs[0].graph.nodes)


def test_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = random_inputs(2, 4, 2, 100, 120, 16)
    masks = [compilemask.causal(), compile(compilemask.hstu(80, 10)), compile(compilemask.full()).descriptor(100, 120)]
    for mask in masks:
        direct = operator.attention(q, k, v, mask, scale=0.3, return_lse=True)
        with monkeypatch.context() as context:
            context.setattr(operator, "direct_call", lambda *_: None)
            through = operator.attention(q, k, v, mask, scale=0.3, return_lse=True)
        assert all(torch.equal(a, b) for a, b in zip(direct, through, strict=True))


BAD: dict[str, Callable[[torch.Tensor], dict[str, Any]]] = {
    "rank": lambda x: {"q": x[0]},
    "types": lambda x: {"k": x.half()},
    "integers": lambda x: dict.fromkeys("qkv", x.int()),
    "sizes": lambda x: {"v": x[..., :8]},
    "scale": lambda x: {"scale": float("nan")},
    "other lengths": lambda x: {"q": x[:, :, :30], "mask": compile(compilemask.causal()).descriptor(40)},
    "mask too long": lambda x: {"mask": compilemask.hstu(100)},
    "no mask": lambda x: {"mask": "causal"},
    "heads": lambda x: {"mask": compilemask.document(torch.tensor([[[0, 40]] * 3]))},
}


@pytest.mark.parametrize("name", BAD)
def test_the_same_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor()
    arguments: dict[str, Any] = {"q": x, "k": x, "v": x, "mask": compilemask.causal()} | BAD[name](x)
    errors = []
    for direct in (True, True, False):  # twice: what is right is remembered, and what is wrong must not be
        if not direct:
            monkeypatch.setattr(operator, "direct_call", lambda *_: None)
        with pytest.raises(CompileMaskError) as caught:
            operator.attention(**arguments)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1] == errors[2]


def test_a_mask_is_compiled_once_and_not_kept_alive() -> None:
    from compilemask.runtime import compiled

    mask = compilemask.causal() & compilemask.document(torch.tensor([0, 10, 40]))
    assert compile(mask) is compile(mask)
    assert mask in compiled._compiled
    before = len(compiled._compiled)
    del mask
    assert len(compiled._compiled) == before - 1


def test_debug_compiles_a_known_mask_anew() -> None:
    mask = compilemask.causal()
    known = compile(mask)
    with compilemask.debug():
        assert compile(mask).program is not known.program


def test_nothing_is_imported_that_takes_seconds() -> None:
    """PyTorch's compiler and Triton: not for attention on a CPU, nor for its gradients."""
    program = """
import sys, torch, compilemask
q, k, v = (torch.randn(1, 1, 20, 16, requires_grad=True) for _ in range(3))
compilemask.attention(q.detach(), k.detach(), v.detach(), compilemask.causal())
compilemask.attention(q, k, v, compilemask.causal()).sum().backward()
print(*sorted({"torch._dynamo", "torch._inductor", "sympy", "triton"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
