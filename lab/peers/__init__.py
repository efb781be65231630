"""Decoders of other libraries with our weights, for comparisons.

The packages are optional: call `importable` before importing a module of this folder.
"""

import importlib.util

HUGGING_FACE = ("torch", "transformers")
CTRANSLATE2 = ("ctranslate2", "transformers", "torch")
UPSTREAM = ("t5x.examples.t5.network",)
# Hugging Face's default schedule adapts its threshold only if scikit-learn is there.
PACKAGES = ("torch", "transformers", "ctranslate2", "scikit-learn")


def importable(modules: tuple[str, ...]) -> bool:
  """Returns whether every module is installed; imports only parent packages."""
  try:
    return all(importlib.util.find_spec(name) is not None for name in modules)
  except ModuleNotFoundError:  # `find_spec` imports parents; a parent is missing.
    return False
