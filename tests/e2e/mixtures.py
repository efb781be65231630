"""A mixture of two tasks for gin files."""

import seqio

from specdec_t5x.data import tasks
from tests.e2e import runs


def two_tasks(name: str, text: str, vocabulary: seqio.Vocabulary) -> str:
  """Registers the mixture NAME of the tasks NAME_one and NAME_two over a text file."""
  files = {"test": (text, None)}
  names = [f"{name}_{number}" for number in ("one", "two")]
  for task in names:
    tasks.translation_from_files(task, files, vocabulary=vocabulary)
  if name not in seqio.MixtureRegistry.names():
    seqio.MixtureRegistry.add(name, [(task, 1) for task in names])
  return name


def gin_file(pair):
  """Writes the gin file of the tiny pair's mixture beside the pair's gin file."""
  folder = pair[0].parent
  path = folder / "mixture.gin"
  text = runs.bindings(TEXT=str(folder / "text.en"))
  path.write_text((runs.ROOT / "tests/e2e/mixture.gin").read_text() + text)
  return path
