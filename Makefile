# Each target sets up .venv by itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# PyTorch, transformers and CTranslate2 with what we need, but not our own packages: some
# GB, kept outside the clone for as long as the requirements stay the same.
CACHE := $(or $(SPECDEC_T5X_CACHE),$(HOME)/.cache/specdec_t5x)
DIGEST := $(shell ($(PYTHON) -V; cat setup.py t5x_runtime/setup.py) | sha256sum | cut -c1-16)
PEERS := $(CACHE)/peers-$(DIGEST)
RUN_PEERS := PYTHONPATH=$(CURDIR):$(CURDIR)/t5x_runtime $(PEERS)/bin/python
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
# `make test` runs the tests without the mark `slow`, `make test SUITE=slow` the tests with
# the mark, SUITE=all both.
SUITE ?= quick
MARKED_quick := -m "not slow"
MARKED_slow := -m slow
ifeq ($(filter $(SUITE),quick slow all),)
$(error SUITE must be quick, slow or all, got '$(SUITE)')
endif

# Nothing is installed on a borrowed machine: its own Python runs where there is no .venv.
FOLDERS := $(CURDIR):$(CURDIR)/t5x_runtime$(addprefix :,$(PYTHONPATH))
HERE := PYTHONPATH=$(FOLDERS) $(or $(wildcard $(BIN)/python),$(PYTHON))

.PHONY: demo demo-train results gpu test test-gpu test-peers lint format docs wheel install clean

demo: install
	$(BIN)/python -m specdec_t5x.demo

# Trains the embedded pair again, into runs/demo/ende; stopped, it goes on.
demo-train: install
	$(BIN)/python -m lab pair

# Measures all that the pages show, for hours and alone, and renders them: goes on where it
# stopped. ARGS="--data m30k=DIR" adds what needs that folder. Peers are timed, too.
results: $(PEERS)/.installed
	$(RUN_PEERS) -m benchmarks results $(ARGS)

# Checks and measures speculation on this GPU or TPU, in minutes: docs/tpu.md. A later
# flag overrides an earlier one, as in ARGS="--output DIR --minutes 3".
gpu:
	$(HERE) -m benchmarks gpu --output runs/gpu $(ARGS)

# The checks alone, one line each.
test-gpu:
	$(HERE) -m tests.native.device $(ARGS)

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations 20 $(MARKED_$(SUITE))

# What needs PyTorch, transformers and CTranslate2 (the extra `peers`).
test-peers: $(PEERS)/.installed
	$(RUN_PEERS) -m pytest tests/hugging_face/test_triton.py \
	  tests/hugging_face/test_parity.py tests/lab/test_peers.py tests/lab/test_commands.py

$(PEERS)/.installed:
	@echo "Installing into $(PEERS): about four minutes the first time."
	PYTHON=$(PYTHON) .ci/install $(PEERS) test,train,peers
	$(PEERS)/bin/python -m pip uninstall --quiet --yes specdec_t5x specdec-t5x-runtime
	@for old in $(filter-out $(PEERS),$(wildcard $(CACHE)/peers-*)); do \
	  echo "$$old is of other requirements. Remove the folder to free some GB."; done
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

# Sdist and wheel, checked in an environment of the declared dependencies.
wheel: install
	.ci/wheel

install: $(STAMP)

# t5x_runtime provides `t5x` from PyPI packages alone; for upstream T5X in its place see
# requirements/t5x-upstream.txt.
$(STAMP): setup.py t5x_runtime/setup.py .ci/install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; set PYTHON=..., as in make test PYTHON=python3.11"; exit 1; }
	@echo "Installing into $(VENV): two to four minutes the first time."
	@PYTHON=$(PYTHON) .ci/install $(VENV) test,train
	@$(BIN)/python -c "$$BUILD_KERNELS"
	@touch $@

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info
