"""Other decoders with our weights, to measure side by side.

Their packages are optional: ask `importable` before importing a module of this room.
"""

import importlib.util

HUGGING_FACE = ("torch", "transformers")
CTRANSLATE2 = ("ctranslate2", "transformers", "torch")
UPSTREAM = ("t5x.examples.t5.network",)
# The last one decides whether Hugging Face adapts its threshold in its own schedule.
PACKAGES = ("torch", "transformers", "ctranslate2", "scikit-learn")


def importable(modules: tuple[str, ...]) -> bool:
  """Returns whether all of `modules` are installed; imports their parents alone."""
  try:
    return all(importlib.util.find_spec(name) is not None for name in modules)
  except ModuleNotFoundError:  # A parent package is missing: find_spec imports those.
    return False
