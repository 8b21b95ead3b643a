# Every verb installs what it needs into .venv; a second call finds it there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
ARGS ?=
SOURCES := $(wildcard clbench tests tools benchmarks examples docs)
OFFLINE := HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo docs test testall faults package lint format clean

help:  ## list the verbs
	@sed -n 's/^\([a-z]*\):.*##/\1\t/p' $(MAKEFILE_LIST) | expand -t 12

install: $(VENV)/.installed  ## install clbench into .venv

demo: $(VENV)/.installed  ## run the quick suite on the built-in model and tasks
	$(BIN)/clbench run quick --workers 2 --out results/quick

docs: $(VENV)/.installed-docs  ## build the site into site/; a warning is an error
	rm -rf site
	$(OFFLINE) $(BIN)/python -m sphinx -W --keep-going -q -c docs -d build/doctrees . site
	@if $(BIN)/clbench board --help >/dev/null 2>&1; then \
	  $(OFFLINE) $(BIN)/clbench board results/reference $(wildcard results/community/*/) --out site/board; fi
	@echo "Site: site/index.html"

test: $(VENV)/.installed-dev  ## run the fast tests, offline
	$(OFFLINE) $(BIN)/python -m pytest -n 2 -m "not slow"

testall: $(VENV)/.installed-dev  ## run all tests, the slow ones too
	$(OFFLINE) $(BIN)/python -m pytest -n 2

faults: $(VENV)/.installed-dev  ## run the whole campaign of malformed inputs and faults
	$(OFFLINE) $(BIN)/python -m pytest tests/faults -n 2 --dist worksteal \
	  --hypothesis-profile=faults --hypothesis-seed=20 $(ARGS)

package:  ## build sdist and wheel, check them, and use the wheel in a clean environment
	$(PYTHON) -m tools.package $(ARGS)

lint: $(VENV)/.installed-dev  ## check lint, format and types
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(VENV)/.installed-dev  ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:  ## remove the environment, caches and built packages; keep results
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps, each newer than what it was made from.

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "clbench needs Python 3.11 or later: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# torch first and alone: a CPU build at hand is then taken, and pip does not collect the
# accelerator libraries of another build while it resolves the rest.
$(VENV)/.torch: $(VENV)/.made constraints.txt
	$(PIP) install --quiet -c constraints.txt "$$(grep -x 'torch==.*' constraints.txt)"
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt -e '.[docs]'
	@touch $@ $(VENV)/.installed
