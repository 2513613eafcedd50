"""The mask language: IR that does not depend on values, parameters, names and the algebra."""

from __future__ import annotations

import subprocess
import sys
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from strategies import Case, cases
from test_levels_agree import check_levels

import compilemask as cm
from compilemask import errors, language
from compilemask.dialects.mask import FuncOp


def test_new_lengths_give_the_same_ir() -> None:
    pairs = [
        (cm.hstu(896, 100), cm.hstu(5, 0)),
        (cm.window(7, 3), cm.window(0, 0)),
        (cm.shared_prompt([0, 5, 9]), cm.shared_prompt(list(range(50)))),
        (cm.clear(16, 32, 8, 512), cm.clear(56, 64, 8)),
        (cm.causal() & cm.rows(1, 2), cm.causal() & cm.rows(3, 3)),
        (cm.where(lambda q, kv, n: q < n, n=5), cm.where(lambda q, kv, n: q < n, n=7)),
        (cm.padding([3, 4]), cm.padding(torch.tensor(9))),
    ]
    for one, other in pairs:
        assert one.key == other.key
        assert str(one) == one.key


def test_structure_changes_the_ir() -> None:
    assert cm.disk2d(8, 8, 3).key != cm.disk2d(8, 8, 4).key
    assert cm.causal().key != cm.causal("bottom_right").key
    assert cm.window(3, None).key != cm.window(3, 0).key
    assert cm.hstu(5).key != cm.hstu(5, total=7).key
    assert cm.padding(5).key != cm.padding([5]).key


def test_module_holds_one_verified_function_and_is_new_each_time() -> None:
    mask = cm.causal() & cm.document([0, 3])
    first, second = mask.module(), mask.module()
    assert first is not second
    first.verify()
    (func,) = first.body.block.ops
    assert isinstance(func, FuncOp)
    assert func.sym_name.data == mask.name == "causal_and_document"
    func.detach()
    assert len(list(second.body.block.ops)) == 1


def test_parameters_are_the_arguments_in_order() -> None:
    offsets = torch.tensor([0, 3, 9])
    mask = cm.hstu(7, 2) & cm.document(offsets) | cm.document([0, 4])
    assert [(p.name, p.is_table) for p in mask.parameters] == [
        ("history", False),
        ("contexts", False),
        ("offsets", True),
        ("offsets_1", True),
    ]
    assert [p.value for p in mask.parameters[:2]] == [7, 2]
    first, second = (p.value for p in mask.parameters[2:])
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    assert first.tolist() == [[[0, 3, 9]]]
    assert first.data_ptr() == offsets.data_ptr(), "a tensor is used where it lies, so that later writes are seen"
    assert second.dtype == torch.int32
    for parameter in mask.parameters:
        assert f"%{parameter.name}:" in str(mask)


def test_a_tensor_used_twice_is_one_parameter() -> None:
    offsets = torch.tensor([0, 3, 9])
    mask = cm.document(offsets) & cm.shared_prompt(offsets)
    assert [p.name for p in mask.parameters] == ["offsets"]
    assert [p.name for p in (cm.document(offsets) & cm.document(offsets.clone())).parameters] == [
        "offsets",
        "offsets_1",
    ]


def test_a_mask_used_twice_is_written_once() -> None:
    past = cm.window(5)
    assert str(past | ~past).count("mask.band") == 1


def test_scalars_in_memory_are_read() -> None:
    mask = cm.padding(torch.tensor([3, 5]))
    assert "mask.read %lengths[%zero]" in str(mask)
    assert mask.batch_shape == (2, 1)
    assert mask.parameters[0].is_table
    assert mask.dense(1, 6)[:, 0, 0].tolist() == [[True] * 3 + [False] * 3, [True] * 5 + [False]]


def test_values_may_be_numpy() -> None:
    mask = cm.document(np.array([0, 3, 9])) & cm.window(np.int64(2))
    assert mask.parameters[1].value == 2
    assert mask.dense(9, 9).sum() == 6 + 6 + 9


def test_writes_to_a_tensor_are_seen() -> None:
    lengths = torch.tensor([2])
    mask = cm.padding(lengths)
    assert mask.dense(1, 5).sum() == 2
    lengths[0] = 4
    assert mask.dense(1, 5).sum() == 4


def test_names() -> None:
    a = cm.causal()
    assert (a | cm.full()).name == "causal_or_full"
    assert (a - cm.full()).name == "causal_without_full"
    assert (~a).name == "not_causal"
    long = a
    for _ in range(10):
        long = long & cm.rows(0, 5)
    assert long.name == "mask"
    assert long.named("mine").name == "mine"
    assert "mask.func @mine(" in str(long.named("mine"))
    assert repr(cm.hstu(5, 2)) == "<mask hstu(history=5, contexts=2)>"
    assert repr(cm.document([0, 5])) == "<mask document(offsets=[1, 1, 2])>"


def test_ir_is_shared_by_structure_and_parameters_are_not() -> None:
    def make(offsets: torch.Tensor, other: torch.Tensor, left: int) -> cm.Mask:
        return cm.window(left) & cm.document(offsets) | cm.shared_prompt(other) - cm.window(left + 1)

    a, b, c = (torch.tensor([0, n, 40]) for n in (3, 5, 7))
    first, second, shared = make(a, b, 1), make(b, c, 2), make(a, a, 1)
    assert first.key == second.key != shared.key
    assert [p.name for p in first.parameters] == ["left", "right", "offsets", "offsets_1", "left_1", "right_1"]
    assert [p.name for p in shared.parameters] == ["left", "right", "offsets", "left_1", "right_1"]
    for mask, offsets, other, left in ((first, a, b, 1), (second, b, c, 2), (shared, a, a, 1)):
        window, wider = cm.window(left).dense(40, 40), cm.window(left + 1).dense(40, 40)
        own, prompt = cm.document(offsets).dense(40, 40), cm.shared_prompt(other).dense(40, 40)
        assert (mask.dense(40, 40) == (window & own | prompt & ~wider)).all()
    assert cm.full().named("a").key != cm.full().named("b").key
    once, twice = cm.window(3), cm.window(3)
    assert (once & ~once).key != (once & ~twice).key


def test_many_masks_combine() -> None:
    blocks = [cm.rows(i, i + 1) & cm.cols(0, i) for i in range(1500)]
    mask = reduce(lambda a, b: a | b, blocks)
    assert len(mask.parameters) == 4 * 1500
    assert mask.dense(10, 10).sum() == 45


def named(q, kv):
    return q == kv


def test_where_is_named_after_its_function() -> None:
    assert cm.where(named).name == "named"
    assert cm.where(lambda q, kv: q == kv).name == "where"


def test_where_computes_as_python_does() -> None:
    table = [5, -3, 7, 0]

    def formula(q, kv, table, n):
        a = (q - kv) // 3 + (kv - q) % 4 - (7 - q) * 2 + -kv
        b = table[kv - 1] + abs(table[q]) - (17 // (q + 1)) + (20 % (kv + 1)) + n
        bits = ((q & 3) | (kv ^ 1)) << 1 >> 1
        return ((a < b) ^ (bits != 2)) | ~(q >= kv) & (a <= 3) & (b > -9) | (a == b) & True

    class Clamped(list):
        def __getitem__(self, index):
            return list.__getitem__(self, min(max(index, 0), len(self) - 1))

    dense = cm.where(formula, table=table, n=3).dense(9, 8)[0, 0]
    for q in range(9):
        for kv in range(8):
            # On Python's booleans ~ is not a negation: write the formula's last part out for them.
            a = (q - kv) // 3 + (kv - q) % 4 - (7 - q) * 2 + -kv
            b = Clamped(table)[kv - 1] + abs(Clamped(table)[q]) - (17 // (q + 1)) + (20 % (kv + 1)) + 3
            bits = ((q & 3) | (kv ^ 1)) << 1 >> 1
            expected = ((a < b) ^ (bits != 2)) or ((not q >= kv) and a <= 3 and b > -9) or a == b
            assert bool(dense[q, kv]) == expected, (q, kv)


@pytest.mark.parametrize(
    "formula",
    [
        lambda q, kv: (3 & q) == (kv & 3),
        lambda q, kv: (4 | q) == (kv | 4),
        lambda q, kv: (9 ^ q) >= (kv ^ 5),
        lambda q, kv: (1 << (q & 7)) >= kv,
        lambda q, kv: (99 >> (kv & 7)) >= q,
        lambda q, kv: (q - kv) ** 2 + kv**0 < 50,
        lambda q, kv: ~q <= -kv,
        lambda q, kv: +q >= np.int64(3) + kv,
        lambda q, kv: np.int32(20) - q >= kv,
    ],
)
def test_where_takes_operators_from_both_sides(formula: Any) -> None:
    q, kv = np.arange(40)[:, None], np.arange(30)[None, :]
    mask = cm.where(formula)
    np.testing.assert_array_equal(mask.dense(40, 30)[0, 0].numpy(), formula(q, kv))
    check_levels(mask, 40, 30)


def test_where_writes_a_shared_expression_once() -> None:
    def shared(q, kv):
        distance = q - kv
        return (distance >= 0) & (distance < 5)

    assert str(cm.where(shared)).count("arith.subi") == 1


def test_public_names_exist() -> None:
    for name in cm.__all__:
        assert getattr(cm, name) is not None
        assert name in dir(cm)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cm.nothing  # noqa: B018


def test_every_error_and_every_constructor_is_public() -> None:
    assert {*errors.__all__, *language.__all__} <= {*cm.__all__}
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert kinds == {*errors.__all__}


def test_dialects_and_masks_of_integers_do_not_import_torch() -> None:
    code = (
        "import sys, compilemask.dialects.registry, compilemask as cm\n"
        "(cm.causal() & cm.hstu(5)).module()\n"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@settings(max_examples=40)
@given(cases(depth=2))
def test_printed_masks_read_back(case: Case) -> None:
    values = {parameter.name: parameter.value for parameter in case.mask.parameters}
    again = cm.parse(str(case.mask), **values)
    assert (again.dense(case.queries, case.keys) == case.mask.dense(case.queries, case.keys)).all()


def test_conditions_compare_as_truth_values() -> None:
    """They once compared by identity, so that the mask was silently empty."""
    q, kv = np.arange(20)[:, None], np.arange(20)[None, :]
    equal = cm.where(lambda q, kv: (q < 9) == (kv < 9)).dense(20, 20)[0, 0].numpy()
    assert np.array_equal(equal, (q < 9) == (kv < 9))
    different = cm.where(lambda q, kv: (q < 9) != (kv < 9)).dense(20, 20)[0, 0].numpy()
    assert np.array_equal(different, (q < 9) != (kv < 9))
