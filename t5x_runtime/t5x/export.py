"""A message for `python -m t5x.export`: only upstream T5X exports to TensorFlow."""

import sys

if __name__ == "__main__":
  sys.exit(
    "t5x.export: t5x_runtime writes no SavedModel. Export for JAX with python -m "
    "specdec_t5x.export --output DIR, or install upstream T5X "
    "(requirements/t5x-upstream.txt)."
  )
