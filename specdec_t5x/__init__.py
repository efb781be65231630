"""Speculative decoding for T5 in JAX, inside the T5X setup.

import specdec_t5x
target = specdec_t5x.load_model(".../checkpoint_2000")
draft = specdec_t5x.load_model(".../checkpoint_1800")
specdec_t5x.generate(["translate English to German: Good morning."],
target, draft, "vocabulary.model")
"""

from specdec_t5x.quiet import load_triton

__version__ = "0.2.0"

load_triton()

_API = (
  *("generate", "load_model", "Generation", "Model", "Sampling"),
  # For users' own drafters and rules (examples/).
  *("Drafter", "Rule", "Guarantee", "Proposal", "Verdict", "Tree"),
  *("Context", "step"),
)
# Online learning of a draft during serving; needs optax (the extra `train`).
_ONLINE = {"serve": "serving", "Learner": "learner", "Online": "learner"}


def config_path() -> str:
  """Returns the folder that holds `configs/`: the package's, else the repository's.

  `--gin_search_paths=.,FOLDER` makes an installed package's gin files available.
  """
  import pathlib

  here = pathlib.Path(__file__).parent
  return str(here if (here / "configs").is_dir() else here.parent)


def __dir__() -> list[str]:
  return [*_API, *_ONLINE, "config_path", "__version__"]


def __getattr__(name: str):
  # Imports on first use, so that importing one of our packages does not load all.
  if name in _API:
    from specdec_t5x import api

    return getattr(api, name)
  if name in _ONLINE:
    import importlib

    module = importlib.import_module(f"specdec_t5x.contrib.online.{_ONLINE[name]}")
    return getattr(module, name)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
