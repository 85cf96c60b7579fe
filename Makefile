# `make demo` shows what atta does; `make test` proves it. Both set everything up first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OTHERS := $(VENV)/.frameworks
PAGES  := $(VENV)/.docs
PEERS  := .venv-peers
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo reproduce test check bench attack docs site notebooks dist picture clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	@touch $@

$(OTHERS): $(STAMP)
	$(PIP) -e '.[dev,frameworks]'
	@touch $@

$(PAGES): $(STAMP)
	$(PIP) -e '.[dev,docs]'
	@touch $@

demo: $(STAMP)  ## the whole chain on one machine: train, record the views, compare every method, save
	$(BIN)/atta demo

reproduce: $(STAMP)  ## the paper's tables and figures on all its datasets, from the records in this repository
	$(BIN)/atta reproduce

check: $(STAMP)  ## lint, types, and which way imports point
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check $(OTHERS)  ## lint, types and every test
	$(BIN)/pytest

$(PEERS)/.installed: $(STAMP) benchmarks/peers.txt benchmarks/peers.py
	$(BIN)/python -m benchmarks.peers $(PEERS)
	@touch $@

bench: $(PEERS)/.installed  ## time, memory and quality compared with other libraries; writes docs/speed.md
	$(PEERS)/bin/python -m benchmarks

attack: $(STAMP)  ## try to break what is promised, in less than 10 minutes; writes docs/reliability.md
	$(BIN)/python -m benchmarks.attack --page docs/reliability.md

docs: $(STAMP)  ## the generated pages and charts
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/charts.py

site: $(PAGES)  ## the documentation as a site that works from a disk, site/index.html; a warning is an error
	rm -rf site build/doctrees
	$(BIN)/sphinx-build -q -W --keep-going -b html -c docs -d build/doctrees . site
	$(BIN)/python docs/check_links.py site

notebooks: $(OTHERS)  ## examples/notebooks from the examples, with what they print
	$(BIN)/python docs/notebooks.py

dist: $(STAMP)  ## wheel and sdist, as they would be uploaded
	$(PIP) build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

picture: demo  ## the picture of the report in the README; needs a Chromium
	$(BIN)/python docs/screenshot.py atta-demo/report.html docs/report.png

clean:
	rm -rf $(VENV) $(PEERS) build dist site .pytest_cache .mypy_cache .ruff_cache
