"""from_mask_mod on mask_mods in which torch computes with truth values or with 8 and 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

import compilemask as cm

SIZE = (70, 90)
_POSITIONS = torch.arange(90)
BYTES = (_POSITIONS * 37 % 256).to(torch.uint8)
SMALL = (_POSITIONS * 29 % 256 - 128).to(torch.int8)
SHORT = (_POSITIONS * 1001 % 60000 - 30000).to(torch.int16)
FLAGS = _POSITIONS % 3 == 0
ONE_BYTE = torch.tensor(77, dtype=torch.uint8)

MODS: dict[str, Callable[..., Any]] = {
    "difference of bytes": lambda b, h, q, kv: BYTES[q] - BYTES[kv] < 50,
    "sum of bytes": lambda b, h, q, kv: BYTES[q] + BYTES[kv] > 120,
    "bytes and a captured byte": lambda b, h, q, kv: BYTES[kv] + ONE_BYTE > BYTES[q],
    "bytes and positions": lambda b, h, q, kv: BYTES[q] - kv > 3,
    "bytes and signed bytes": lambda b, h, q, kv: BYTES[q] + SMALL[kv] * SMALL[q] > 40,
    "product with a number": lambda b, h, q, kv: SMALL[q] * 100 > SMALL[kv],
    "reversed": lambda b, h, q, kv: 300 - BYTES[q] > BYTES[kv],
    "numbers outside": lambda b, h, q, kv: (BYTES[kv] < 300) | (BYTES[q] > -100) | (BYTES[kv] % 300 < 9),
    "16 bits": lambda b, h, q, kv: SHORT[q] * 3 - SHORT[kv] > 0,
    "negative and absolute": lambda b, h, q, kv: (-SMALL[q] > abs(SMALL[kv])) | (-BYTES[kv] < 30),
    "squares and powers": lambda b, h, q, kv: (SMALL[q].square() > 40) & (BYTES[kv] ** 3 < 100),
    "bits": lambda b, h, q, kv: (~BYTES[q] > BYTES[kv]) & (SMALL[kv] << 3 > 0) | (BYTES[q] >> 5 == 2),
    "converted up": lambda b, h, q, kv: BYTES[q].to(torch.int32) - BYTES[kv].long() > 3,
    "converted down": lambda b, h, q, kv: (q * 37).to(torch.uint8) - (kv * 5).byte() < 90,
    "converted to signed": lambda b, h, q, kv: ((q * 37).char() > kv) | ((kv * 1000).short() + 30000 > 0),
    "choice": lambda b, h, q, kv: torch.where(q > kv, BYTES[q], 3) + BYTES[kv] > 100,
    "clamped": lambda b, h, q, kv: BYTES[q].clamp(5, 200) + BYTES[kv].clamp(min=9) > 100,
    "extremes": lambda b, h, q, kv: torch.minimum(BYTES[q], BYTES[kv]) + BYTES[q].max(BYTES[kv]) > 100,
    "reshaped": lambda b, h, q, kv: (BYTES[q].unsqueeze(0) + BYTES[kv].reshape(1)).amax() > 100,
    "stacked": lambda b, h, q, kv: torch.stack([BYTES[q], BYTES[kv]]).amin() + BYTES[kv] > 100,
    "sum in 64 bits": lambda b, h, q, kv: torch.stack([BYTES[q], BYTES[kv]]).sum() > 255,
    "sum of truth values": lambda b, h, q, kv: (q > kv) + (kv > 3) + FLAGS[q] >= 2,
    "product of truth values": lambda b, h, q, kv: ~((q > kv) * FLAGS[kv]),
    "complement of extremes": lambda b, h, q, kv: ~torch.minimum(q > kv, FLAGS[q]) & ~torch.stack([FLAGS[kv]]).amax(),
    "truth value and number": lambda b, h, q, kv: (q > kv) + 1 + FLAGS[q] >= 3,
    "truth values counted": lambda b, h, q, kv: torch.stack([q > kv, FLAGS[q]]).sum() + FLAGS[kv][None].sum() >= 2,
    "complement of any": lambda b, h, q, kv: ~(kv % 4)[None].any(),
}


@pytest.mark.parametrize("name", MODS)
def test_equals_flex_attention(name: str) -> None:
    mask = cm.from_mask_mod(MODS[name])
    expected = create_mask(MODS[name], 1, 1, *SIZE, device="cpu")
    assert torch.equal(mask.dense(*SIZE), expected)
    q, k, v = (torch.randn(1, 1, length, 8, dtype=torch.float64) for length in (SIZE[0], SIZE[1], SIZE[1]))
    scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~expected, -torch.inf)
    torch.testing.assert_close(cm.attention(q, k, v, mask), scores.softmax(-1).nan_to_num() @ v)
