"""What torch functions do to traced tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
import torch

from compilemask.errors import MaskError
from compilemask.language.from_mask_mod_graph import Graph, Node
from compilemask.language.from_mask_mod_trace import WITH_INTEGERS, Nodes, Traced, Tracer, as_array, refuse
from compilemask.language.from_mask_mod_types import NARROW, common_type, kept, wrapped
from compilemask.language.narrowing import is_listed, is_tuple

Rule = Callable[..., Any]
Elementwise = Callable[[Graph, Node], Node] | Callable[[Graph, Node, Node], Node] | Callable[..., Node]

# ---- element by element ----


def _binary(kind: str) -> Callable[[Graph, Node, Node], Node]:
    return lambda graph, a, b: graph.binary(kind, a, b)


def _compare(kind: str) -> Callable[[Graph, Node, Node], Node]:
    return lambda graph, a, b: graph.compare(kind, a, b)


def _logical(kind: str) -> Callable[[Graph, Node, Node], Node]:
    return lambda graph, a, b: graph.binary(kind, graph.as_truth(a), graph.as_truth(b))


def _modulo(graph: Graph, a: Node, b: Node) -> Node:
    return graph.modulo(graph.as_integer(a), graph.as_integer(b))


def _negative(graph: Graph, a: Node) -> Node:
    return graph.binary("sub", graph.integer(0), a)


def _truncated(graph: Graph, a: Node, b: Node) -> Node:
    a, b = graph.as_integer(a), graph.as_integer(b)
    quotient = graph.binary("floordiv", _absolute(graph, a), _absolute(graph, b))
    differ = graph.compare("slt", graph.binary("xor", a, b), graph.integer(0))
    return graph.select(differ, _negative(graph, quotient), quotient)


def _truncated_remainder(graph: Graph, a: Node, b: Node) -> Node:
    return graph.binary("sub", a, graph.binary("mul", _truncated(graph, a, b), b))


def _sign(graph: Graph, a: Node) -> Node:
    return graph.binary("max", graph.binary("min", a, graph.integer(1)), graph.integer(-1))


def _absolute(graph: Graph, a: Node) -> Node:
    return graph.binary("max", a, _negative(graph, a))


def _power(graph: Graph, a: Node, b: Node) -> Node:
    if b.number is None or not 0 <= b.number <= 8:
        refuse("raises to a power that is not a small constant")
    return reduce(lambda x, y: graph.binary("mul", x, y), [a] * b.number, graph.integer(1))


_TWO: dict[str, Callable[[Graph, Node, Node], Node]] = {
    "add": _binary("add"),
    "sub": _binary("sub"),
    "mul": _binary("mul"),
    "floor_divide": _binary("floordiv"),
    "remainder": _modulo,
    "truncated": _truncated,
    "fmod": _truncated_remainder,
    "pow": _power,
    "minimum": _binary("min"),
    "maximum": _binary("max"),
    "bitwise_and": _binary("and"),
    "bitwise_or": _binary("or"),
    "bitwise_xor": _binary("xor"),
    "bitwise_left_shift": _binary("shl"),
    "bitwise_right_shift": _binary("shr"),
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
    "eq": _compare("eq"),
    "ne": _compare("ne"),
    "lt": _compare("slt"),
    "le": _compare("sle"),
    "gt": _compare("sgt"),
    "ge": _compare("sge"),
}
_ONE: dict[str, Callable[[Graph, Node], Node]] = {
    "neg": _negative,
    "positive": lambda graph, a: a,
    "abs": _absolute,
    "sign": _sign,
    "square": lambda graph, a: graph.binary("mul", a, a),
    "bitwise_not": lambda graph, a: graph.invert(a),
    "logical_not": lambda graph, a: graph.invert(graph.as_truth(a)),
}
_OF_TRUTH_VALUES = {"add": _binary("or"), "mul": _binary("and"), "minimum": _binary("and"), "maximum": _binary("or")}
_WRAPS = ("add", "sub", "mul", "pow", "bitwise_left_shift", "neg", "abs", "square", "bitwise_not")
"""What may leave the range of its operands."""
_TRUE_OR_FALSE = ("logical_and", "logical_or", "logical_xor", "logical_not", "eq", "ne", "lt", "le", "gt", "ge")
_ALIASES = {
    "subtract": "sub",
    "multiply": "mul",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "not_equal": "ne",
    "negative": "neg",
    "pos": "positive",
    "absolute": "abs",
    "invert": "bitwise_not",
    "clip": "clamp",
    "concatenate": "cat",
    "view_as": "reshape_as",
    "type_as": "to",
}
_REVERSIBLE = ("add", "sub", "mul", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")


def elementwise(
    tracer: Tracer, function: Callable[..., Node], *operands: Any, dtype: torch.dtype | None = None
) -> Traced:
    """A function of nodes, applied to the elements of tensors or numbers that broadcast."""
    arrays = np.broadcast_arrays(*[tracer.elements(operand) for operand in operands])
    result = np.empty(arrays[0].shape, dtype=object)
    for place in np.ndindex(result.shape):
        result[place] = function(tracer.graph, *[array[place] for array in arrays])
    return Traced.of(result, dtype)


def _arithmetic(tracer: Tracer, name: str, *operands: Any) -> Traced:
    """A function of one or two numbers in the type that torch computes in."""
    rule, dtype = _TWO.get(name) or _ONE[name], common_type(*operands)
    if dtype == torch.bool:
        return elementwise(tracer, _OF_TRUTH_VALUES.get(name, rule), *operands)
    if dtype not in NARROW:
        return elementwise(tracer, rule, *operands)

    def narrow(graph: Graph, *values: Node) -> Node:
        result = rule(graph, *[_in_range(graph, value, dtype) for value in values])
        return wrapped(graph, result, dtype) if name in _WRAPS else result

    return elementwise(tracer, narrow, *operands, dtype=None if name in _TRUE_OR_FALSE else dtype)


def _in_range(graph: Graph, value: Node, dtype: torch.dtype) -> Node:
    """A value of a type that becomes a narrow one: only Python's numbers can be outside of it."""
    return value if value.number is None else wrapped(graph, graph.as_integer(value), dtype)


# ---- functions with more arguments ----


def _select(graph: Graph, condition: Node, then: Node, other: Node) -> Node:
    return graph.select(condition, then, other)


def _where(tracer: Tracer, condition: Any, then: Any, other: Any) -> Traced:
    dtype = kept(common_type(then, other))
    return elementwise(tracer, _select, condition, then, other, dtype=dtype)


def _masked_fill(tracer: Tracer, value: Any, mask: Any, other: Any) -> Traced:
    return _where(tracer, mask, other, value)


def _search(
    tracer: Tracer, bounds: Any, value: Any, *, right: bool = False, side: str | None = None, out_int32: bool = False
) -> Traced:
    """How many of the ascending bounds a value is behind."""
    items = list(tracer.elements(bounds))
    kind = "sle" if right or side == "right" else "slt"

    def position(graph: Graph, x: Node) -> Node:
        found = [graph.as_integer(graph.compare(kind, bound, x)) for bound in items]
        return reduce(lambda a, b: graph.binary("add", a, b), found, graph.integer(0))

    return elementwise(tracer, position, value)


def _bucketize(tracer: Tracer, value: Any, bounds: Any, **named: Any) -> Traced:
    return _search(tracer, bounds, value, **named)


def _clamp(tracer: Tracer, value: Any, min: Any = None, max: Any = None) -> Any:
    if min is not None:
        value = _arithmetic(tracer, "maximum", value, min)
    return value if max is None else _arithmetic(tracer, "minimum", value, max)


def _clamp_min(tracer: Tracer, value: Any, min: Any) -> Traced:
    return _arithmetic(tracer, "maximum", value, min)


def _clamp_max(tracer: Tracer, value: Any, max: Any) -> Traced:
    return _arithmetic(tracer, "minimum", value, max)


def _divide(tracer: Tracer, a: Any, b: Any, *, rounding_mode: str | None = None) -> Traced:
    if rounding_mode is None:
        refuse(f"divides with /; {WITH_INTEGERS}, or use // or rounding_mode='floor', which round down")
    return _arithmetic(tracer, {"floor": "floor_divide", "trunc": "truncated"}[rounding_mode], a, b)


def _index(tracer: Tracer, value: Any, index: Any) -> Traced:
    if not isinstance(value, Traced):
        return tracer.index(value, index)
    items = index if is_tuple(index) else (index,)
    if value.captured is not None and all(isinstance(item, torch.Tensor | int) for item in items):
        return tracer.index(value.captured, index, value.position)
    if not any(isinstance(item, torch.Tensor) for item in items):
        return Traced.of(np.asarray(value.elements[index], dtype=object), kept(value.dtype))
    if len(items) != 1:
        refuse("indexes a computed tensor by several tensors")

    def nth(graph: Graph, position: Node) -> Node:
        return _nth(graph, list(value.elements), position)

    return elementwise(tracer, nth, items[0], dtype=kept(value.dtype))


def _nth(graph: Graph, items: list[Any], index: Node) -> Node:
    """The item at an index, compared with one after the other."""
    if not items or isinstance(items[0], np.ndarray):
        refuse("indexes a computed tensor that is not one-dimensional by a tensor")
    result: Node = items[-1]
    for position in reversed(range(len(items) - 1)):
        wanted = (graph.integer(position), graph.integer(position - len(items)))
        hit = graph.binary("or", *[graph.compare("eq", index, number) for number in wanted])
        result = graph.select(hit, items[position], result)
    return result


def _reduced(
    tracer: Tracer, value: Any, step: Callable[[Any, Any], Any], dim: Any = None, keepdim: bool = False
) -> Traced:
    elements = tracer.elements(value)
    if dim is None:
        elements, dim = elements.reshape(-1), 0
    size = np.size(elements, dim)
    total, *parts = [Traced.of(part, kept(value.dtype)) for part in np.split(elements, size, axis=dim)]
    for part in parts:
        total = step(total, part)
    return total if keepdim else Traced.of(np.squeeze(total.elements, axis=dim), kept(total.dtype))


def _reduction(kind: str, convert: Callable[[Graph, Node], Node]) -> Rule:
    def rule(tracer: Tracer, value: Any, dim: Any = None, keepdim: bool = False) -> Traced:
        converted = elementwise(tracer, convert, value)
        return _reduced(tracer, converted, lambda a, b: elementwise(tracer, _binary(kind), a, b), dim, keepdim)

    return rule


def _count(tracer: Tracer, value: Any, dim: Any = None) -> Traced:
    return _reduction("add", Graph.as_integer)(tracer, elementwise(tracer, _truth, value), dim)


def _extreme(name: str) -> Rule:
    def rule(tracer: Tracer, value: Any, dim: Any = None, keepdim: bool = False) -> Traced:
        return _reduced(tracer, value, lambda a, b: _arithmetic(tracer, name, a, b), dim, keepdim)

    return rule


def _extreme_or_pairwise(kind: str, name: str) -> Rule:
    def rule(tracer: Tracer, value: Any, other: Any = None) -> Traced:
        if other is None:
            return _extreme(name)(tracer, value)
        if not isinstance(other, torch.Tensor):
            refuse(f"asks for torch.{kind} with indices; use torch.a{kind}")
        return _arithmetic(tracer, name, value, other)

    return rule


def _convert(tracer: Tracer, value: Any, *arguments: Any, **named: Any) -> Traced:
    wanted = [item for item in (*arguments, *named.values()) if isinstance(item, torch.dtype | torch.Tensor)]
    dtypes = [item.dtype if isinstance(item, torch.Tensor) else item for item in wanted]
    dtype = dtypes[0] if dtypes else None
    if dtype is None:
        return Traced.of(tracer.elements(value), kept(value.dtype))
    if dtype == torch.bool:
        return elementwise(tracer, _truth, value)
    if dtype.is_floating_point or dtype.is_complex:
        refuse(f"converts to {dtype}; {WITH_INTEGERS}")
    if dtype in NARROW and value.dtype != dtype:
        return elementwise(tracer, partial(_wrapped_integer, dtype=dtype), value, dtype=dtype)
    return elementwise(tracer, _integer, value, dtype=kept(dtype))


# Not methods of Graph themselves: that of a score refuses floats.
def _truth(graph: Graph, a: Node) -> Node:
    return graph.as_truth(a)


def _integer(graph: Graph, a: Node) -> Node:
    return graph.as_integer(a)


def _wrapped_integer(graph: Graph, a: Node, dtype: torch.dtype) -> Node:
    return wrapped(graph, graph.as_integer(a), dtype)


def _to(dtype: torch.dtype) -> Rule:
    def rule(tracer: Tracer, value: Any, **_: Any) -> Traced:
        return _convert(tracer, value, dtype)

    return rule


def _new(fill: Any) -> Rule:
    """new_ones, zeros_like and the like: constants of a shape."""

    def rule(tracer: Tracer, value: Any, *arguments: Any, dtype: torch.dtype | None = None, **named: Any) -> Traced:
        given = list(arguments)
        number = fill if fill is not None else named.pop("fill_value", None)
        if number is None:
            number = given.pop()
        size = named.get("size", given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given)
        shape = tuple(size) if given or "size" in named else tuple(value.shape)
        result = np.empty(shape, dtype=object)
        truth = dtype == torch.bool or (dtype is None and value.dtype == torch.bool)
        for place in np.ndindex(shape):
            result[place] = tracer.graph.truth(bool(number)) if truth else tracer.elements(number).item()
        return Traced.of(result, kept(dtype or value.dtype))

    return rule


def _new_tensor(tracer: Tracer, value: Traced, data: Any, **_: Any) -> Traced:
    return Traced.of(tracer.elements(data))


def _shaped(function: Callable[..., Any]) -> Rule:
    """A function that moves elements: numpy does the same to their array."""

    def rule(tracer: Tracer, value: Traced, *args: Any, **named: Any) -> Traced:
        return Traced.of(np.asarray(function(value.elements, *args, **named)), kept(value.dtype))

    return rule


def _unsqueeze(elements: Nodes, dim: int) -> Nodes:
    return np.expand_dims(elements, dim)


def _squeeze(elements: Nodes, dim: int | None = None) -> Nodes:
    return np.squeeze(elements, axis=dim)


def _reshape(elements: Nodes, *sizes: Any) -> Nodes:
    return elements.reshape(_sizes(sizes))


def _flatten(elements: Nodes) -> Nodes:
    return elements.reshape(-1)


def _same(elements: Nodes, **_: Any) -> Nodes:
    return elements


def _sizes(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(arguments[0]) if len(arguments) == 1 and is_listed(arguments[0]) else arguments


def _expand(elements: Nodes, *sizes: Any) -> Nodes:
    wanted = list(_sizes(sizes))
    known = [1] * (len(wanted) - elements.ndim) + list(elements.shape)
    return np.broadcast_to(elements, [k if w == -1 else w for w, k in zip(wanted, known, strict=True)])


def _stack(join: Callable[..., Nodes]) -> Rule:
    def rule(tracer: Tracer, tensors: Any, dim: int = 0) -> Traced:
        dtype = reduce(torch.promote_types, [common_type(tensor) for tensor in tensors])
        return Traced.of(join([tracer.elements(tensor) for tensor in tensors], axis=dim), kept(dtype))

    return rule


def _is_in(tracer: Tracer, elements: Any, test_elements: Any) -> Traced:
    wanted = list(tracer.elements(test_elements).flat)

    def hit(graph: Graph, value: Node) -> Node:
        return reduce(
            lambda a, b: graph.binary("or", a, b), [graph.compare("eq", value, w) for w in wanted], graph.truth(False)
        )

    return elementwise(tracer, hit, elements)


def _value_of(tracer: Tracer, *_: Any, **__: Any) -> Any:
    refuse(
        "asks for the value of something that depends on b, h, q_idx or kv_idx (if, while, and, or, not, int(), "
        ".item() or range()); use & | ~ for truth values, torch.where(condition, a, b) for if, and a tensor in place "
        "of a list that is read at it"
    )


def _numpy(tracer: Tracer, *_: Any, **__: Any) -> Any:
    refuse("mixes numpy arrays with b, h, q_idx or kv_idx; capture torch.from_numpy(array) instead")


_RULES: dict[str, Rule] = {
    "clamp": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "div": _divide,
    "divide": _divide,
    "truediv": _divide,
    "true_divide": _divide,
    "rtruediv": _divide,
    "getitem": _index,
    "any": _reduction("or", _truth),
    "all": _reduction("and", _truth),
    "masked_fill": _masked_fill,
    "searchsorted": _search,
    "bucketize": _bucketize,
    # Of floats too: this converts truth values alone.
    "sum": _reduction("add", Graph.as_integer),
    "count_nonzero": _count,
    "amin": _extreme("minimum"),
    "amax": _extreme("maximum"),
    "min": _extreme_or_pairwise("min", "minimum"),
    "max": _extreme_or_pairwise("max", "maximum"),
    "to": _convert,
    "type": _convert,
    "bool": _to(torch.bool),
    "int": _to(torch.int32),
    "long": _to(torch.int64),
    "char": _to(torch.int8),
    "byte": _to(torch.uint8),
    "short": _to(torch.int16),
    "float": _to(torch.float32),
    "double": _to(torch.float64),
    "half": _to(torch.float16),
    "bfloat16": _to(torch.bfloat16),
    "new_ones": _new(1),
    "new_zeros": _new(0),
    "new_full": _new(None),
    "new_tensor": _new_tensor,
    "ones_like": _new(1),
    "zeros_like": _new(0),
    "full_like": _new(None),
    "unsqueeze": _shaped(_unsqueeze),
    "squeeze": _shaped(_squeeze),
    "reshape": _shaped(_reshape),
    "view": _shaped(_reshape),
    "flatten": _shaped(_flatten),
    "expand": _shaped(_expand),
    **dict.fromkeys(("clone", "detach", "contiguous"), _shaped(_same)),
    "stack": _stack(np.stack),
    "cat": _stack(np.concatenate),
    "isin": _is_in,
    "bool_value": _value_of,
    "array": _numpy,
    "numpy": _numpy,
    "item": _value_of,
    "tolist": _value_of,
    "index": _value_of,
    "float_value": _value_of,
    "int_value": _value_of,
}
_AS_THEY_ARE = ("size", "dim", "numel", "ndimension", "is_floating_point", "nelement", "stride", "repr", "hash", "len")
_VALUES = {"__bool__": "bool_value", "__int__": "int_value", "__float__": "float_value"}


def apply(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a torch function of which an argument is traced."""
    full = getattr(func, "__name__", "")
    if full == "__get__":
        return _attribute(func, args)
    name = _VALUES.get(full, full.strip("_"))
    if name in _AS_THEY_ARE:
        with torch._C.DisableTorchFunction():
            return func(*args, **kwargs)
    if full == "__setitem__" or (full.endswith("_") and not full.endswith("__")):
        refuse(f"changes a tensor in place ({full}); compute a new one, as with torch.where")
    if name[:1] == "r" and name[1:] in _REVERSIBLE and full.startswith("__"):
        return _arithmetic(tracer, _ALIASES.get(name[1:], name[1:]), *reversed(args))
    if name[:1] == "i" and name[1:] in _REVERSIBLE and full.startswith("__"):
        name = name[1:]
    name = _ALIASES.get(name, name)
    if name == "where":
        method = func is torch.Tensor.where
        return _where(tracer, *((args[1], args[0], args[2]) if method else args), **kwargs)
    if name in _TWO:
        return _arithmetic(tracer, name, *_two(name, args, kwargs))
    if name in _ONE and not kwargs:
        return _arithmetic(tracer, name, *args)
    if name in _RULES:
        try:
            return _RULES[name](tracer, *args, **kwargs)
        except MaskError:
            raise
        except (TypeError, ValueError, IndexError) as error:
            refuse(f"calls {full} in a way that is not supported: {error}")
    refuse(
        f"calls {full or func}, which is not supported; {tracer.MADE_OF}: "
        "what needs more, compute once, into a captured tensor"
    )


def _two(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    named = {key: value for key, value in kwargs.items() if key not in ("input", "self", "other", "exponent")}
    if any(key != "alpha" or value != 1 for key, value in named.items()):
        refuse(f"calls {name} with {', '.join(named)}, which is not supported")
    return (*args, *(value for key, value in kwargs.items() if key != "alpha"))


def _attribute(func: Any, args: tuple[Any, ...]) -> Any:
    name = getattr(getattr(func, "__self__", None), "__name__", "")
    if name == "device":
        return torch.device("cpu")
    with torch._C.DisableTorchFunction():
        return func(*args)


__all__ = ["apply", "as_array", "elementwise"]
