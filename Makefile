# `make test`, `make demo` and `make proof` set up what they need in .venv the first time.
PYTHON ?= python3
DATASETS ?= datasets
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo proof test check clean

demo: $(INSTALLED)
	$(BIN)/vcycle demo

proof: $(INSTALLED)
	$(BIN)/python benchmarks/study.py benchmarks/study/proof.yaml --datasets $(DATASETS)

test: check
	$(BIN)/python -m pytest

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache
