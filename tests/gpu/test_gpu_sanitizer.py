"""No kernel reads or writes outside of its tensors: compute-sanitizer looks on, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# transformer_nuggets#45: tables of ids that end with the last position, and a ragged last tile
SCRIPT = """
import torch
import compilemask as cm

length = 200
ids = (torch.arange(length) // 66).to(torch.int32).cuda()
q, k, v = (torch.randn(1, 2, length, 64, device="cuda", dtype=torch.float16) for _ in range(3))
masks = [
    cm.where(lambda q, kv, ids: ids[q] == ids[kv], ids=ids),
    cm.from_mask_mod(lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv), sorted_tables=["ids"]),
    cm.document(torch.tensor([0, 66, 132, 200], dtype=torch.int32, device="cuda")),
]
for mask in masks:
    assert cm.attention(q, k, v, mask).isfinite().all()
torch.cuda.synchronize()
"""
HEADLINES = """
import torch
import compilemask as cm

length = 1000
masks = [
    cm.causal(),
    cm.hstu(800, 100),
    cm.shared_prompt(torch.tensor([0, 120, 500, 700, 1000], dtype=torch.int32, device="cuda")),
    cm.clear(20, 24, 6, 500),
]
for dim in (64, 128):
    q, k, v = (torch.randn(1, 4, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for mask in masks:
        assert cm.attention(q, k, v, mask).isfinite().all()
torch.cuda.synchronize()
"""
DECODING = """
import torch
import compilemask as cm

capacity = 5000
lengths = torch.tensor([3, 4321], dtype=torch.int32, device="cuda")
masks = [
    cm.padding(lengths[:, None]),
    cm.causal(align="bottom_right") & cm.where(lambda q, kv: (kv // 128) % 3 != 1),
]
for rows, dim in ((1, 64), (5, 40), (100, 128)):
    q = torch.randn(2, 6, rows, dim, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(2, 2, capacity, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for mask in masks:
        assert cm.attention(q, k, v, mask).isfinite().all()
torch.cuda.synchronize()
"""


@pytest.mark.parametrize("text", [SCRIPT, HEADLINES, DECODING], ids=["tables", "headlines", "decoding"])
def test_nothing_is_read_outside(text: str, tmp_path: Path) -> None:
    sanitizer = shutil.which("compute-sanitizer", path="/usr/local/cuda/bin") or shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    script = tmp_path / "attend.py"
    script.write_text(text)
    command = [sanitizer, "--error-exitcode", "9", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
