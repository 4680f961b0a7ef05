# The two commands: `make demo` and `make test`. Both need only Python and make.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
GPU_PYTHON ?= python3
# a file of tests stays with one process
PARALLEL := -n auto --dist loadfile
DEMO := output/demo
SECONDS ?= 60
WHEEL := output/wheel

.PHONY: help demo test test-all test-gpu test-peers test-wheel lint types docs benchmark soak clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(VENV)/.lab: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt -e ".[lab]"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@ $(VENV)/.lab

demo: $(VENV)/.lab  ## the paper's Figure 1 on a CPU: tables, a picture and a page, in about two minutes
	$(VENV)/bin/discretegrad run polynomial-headline --device cpu --runs $(DEMO)/runs
	$(VENV)/bin/discretegrad report polynomial-headline --runs $(DEMO)/runs --results $(DEMO)
	$(VENV)/bin/discretegrad plot polynomial-headline --runs $(DEMO)/runs --results $(DEMO)
	@echo
	@echo "Open $(DEMO)/polynomial-headline/curves.png and $(DEMO)/polynomial-headline/report.html"
	@echo "The runs are kept, so the next make demo only reports; to train again: rm -r $(DEMO)"

test: lint types docs  ## everything a change must pass: lint, types, docs, tests
	$(PY) -m pytest $(PARALLEL) -m "not gpu and not slow" --doctest-modules

test-all: lint types docs  ## the same with the long proofs
	$(PY) -m pytest $(PARALLEL) -m "not gpu" --doctest-modules

test-gpu:  ## the tests that need a CUDA device, with the Python that has it (GPU_PYTHON)
	PYTHONPATH=src $(GPU_PYTHON) -m pytest -m gpu tests

test-peers: $(VENV)/.dev  ## the library inside or beside torchrl, Pyro, transformers, vector-quantize-pytorch and JAX, which it installs
	$(PY) -m pip install --quiet -c constraints.txt -e ".[peers,jax]"
	$(PY) -m pytest tests/test_peers.py tests/test_quantize.py tests/test_lab_codebook.py tests/test_jax.py

test-wheel: $(VENV)/.dev  ## build the wheel, install it into an empty environment, test it there; TORCH=2.6.0 with that one
	rm -rf $(WHEEL)
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(WHEEL) .
	$(PYTHON) -m venv $(WHEEL)/venv
	$(WHEEL)/venv/bin/python -m pip install --quiet $(if $(TORCH),torch==$(TORCH),-c constraints.txt) $(WHEEL)/*.whl
	cd $(WHEEL) && venv/bin/python -I $(CURDIR)/tests/wheel_check.py

lint: $(VENV)/.dev  ## formatting and lint
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

types: $(VENV)/.dev  ## static types
	$(PY) -m mypy

docs: $(VENV)/.dev  ## build the documentation, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

benchmark: $(VENV)/.dev  ## CPU benchmarks: write benchmarks/*.csv and the tables in the docs
	$(PY) benchmarks/run.py
	$(PY) benchmarks/steps.py
	$(PY) benchmarks/subsets.py

soak: $(VENV)/.dev  ## attack library and lab with random cases for SECONDS (60); RECORD=1 stores the counts
	$(PY) -m soak --seconds $(SECONDS) --processes 2 $(if $(RECORD),--record)

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(DEMO) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
