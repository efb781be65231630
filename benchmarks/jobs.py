"""Makes jobs from flags: for a pair of the user, of the demo or of the paper."""

import argparse
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from benchmarks.command import at_least
from benchmarks.study import COPY, UNTRAINED, Job, Study, Tokens
from specdec_t5x.demo import embedded
from specdec_t5x.vocabularies.frames import frame_of
from specdec_t5x.vocabularies.opening import open_vocabulary

DEMO = "demo"
PAPER = "paper"
# The most tokens of inputs and of outputs.
_PAPER_LENGTHS = {"ende": (256, 256), "cnndm": (512, 128)}
_PAPER = {"num_tokens": 10_000, "dtype": "bfloat16"}
_TASKS = {DEMO: ("ende",), PAPER: tuple(_PAPER_LENGTHS), None: ()}
# The folder of the drafts that `python -m lab pair --more` trains.
_MORE = pathlib.Path("runs/demo/ende")
_ORDERS = {"unigram": 1, "bigram": 2, "trigram": 3}
# The flags of commands that measure cells.
CELLS = {
  "num_tokens": (int, "output tokens of a cell (paper: 10000, else 2000)"),
  "runs": (15, "number of timings of every part"),
  "recorded": False,
}
# The flags of a target and of inputs; `PAIRS` adds drafts.
TARGET = {
  "target": ([str], "checkpoint; TASK: of a preset", {"metavar": "[TASK:]DIR"}),
  "vocabulary": (str, "a SentencePiece model"),
  "inputs": (str, "file with an input on every line"),
  "prefix": ("", "text before every line of --inputs"),
  "num_inputs": (int, "maximum number of inputs"),
  "max_length": int,
  "preset": (
    str,
    "demo: the pair in the package, the default without --target; paper: T5 1.1 XXL "
    "in bfloat16 on WMT14 EnDe and CNN/DailyMail",
    (DEMO, PAPER),
  ),
  "tasks": ([str], "tasks of a preset: demo: ende; paper: ende, cnndm"),
  "task": ("yours", "name of the task of --inputs"),
  "prompts": (False, "--inputs are prompts of decoder-only networks, without EOS"),
  "dtype": (str, "dtype of parameters and activations (paper: bfloat16, else float32)"),
  "tfds_data_dir": (str, "folder of the prepared TFDS datasets"),
}
PAIRS = {
  **TARGET,
  "draft": (
    [str],
    "checkpoint or n-gram table (DIR@2: the table's bigrams); several drafts need "
    "different names; `copy` copies from the input, `quantized` is the target in 8 "
    "bits. With --preset demo, in addition to the demo's drafts",
    {"metavar": "[TASK:][NAME=]DIR", "action": "extend"},
  ),
}
# The flags of commands with few inputs and short outputs.
FEW = {"num_inputs": (100, PAIRS["num_inputs"][1]), "max_length": 64}


def load(args: argparse.Namespace) -> Study:
  """Loads the first task of the flags."""
  return from_flags(args)[0].load()


def preset(args: argparse.Namespace) -> str | None:
  """Returns the preset of the flags; None for a pair given by flags."""
  return args.preset or (None if args.target else DEMO)


def from_flags(args: argparse.Namespace) -> list[Job]:
  """Returns a job per task.

  Raises:
    ValueError: if flags or files are missing; the message names all of them.
  """
  chosen = preset(args)
  at_least(args, num_inputs=1, max_length=1, num_tokens=1, runs=1)
  fixed = dict(_PAPER) if chosen == PAPER else {}
  for name in ("max_length", "num_tokens", "dtype", "runs"):
    if vars(args).get(name) is not None:
      fixed[name] = getattr(args, name)
  jobs = []
  for job in _SOURCES[chosen](args):
    drafts = {**job.drafts, **_drafts(args, job.task)}
    jobs.append(dataclasses.replace(job, drafts=drafts, **fixed))
  return jobs


def known(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the preset and each task's folders of models, for a table's settings."""
  models = {job.task: {"target": job.target, **job.drafts} for job in from_flags(args)}
  return {"preset": preset(args), "models": models}


def _of_demo(args) -> Iterator[Job]:
  """Yields the task of the pair in the package, with the drafts in `_MORE`."""
  _tasks(args)
  drafts = {"draft_small": embedded.draft()}
  is_more = vars(args).get("heads") or vars(args).get("tables")
  if is_more and not _MORE.is_dir():
    print("`python -m lab pair --more` trains more drafts.", file=sys.stderr)
  if vars(args).get("heads"):
    for folder in ("draft_tiny", "heads/*"):
      found = sorted(_MORE.glob(f"{folder}/checkpoint_*"))
      drafts |= {path.parent.name: str(path) for path in found}
  if vars(args).get("tables"):
    for folder in _MORE.glob("ngrams/checkpoint_0"):
      drafts |= {name: f"{folder}@{order}" for name, order in _ORDERS.items()}
    drafts[COPY] = COPY
  vocabulary = embedded.vocabulary()
  texts, _ = embedded.examples(args.num_inputs)
  read = functools.partial(encoded, vocabulary, texts, prompts=False)
  yield Job("ende", embedded.target(), drafts, read, 80, vocabulary=vocabulary)


def _of_paper(args) -> Iterator[Job]:
  """Yields the paper's tasks."""
  targets = {task: _of_task(args.target or [], task) for task in _tasks(args)}
  needed = [task for task in targets if not targets[task] or not _drafts(args, task)]
  if needed:
    raise ValueError(
      f"--preset paper needs checkpoints for {' and '.join(needed)}: --target "
      "[TASK:]DIR, T5 1.1 XXL fine-tuned on the task, and --draft [TASK:]NAME=DIR, "
      "fine-tuned T5 1.1 small, base and large, named T5-small, T5-base and T5-large "
      "as in the paper; the test sets in --tfds-data-dir; and T5's vocabulary, from "
      "gs:// or with --vocabulary. Select your tasks with --tasks."
    )
  for task, target in targets.items():
    max_input, max_output = _PAPER_LENGTHS[task]
    read = functools.partial(_published, task, args, max_input)
    folder = _existing(target[-1], "--target")
    yield Job(task, folder, {}, read, max_output, vocabulary=args.vocabulary or "")


def _of_flags(args) -> Iterator[Job]:
  """Yields the task of the pair in the flags."""
  # A vocabulary may be a Hugging Face folder.
  for flag, is_there in (("vocabulary", os.path.exists), ("inputs", os.path.isfile)):
    path = getattr(args, flag)
    if path is None or not is_there(path):
      raise ValueError(
        f"--{flag}: expected a file, got {path!r}. Your own pair needs --target, "
        "--draft, --vocabulary and --inputs."
      )
  if len(args.target) != 1:
    raise ValueError(
      f"--target: expected one folder, got {args.target}. Give --target once."
    )
  if "draft" in args and not _drafts(args, args.task):
    raise ValueError(
      "--draft: expected NAME=DIR, `copy` or `quantized`, got no draft. Give at least "
      "1 draft."
    )
  read = functools.partial(
    _lines, args.inputs, args.num_inputs, args.prefix, args.vocabulary, args.prompts
  )
  folder = _existing(args.target[0], "--target")
  yield Job(args.task, folder, {}, read, 128, vocabulary=args.vocabulary)


_SOURCES = {DEMO: _of_demo, PAPER: _of_paper, None: _of_flags}


def _tasks(args):
  task_names = _TASKS[preset(args)]
  unknown = [task for task in args.tasks or () if task not in task_names]
  if unknown:
    raise ValueError(f"--tasks: expected names among {task_names}, got {unknown}.")
  return list(args.tasks or task_names)


def _of_task(values, task):
  """Returns the values for a task: values with the task's name, or with no name."""
  matching = []
  for value in values:
    name, colon, path = value.partition(":")
    # A colon without a task's name is part of the path, as in gs://...
    if not colon or name not in _PAPER_LENGTHS:
      matching.append(value)
    elif name == task:
      matching.append(path)
  return matching


def _drafts(args, task):
  drafts = {}
  for value in _of_task(vars(args).get("draft") or [], task):
    name, equals, source = value.partition("=")
    if not equals:
      name = value if value in UNTRAINED else "draft"
      source = value
    if name in drafts:
      raise ValueError(
        f"--draft: {name!r} is given twice. Give the drafts different names."
      )
    drafts[name] = source if source in UNTRAINED else _existing(source, "--draft")
  return drafts


def _existing(path, flag):
  if "://" not in path and not os.path.isdir(path.split("@")[0]):
    raise ValueError(
      f"{flag}: {path!r} is not a folder. Give the folder of a checkpoint."
    )
  return path


def encoded(vocabulary: str, texts: Sequence[str], prompts: bool) -> Tokens:
  """Returns the tokens of texts; prompts have no EOS."""
  opened = open_vocabulary(vocabulary)
  prefix, suffix = frame_of(opened)
  # The output continues a prompt.
  end = () if prompts else suffix
  ids = [[*prefix, *opened.encode(text), *end] for text in texts]
  return ids, opened.eos_id


def _lines(path, count, prefix, vocabulary, prompts) -> Tokens:
  """Reads a file with an input per line."""
  lines = epath.Path(path).read_text().splitlines()[:count]
  if not lines:
    raise ValueError(f"--inputs: {path!r} has no line. Give an input on every line.")
  return encoded(vocabulary, [prefix + line for line in lines], prompts)


def _published(task, args, cut) -> Tokens:
  """Reads a test set through the seqio task and TFDS."""
  import seqio

  from specdec_t5x.data import reading, tasks, vocabularies

  if args.tfds_data_dir:
    seqio.set_tfds_data_dir_override(args.tfds_data_dir)
  register = {"ende": tasks.wmt14_ende, "cnndm": tasks.cnn_dailymail}[task]
  path = args.vocabulary or vocabularies.DEFAULT_T5_VOCABULARY
  vocabulary = vocabularies.sentencepiece_vocabulary(path, extra_ids=100)
  name = register(vocabulary=vocabulary)
  try:
    dataset = seqio.get_mixture_or_task(name).get_dataset(
      {"inputs": cut, "targets": cut}, split="test", shuffle=False
    )
  except Exception as error:  # TFDS and its readers define further exceptions.
    raise ValueError(
      f"The test set of {task!r} can't be read ({type(error).__name__}: {error}). "
      "Give --tfds-data-dir, a directory with the dataset, prepared by TFDS."
    ) from error
  dataset = dataset.take(args.num_inputs or -1)
  ids = [example["inputs"].tolist() for example in reading.rows(dataset)]
  return ids, vocabulary.eos_id
