# Everything runs in .venv, which is made on first use and renewed when pyproject.toml changes.
#
#   make demo     install twofold and show what it does
#   make test     run every test                  make test ARGS="-k ledger -x"
#   make mutants  put mistakes into copies of the package; all must be noticed
#   make lint     ruff, pyright, import contracts
#   make docs     the site, in site/; warnings are errors    then: python3 -m http.server --directory site
#   make format   let ruff mend what it can
#   make bench    speed and scale, in one table   make bench ARGS="--only mx2,scale"
#   make clean    remove .venv and all caches

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= auto
ARGS ?=

BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test mutants lint format docs bench clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.demo
	@$(BIN)/twofold demo $(ARGS)

test: $(VENV)/.dev
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 8 --dist worksteal $(ARGS)

mutants: $(VENV)/.dev
	@$(BIN)/python tests/mutants.py $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache --no-logo

format: $(VENV)/.dev
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# NO_MKDOCS_2_WARNING: mkdocs-material prints an advertisement at every start otherwise.
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

bench: $(VENV)/.bench
	@$(BIN)/python benchmarks/table.py $(ARGS)

clean:
	rm -rf $(VENV) .jax_cache .hypothesis .pytest_cache .ruff_cache .import_linter_cache dist build

# One stamp for each set of extras. `python -m venv` on a folder that exists mends it and keeps what is installed.
$(VENV)/.core: EXTRAS :=
$(VENV)/.demo: EXTRAS := [paper,sklearn]
$(VENV)/.dev: EXTRAS := [dev]
$(VENV)/.bench: EXTRAS := [bench]
$(VENV)/.docs: EXTRAS := [docs]
$(VENV)/.core $(VENV)/.demo $(VENV)/.dev $(VENV)/.bench $(VENV)/.docs: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"twofold needs Python 3.11 or newer, and $(PYTHON) is {sys.version.split()[0]}. Name another: make PYTHON=python3.12 ...")'
	@echo "Installing twofold$(EXTRAS) into $(VENV) (a minute or two) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.$(EXTRAS)'
	@touch $@ $(VENV)/.core
