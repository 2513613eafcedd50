"""What all tests share."""

from __future__ import annotations

import os

import hypothesis

os.environ.setdefault("MPLBACKEND", "Agg")

# Machines differ in speed, and what runs first compiles: no example fails for being slow.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")
