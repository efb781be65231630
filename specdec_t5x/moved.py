"""Old names of modules and classes that moved.

Gin files and Python code of users keep working: importing an old name gives the new
module itself, so both names lead to the same classes.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

_PACKAGE = "specdec_t5x"
# New names of modules, by old name.
MODULES = {
  "beam": "contrib.beam",
  "beam.decoder": "contrib.beam.decoder",
  "beam.hypotheses": "contrib.beam.hypotheses",
  "beam.search": "contrib.beam.search",
  "beam.tree": "contrib.beam.tree",
  "core.approximate": "contrib.approximate",
  "core.checks": "core.knobs",
  "core.kseq": "contrib.kseq",
  "core.noise": "core.distributions",
  "core.recursive": "contrib.recursive",
  "core.shared_tokens": "contrib.shared_tokens",
  "core.sparse": "contrib.truncation",
  "core.typical": "contrib.typical",
  "decoding.context": "decoding.drafter",
  "drafters.cascade": "contrib.cascade",
  "drafters.layer_skip": "contrib.layer_skip",
  "drafters.link": "contrib.link.drafter",
  "drafters.other_vocabulary": "contrib.other_vocabulary",
  "drafters.pruned": "contrib.pruned",
  "drafters.sparse": "contrib.sparse",
  "drafters.stepwise": "drafters.draft_model",
  "link": "contrib.link",
  "link.client": "contrib.link.client",
  "link.drafting": "contrib.link.drafting",
  "link.process": "contrib.link.process",
  "link.server": "contrib.link.server",
  "link.wire": "contrib.link.wire",
  "training.metrics_log": "training.progress",
  "training.online": "contrib.online.learner",
  "training.online_run": "contrib.online.run",
  "training.rejections": "contrib.online.rejections",
  "training.serving": "contrib.online.serving",
  "training.trim": "training.jobs",
}
# "module:name" of the objects with a new module or name, by old module and old name.
NAMES = {
  "build": {"beam": "contrib.beam.decoder:beam"},
  "data.vocabularies": {"shared_tokens": "contrib.vocabulary_tables:shared_tokens"},
  "drafters.eagle": {
    "EagleState": "drafters.heads:LayerState",
    "Going": "drafters.eagle:LayerInputs",
  },
  "drafters.heads": {"HeadDraft": "contrib.heads:HeadDraft"},
  "network.functional": {
    "check_same_vocabulary": "network.vocabulary:check_same_vocabulary",
  },
  "network.heads": {
    "Blockwise": "contrib.heads:Blockwise",
    "Heads": "contrib.heads:Heads",
    "Medusa": "contrib.heads:Medusa",
  },
}


def names_of(module: str) -> Callable[[str], Any]:
  """Returns the `__getattr__` of a module by `__name__`; it finds names that moved."""
  moved = NAMES[module.removeprefix(f"{_PACKAGE}.")]

  def find(name: str) -> Any:
    if name not in moved:
      raise AttributeError(f"module {module!r} has no attribute {name!r}")
    new, _, attribute = moved[name].partition(":")
    return getattr(importlib.import_module(f"{_PACKAGE}.{new}"), attribute)

  return find


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Imports the new module if an old name is imported."""

  def find_spec(self, fullname, path=None, target=None):
    """Returns the spec of a module that moved; None for other modules."""
    package, _, name = fullname.partition(".")
    if package != _PACKAGE or name not in MODULES:
      return None
    new = importlib.util.find_spec(f"{_PACKAGE}.{MODULES[name]}")
    is_package = new.submodule_search_locations is not None
    return importlib.machinery.ModuleSpec(
      fullname, self, loader_state=new, is_package=is_package
    )

  def create_module(self, spec):
    """Returns the module under the new name; Python imports the module once."""
    return importlib.import_module(spec.loader_state.name)

  def exec_module(self, module):
    """Restores the module's spec, which the import of the old name replaced."""
    module.__spec__ = module.__spec__.loader_state


def install() -> None:
  """Makes the old names of modules importable."""
  if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    # The finder of files comes later, because the finder of files would load the files
    # of a moved package a second time under the old names.
    sys.meta_path.insert(0, _Finder())
