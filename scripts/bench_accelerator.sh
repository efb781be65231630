#!/bin/sh
# What speculation does on this machine's GPU or TPU, in at most 25 minutes:
#
#   scripts/bench_accelerator.sh                        # writes runs/accelerator
#   scripts/bench_accelerator.sh --output DIR --minutes 10
#
# Needs jax for the device, flax, jaxtyping and NumPy; PYTHON names the interpreter. Every
# cell is kept as it is measured: run it again, and it goes on.
set -eu
cd "$(dirname "$0")/.."
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
exec "${PYTHON:-python3}" -m specdec_t5x.bench accelerator --output runs/accelerator "$@"
