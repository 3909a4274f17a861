# Two commands: `make demo` and `make test`. Everything is installed into .venv through constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE  # the tests are many files, and compiled once

.PHONY: demo test test-walk test-browser test-tracking test-deploy test-flower test-replies test-ray test-kernels lint bench docs clean

$(VENV)/installed: pyproject.toml studies/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) pip  # one that knows dependency groups
	$(INSTALL) -e . -e studies
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) -e ".[images,encryption,flower,privacy]" --group dev
	touch $@

demo: $(VENV)/installed
	OMP_NUM_THREADS=2 $(BIN)/turnout demo

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2

# Every name and option of every section, every method with every BatchNorm, every damage to every file of a run, and random configurations: minutes. The suite has a sample.
test-walk: $(VENV)/installed-dev
	TURNOUT_WALK=all $(BIN)/pytest -n 2 tests/walk tests/test_batchnorm.py tests/cli/test_damage.py
	PYTHONPATH=tests $(BIN)/python tests/walk/random_configurations.py --count 22000 --seed 1

# Real SuperNodes over TLS on loopback: minutes, and no part of the suite.
test-deploy: $(VENV)/installed-dev
	$(BIN)/pytest tests/deploy_real

# Flower apps with the version of Flower that constraints.txt does not name, beside the one that it does.
$(VENV)/flower-1.42: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ "flwr==1.42.*"

test-flower: $(VENV)/flower-1.42
	PYTHONPATH=$< $(BIN)/pytest tests/deploy

# A million mutated replies against the server's boundary: a quarter of an hour, and no part of the suite.
test-replies: $(VENV)/installed-dev
	$(BIN)/python tests/deploy/mutated_replies.py --count 1000000 --seed 0

$(VENV)/installed-browser: $(VENV)/installed-dev
	$(INSTALL) --group browser
	touch $@

# Pictures of the pages, wide and narrow, light and dark, are left in build/screenshots.
test-browser: $(VENV)/installed-browser docs
	SCREENSHOTS=$${SCREENSHOTS:-build/screenshots} $(BIN)/pytest tests/browser

$(VENV)/installed-tracking: $(VENV)/installed-dev
	$(INSTALL) -e ".[tracking]" --group tracking-servers
	touch $@

test-tracking: $(VENV)/installed-tracking
	$(BIN)/pytest tests/servers

$(VENV)/installed-ray: $(VENV)/installed-dev
	$(INSTALL) -e ".[ray]"
	touch $@

# Real Ray workers on loopback: minutes, and no part of the suite.
test-ray: $(VENV)/installed-ray
	$(BIN)/pytest tests/ray_real

# Kernels for CUDA on a CPU, by the interpreter of Triton, which is laid beside the environment: torch finds it nowhere else.
$(VENV)/triton: $(VENV)/installed-dev
	$(INSTALL) --no-deps --target $@ triton==3.9.0

test-kernels: $(VENV)/triton
	TRITON_INTERPRET=1 PYTHONPATH=$< $(BIN)/pytest tests/kernels

bench: $(VENV)/installed
	env -u OMP_NUM_THREADS $(BIN)/python benchmarks/rounds.py

$(VENV)/installed-docs: $(VENV)/installed
	$(INSTALL) --group docs
	touch $@

docs: $(VENV)/installed-docs
	$(BIN)/zensical build --strict --clean
	@echo "open site/index.html: it needs neither a server nor a network"

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
