# Each target sets up what it needs in .venv the first time.
PYTHON ?= python3
DATASETS ?= datasets
BIN := .venv/bin
INSTALLED := .venv/.installed
DOCS_INSTALLED := .venv/.docs-installed
FRESH := build/fresh-venv
TEST_WORKERS ?= 2
WORKERS := -n $(TEST_WORKERS) --dist loadgroup --no-loadscope-reorder

.PHONY: demo published-demo proof test check docs dist clean

demo: $(INSTALLED)
	$(BIN)/vcycle demo

# On an idle machine: the figures of README.md.
published-demo: demo
	cp runs/demo/summary.json docs/results/demo.json
	cp runs/demo/curves.png docs/figures/demo.png
	$(BIN)/python docs/update.py

proof: $(INSTALLED)
	$(BIN)/python benchmarks/study.py benchmarks/study/proof.yaml --datasets $(DATASETS)

test: check
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest $(WORKERS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in site/index.html. Needs Python 3.11 or newer, and no network once installed.
docs: $(DOCS_INSTALLED)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --fresh-env docs site

# The sdist and the wheel, and whether the wheel works in an environment of its own.
dist: $(INSTALLED)
	rm -rf dist $(FRESH)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build
	$(BIN)/python -m venv $(FRESH)
	$(FRESH)/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	$(FRESH)/bin/vcycle --help > build/help.txt
	$(FRESH)/bin/vcycle plan k400-slowfast-r50
	$(FRESH)/bin/python -I -c 'import vcycle; [getattr(vcycle, name) for name in vcycle.__all__]'

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv build dist site .mypy_cache .pytest_cache .ruff_cache
