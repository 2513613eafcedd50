# make demo    every level of the four headline masks, then their attention checked against a dense oracle
# make test    everything that needs no GPU
# make check   style and types
# make docs     the documentation as a site in build/site; needs pip install 'compilemask[docs]'
# make fuzz     mutated IR against the parser and the passes, for SECONDS=1800
# make fuzz-masks   20,000 random masks against brute force; COUNT=500 SEED=7 for fewer and others
# Each sets up .venv on its first run. Use another environment with `make test PY=python STAMP=`.

PYTHON ?= python3
VENV   ?= .venv
PY     ?= $(VENV)/bin/python
STAMP  ?= $(VENV)/.installed
JOBS   ?= 2
SECONDS ?= 1800
COUNT  ?= 20000
SEED   ?= 1
PIP    := $(PY) -m pip install --disable-pip-version-check --no-input
TYPES  := build/types

.DEFAULT_GOAL := help
.PHONY: help demo test check docs fuzz fuzz-masks gpu-test types clean

help:
	@sed -n 's/^# //p' Makefile

# pip once more with the same pins does nothing, so that an interrupted set-up is simply finished by the next one.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	@echo "== setting up $(VENV) (once; a few minutes where torch must be downloaded)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e '.[test]'
	@touch $@

demo: $(STAMP)
	$(PY) -m compilemask.tools.demo

test: $(STAMP)
	$(PY) -m pytest tests --ignore=tests/gpu -n $(JOBS) --dist worksteal

# README.md and ARCHITECTURE.md stand above docs/: links are moved with them.
docs: $(STAMP)
	@rm -rf build/docs && mkdir -p build/docs
	cp -r docs build/docs/docs
	sed 's|(ARCHITECTURE.md)|(architecture.md)|g' README.md > build/docs/index.md
	cp ARCHITECTURE.md build/docs/architecture.md
	$(PY) -m compilemask.tools.reference build/docs/reference --examples tests/filecheck/dialects
	$(PY) -m mkdocs build --strict --quiet

fuzz: $(STAMP)
	$(PY) tests/fuzz_ir.py --seconds $(SECONDS)

fuzz-masks: $(STAMP)
	$(PY) tests/fuzz_masks.py --count $(COUNT) --seed $(SEED)

gpu-test: $(STAMP)
	$(PY) -m pytest tests/gpu tests/regress

check: $(STAMP) types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --project $(TYPES) --pythonpath $(PY)

# The four code folders in the shape in which they are installed, for the type checker.
types:
	@rm -rf $(TYPES) && mkdir -p $(TYPES)
	@cp -rs $(CURDIR)/compilemask $(CURDIR)/tests $(CURDIR)/pyproject.toml $(TYPES)/
	@cp -rs $(CURDIR)/dialects $(CURDIR)/passes $(CURDIR)/lowering $(TYPES)/compilemask/

clean:
	rm -rf .venv build dist demo *.egg-info .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
