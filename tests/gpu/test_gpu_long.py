"""A million tokens in packed documents: offsets of more than 32 bits, and rows checked one by one."""

from __future__ import annotations

import math

import torch
from compare import TOLERANCE, assert_close

import compilemask as cm

LENGTH, HEADS, DIM = 1_000_000, 4, 128
ROWS = 64


def test_a_million_tokens_in_documents() -> None:
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    ends = torch.randint(1, LENGTH, (400,), generator=generator).unique()
    offsets = torch.cat([torch.zeros(1), ends, torch.tensor([LENGTH])]).int()
    # The last batch begins more than 2^31 elements behind the first.
    q, k, v = (torch.randn(6, HEADS, LENGTH, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    mask = cm.document(offsets.cuda()) & cm.causal()
    out, lse = cm.attention(q, k, v, mask, return_lse=True)
    rows = torch.cat(
        [torch.randint(LENGTH, (ROWS,), generator=generator), offsets[1:4].long() - 1, offsets[-2:-1].long()]
    )
    for row in [0, *rows.tolist(), LENGTH - 1]:
        start = int(offsets[torch.searchsorted(offsets, row, right=True) - 1])
        keys, values = (x[:, :, start : row + 1].double() for x in (k, v))
        scores = (keys @ q[:, :, row, :, None].double()).squeeze(-1) / math.sqrt(DIM)
        expected = (scores.softmax(-1)[..., None] * values).sum(-2)
        assert_close(out[:, :, row], expected, TOLERANCE[torch.bfloat16], f"out of row {row}")
        assert_close(lse[:, :, row], scores.logsumexp(-1), 1e-3, f"lse of row {row}")
