"""The commands, run in this process like in a shell."""

import contextlib
import hashlib
import importlib.util
import os
import sys

import gin
from absl import flags, logging
from t5x import eval as t5x_eval
from t5x import gin_utils
from t5x import infer as t5x_infer

from lab import __main__ as lab
from specdec_t5x import load_model, train
from specdec_t5x.vocabularies import opening
from tests.real_data import ROOT


def infer(*arguments: str) -> None:
  with own_flags(t5x_infer._define_flags), as_main(t5x_infer):
    t5x_infer._main(gin_utils._parse_flags(["t5x.infer", *arguments]))


def evaluation(*arguments: str) -> None:
  from t5x import command  # A module of the runtime.

  with own_flags(command.define_flags), as_main(t5x_eval):
    t5x_eval._main(gin_utils._parse_flags(["t5x.eval", *arguments]))


def training(*arguments: str) -> None:
  with own_flags(train.define_flags):
    train.main(gin_utils._parse_flags(["specdec_t5x.train", *arguments]))


def differences(*arguments: str) -> None:
  sys.exit(lab.main(["differences", *arguments]))


def loading(path: str) -> None:
  """Loads the vocabulary and the model of a Hugging Face folder, in Python."""
  try:
    files = (opening.TOKENIZER, opening.SETTINGS, *opening.PIECES)
    if any(os.path.exists(os.path.join(path, name)) for name in files):
      opening.open_folder(path)
    load_model(path)
  except (ValueError, OSError) as error:
    sys.exit(f"error: {error}")


def script(name: str):
  """Returns a function that runs scripts/<name>.py."""

  def run(*arguments: str) -> None:
    sys.exit(script_module(name).main(arguments))

  return run


def script_module(name: str, folder: str = "scripts"):
  spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@contextlib.contextmanager
def own_flags(define):
  """Defines absl's flags with `define`, and an empty gin configuration, for a while."""
  # A different test's command may have defined the shared flags.
  shared = ("gin_file", "gin_bindings", "gin_search_paths", "tfds_data_dir")
  before = {name: flags.FLAGS[name] for name in shared if name in flags.FLAGS}
  _remove(before)
  others = set(flags.FLAGS)
  define()
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.WARNING)
  gin.clear_config()
  _forget_commands()
  try:
    yield
  finally:
    gin.clear_config()
    logging.set_verbosity(verbosity)
    _remove(set(flags.FLAGS) - others)
    for name, flag in before.items():
      flags.FLAGS[name] = flag


def _forget_commands():
  """Removes T5X's functions from gin, so that the command's names are unambiguous."""
  for function in (t5x_infer.infer, t5x_eval.evaluate):
    for module in ("__main__", function.__module__):
      if (name := f"{module}.{function.__name__}") in gin.config._REGISTRY:
        gin.config._REGISTRY.pop(name)
    gin.config._INVERSE_REGISTRY.pop(function, None)


def _remove(names):
  for name in names:
    delattr(flags.FLAGS, name)


@contextlib.contextmanager
def as_main(module):
  """Makes gin files import the module as `__main__`, like `python -m`."""
  before = sys.modules["__main__"]
  sys.modules["__main__"] = module
  try:
    yield
  finally:
    sys.modules["__main__"] = before


def contents(*folders) -> dict[str, str]:
  """Returns the digest of every file below the folders, and '' for every folder."""
  paths = sorted(path for folder in folders for path in folder.rglob("*"))

  def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()

  return {str(path): digest(path) if path.is_file() else "" for path in paths}
