"""A message for `python -m t5x.train`: only upstream T5X has a trainer."""

import sys

if __name__ == "__main__":
  sys.exit(
    "t5x.train: t5x_runtime decodes and evaluates, but has no trainer. Train a draft "
    "with python -m specdec_t5x.train --gin_file=configs/train/small_draft.gin, or "
    "install upstream T5X (requirements/t5x-upstream.txt)."
  )
