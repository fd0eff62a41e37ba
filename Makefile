# Ten targets at most. Each makes what it needs and says what it is doing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NAME ?= by_hand

.PHONY: help setup demo test test-real check bench schema lock clean

help:            ## what each target does
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/: .*## */\t/' | expand -t 14

$(VENV)/.ready: pyproject.toml requirements.lock
	@echo "setup: making $(VENV) with the optpipe command (about a minute, once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; say: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 3; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

setup: $(VENV)/.ready  ## make .venv with the optpipe command

demo: setup      ## build recipes/demo.yaml: a real model through the whole line (a quarter of an hour on two cores)
	$(BIN)/optpipe build recipes/demo.yaml

test: setup      ## core tests and one real line (the toolchains are installed on first use)
	$(BIN)/python -m pytest tests/unit tests/pipeline tests/real/test_line.py

test-real: setup ## every real part: quantizers, vLLM, AIPerf
	$(BIN)/python -m pytest tests/real

check: setup     ## what CI runs
	bash .ci/run

bench: setup     ## one measurement: make bench NAME=by_hand
	$(BIN)/python -m benchmarks.$(NAME) --json

schema: setup    ## write recipes/recipe.schema.json for editors, and docs/reference
	$(BIN)/optpipe init --schema > recipes/recipe.schema.json
	$(BIN)/python -m optpipe.cli.reference

lock: setup      ## resolve requirements.lock and the toolchain locks again
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --universal --python-version 3.11 --generate-hashes --group dev pyproject.toml -o requirements.lock
	$(BIN)/python -m optpipe.toolchains.lock

clean:           ## remove .venv and build leftovers (artifacts and toolchains stay)
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
