"""Speculative decoding for T5 in JAX, inside the T5X setup.

import specdec_t5x
target = specdec_t5x.load_model(".../checkpoint_2000")
draft = specdec_t5x.load_model(".../checkpoint_1800")
specdec_t5x.generate(["translate English to German: Good morning."],
target, draft, "vocabulary.model")
"""

import importlib.util

from specdec_t5x.quiet import load_triton

__version__ = "0.2.0"

load_triton()

# The module of each name; modules are imported on first use.
_MODULES = {
  "generate": "api",
  "load_model": "api",
  "Generation": "api",
  "Model": "prepared",
  "Sampling": "core.distributions",
  # For users' own drafters and rules (examples/).
  "Drafter": "decoding.contracts",
  "Context": "decoding.contracts",
  "Rule": "core.types",
  "Guarantee": "core.types",
  "Proposal": "core.types",
  "Verdict": "core.types",
  "Tree": "core.tree",
  "step": "decoding.loop",
}
# Online learning of a draft during serving; needs optax (the extra `train`) and T5X.
_ONLINE = {
  "serve": "contrib.online.serving",
  "Learner": "contrib.online.learner",
  "Online": "contrib.online.learner",
}
__all__ = [*_MODULES, "config_path", "__version__"]
if all(map(importlib.util.find_spec, ("optax", "t5x"))):
  __all__ += _ONLINE


def config_path() -> str:
  """Returns the folder that holds `configs/`: the package's, else the repository's.

  `--gin_search_paths=.,FOLDER` makes an installed package's gin files available.
  """
  import pathlib

  here = pathlib.Path(__file__).parent
  return str(here if (here / "configs").is_dir() else here.parent)


def __dir__() -> list[str]:
  return __all__


def __getattr__(name: str):
  module = {**_MODULES, **_ONLINE}.get(name)
  if module is None:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return getattr(importlib.import_module(f"specdec_t5x.{module}"), name)
