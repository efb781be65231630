"""One thing that users get wrong, and the usual ones.

HERE in arguments is the test's folder, PAIR the folder of the pair, NAME a name for a
task: seqio wants another for each.
"""

import dataclasses
from collections.abc import Callable

from tests import commands
from tests.errors import inputs

BEAM, LEARNS = (f"--gin_file=configs/runs/{name}.gin" for name in ("beam", "online"))
COPY, NGRAM, TREE, HEADS, LAYER_SKIP, QUANTIZED, LINK, CASCADE, OTHER = (
  f"--gin_file=configs/drafters/{name}.gin"
  for name in (
    *("copy", "ngram", "tree", "heads", "layer_skip", "quantized", "link", "cascade"),
    "other_vocabulary",
  )
)
CONFIDENCE, AUTO = (
  f"--gin_file=configs/policies/{name}.gin" for name in ("confidence", "auto")
)
SPECULATIVE = ("--gin_file=configs/spec_ende.gin", "--gin_file=HERE/pair.gin")
OUTPUT = "--gin.INFER_OUTPUT_DIR='HERE/out'"
DAMAGED = "--gin.TARGET_CHECKPOINT_PATH='HERE/checkpoint_7'"


@dataclasses.dataclass(frozen=True)
class Case:
  """One bad input.

  Attributes:
    did: what the user did, as in docs/errors.md, which has what the message says.
    arguments: of the command, after those of `base`.
    gin: the text of a last gin file.
    make: makes files in the test's folder.
    base: arguments that are right.
    run: the command.
    code: its exit code.
    alone: whether it runs in a process of its own.
  """

  did: str
  arguments: tuple[str, ...] = ()
  gin: str = ""
  make: Callable | None = None
  base: tuple[str, ...] = (*SPECULATIVE, OUTPUT)
  run: Callable[..., None] = commands.infer
  code: int = 1
  alone: bool = False


def setting(did: str, *bindings: str) -> Case:
  """A bad --gin.NAME=VALUE."""
  return of_files(did, (), *bindings)


def of_files(did: str, files: tuple[str, ...], *bindings: str) -> Case:
  """Bindings that do not go with gin files added to a run's."""
  flags = tuple(f"--gin.{binding}" for binding in bindings)
  return Case(did, flags, base=(*SPECULATIVE, *files, OUTPUT))


def lines(did: str, data: bytes | None, name: str, files: str, task="") -> Case:
  """A bad file of a task over parallel text, or of another task."""
  task = task or "translation_from_files"
  gin = f"""
from __gin__ import dynamic_registration
from specdec_t5x.data import tasks
MIXTURE_OR_TASK_NAME = @tasks.{task}()
tasks.{task}:
  name = 'NAME'
  files = {{'test': {files}}}
  vocabulary = %VOCABULARY
"""
  make = None if data is None else inputs.text_file(name, data)
  return Case(did, gin=gin, make=make)


def records(did: str, data: bytes, name: str) -> Case:
  """A bad file of records."""
  return lines(did, data, name, f"'HERE/{name}'", "translation_from_records")


def examples(
  did: str, paths: str, *bindings: str, make: Callable | None = None
) -> Case:
  """Files of TFExamples that can't be read."""
  flags = (f"TF_EXAMPLE_FILE_PATHS={paths}", *bindings)
  case = of_files(did, ("--gin_file=configs/runs/tfexamples.gin",), *flags)
  return dataclasses.replace(case, make=make)


def other(did: str, run: Callable, *arguments: str, **kwargs) -> Case:
  """A bad argument of another command."""
  return Case(did, arguments, base=(), run=run, **kwargs)
