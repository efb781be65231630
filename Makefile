# Each target sets up .venv by itself.

PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Compiles what multiplies on CPU, and says where that can't be done.
define BUILD_KERNELS
import os, warnings
os.environ.update(JAX_PLATFORMS="cpu")
warnings.simplefilter("ignore")
from specdec_t5x.native import library
if reason := library.problem():
  print(f"Decoding on CPU will be slower: {reason}")
endef
export BUILD_KERNELS

# Test processes: each takes 3 to 5 GiB.
WORKERS ?= 2

.PHONY: demo demo-all demo-lm results test test-slow test-peers lint format docs wheel install clean

demo: install
	$(BIN)/python -m specdec_t5x.demo

demo-all: install
	$(BIN)/python -m specdec_t5x.demo --pairs ende cnndm --more

demo-lm: install
	$(BIN)/python -m specdec_t5x.demo --pairs lm

# Measures all that the pages show, for hours and alone, and renders them: goes on where it
# stopped. ARGS="--data m30k=DIR" adds what needs that folder. Peers are timed, too.
results: $(PEERS)/.installed
	$(PEERS)/bin/python -m specdec_t5x.demo --keep demo
	$(PEERS)/bin/python -m specdec_t5x.bench results $(ARGS)

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

# What takes long and seldom breaks alone.
test-slow: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow

# What needs PyTorch, transformers and CTranslate2 (the extra `peers`), in an environment
# of its own: some GB, four minutes.
test-peers: $(PEERS)/.installed
	$(PEERS)/bin/python -m pytest tests/hugging_face/test_triton.py \
	  tests/hugging_face/test_parity.py tests/bench/peers

$(PEERS)/.installed: setup.py t5x_runtime/setup.py
	@echo "Installing into $(PEERS): about four minutes the first time."
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS)/bin/python -m pip install --quiet \
	  --editable ".[test,train,peers]" --editable ./t5x_runtime
	@touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in docs/_build/html, built anew, as what is kept hides warnings; a warning is
# an error.
docs: install
	$(BIN)/python -m pip install --quiet --requirement requirements/docs.txt
	$(BIN)/python -m sphinx -E -W --keep-going --quiet -b html docs docs/_build/html

# Sdist and wheel, checked in an empty environment: some minutes.
wheel:
	PYTHON=$(PYTHON) .ci/wheel

install: $(STAMP)

# t5x_runtime provides `t5x` from PyPI packages alone; for upstream T5X in its place see
# requirements/t5x-upstream.txt.
$(STAMP): setup.py t5x_runtime/setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; set PYTHON=..., as in make test PYTHON=python3.11"; exit 1; }
	@echo "Installing into $(VENV): two to four minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[test,train]" --editable ./t5x_runtime
	@$(BIN)/python -c "$$BUILD_KERNELS"
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) build dist docs/_build *.egg-info
