"""What all tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hypothesis

# `python -m pytest` puts the checkout on the path, where the folder compilemask/ lacks the folders beside it.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parents[1]]

os.environ.setdefault("MPLBACKEND", "Agg")
if "PYTEST_XDIST_WORKER" in os.environ:  # the workers together already use every core
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Machines differ in speed, and what runs first compiles: no example fails for being slow.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")
