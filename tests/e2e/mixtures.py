"""A mixture of two tasks, for gin files."""

import seqio

from specdec_t5x.data import tasks

_GIN = """
from __gin__ import dynamic_registration

from tests.e2e import mixtures

MIXTURE_OR_TASK_NAME = @mixtures.two_tasks()
mixtures.two_tasks:
  name = {name!r}
  text = {text!r}
  vocabulary = %VOCABULARY
"""


def two_tasks(name: str, text: str, vocabulary: seqio.Vocabulary) -> str:
  """Registers NAME, of the tasks NAME_one and NAME_two over one file of sentences."""
  files = {"test": (text, None)}
  names = [f"{name}_{number}" for number in ("one", "two")]
  for task in names:
    tasks.translation_from_files(task, files, vocabulary=vocabulary)
  if name not in seqio.MixtureRegistry.names():
    seqio.MixtureRegistry.add(name, [(task, 1) for task in names])
  return name


def gin_file(pair):
  """Writes the gin of the tiny pair's mixture beside the pair's own."""
  folder = pair[0].parent
  path = folder / "mixture.gin"
  path.write_text(_GIN.format(name="tiny_mixture", text=str(folder / "text.en")))
  return path
