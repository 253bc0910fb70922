# The commands of a user and of a contributor; CI runs the same ones (.ci/run).
# PYTHON chooses the interpreter the virtual environment is made with: make install PYTHON=python3

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
CODE := src tests examples

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast lint format bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## prepare .venv; does nothing if it is up to date

# torch first and alone: with everything else to resolve at once, pip may fetch several builds of it to compare.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt torch
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install  ## answer a coding prompt with all three methods; the first run fetches 1.6 GB of weights
	@$(BIN)/python examples/demo.py

test: test-fast  ## all tests, those on real weights included
	$(BIN)/python -m pytest -m real

test-fast: install  ## the tests that need no weights
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not real'

bench: install  ## measure speed, the short form: about a quarter of an hour on an otherwise idle machine
	$(BIN)/parspec bench speed --short --json speed.json --plots plots

lint: install  ## style and types
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

format: install  ## put the code into the agreed form
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

clean:  ## remove the environment and all caches of tools; models stay
	rm -rf $(VENV) build dist plots speed.json .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
