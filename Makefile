# Two commands: `make demo` and `make test`. Everything is installed into .venv through constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-deploy lint bench docs clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(VENV)/installed
	OMP_NUM_THREADS=2 $(BIN)/turnout demo

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2

# Real SuperNodes over TLS on loopback: minutes, and no part of the suite.
test-deploy: $(VENV)/installed-dev
	$(BIN)/pytest tests/deploy_real

bench: $(VENV)/installed
	OMP_NUM_THREADS= $(BIN)/python benchmarks/rounds.py

docs: $(VENV)/installed-dev
	$(BIN)/pytest tests/test_docs.py
	@echo "docs/ is plain Markdown and its examples run; start at docs/index.md"

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
