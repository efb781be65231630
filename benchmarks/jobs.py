"""Makes jobs from flags: of the user's pair, the pair in the package, the paper's."""

import argparse
import dataclasses
import functools
import os
from collections.abc import Sequence

from etils import epath

from benchmarks.study import UNTRAINED, Job, Study, Tokens
from specdec_t5x.demo import embedded
from specdec_t5x.vocabularies.frames import frame_of
from specdec_t5x.vocabularies.opening import open_vocabulary

DEMO = "demo"
PAPER = "paper"
# The most tokens of inputs and of outputs.
_PAPER_LENGTHS = {"ende": (256, 256), "cnndm": (512, 128)}
_MAX_OUTPUT = 80


def load(args: argparse.Namespace) -> Study:
  """Loads the pair and the inputs of the flags."""
  return from_flags(args).load()


def from_flags(args: argparse.Namespace) -> Job:
  """Returns the job of the flags; raises a ValueError that names all missing flags."""
  chosen = args.preset or (None if args.target else DEMO)
  fixed = {"num_tokens": 10_000, "dtype": "bfloat16"} if chosen == PAPER else {}
  given = {n: vars(args).get(n) for n in ("max_length", "num_tokens", "dtype", "runs")}
  fixed |= {name: value for name, value in given.items() if value is not None}
  job = {DEMO: _of_demo, PAPER: _of_paper, None: _of_flags}[chosen](args)
  return dataclasses.replace(job, drafts={**job.drafts, **_drafts(args)}, **fixed)


def _of_demo(args) -> Job:
  """Returns the job of the pair in the package."""
  if args.tasks != "ende":
    raise ValueError(f"--tasks: expected ende for --preset demo, got {args.tasks}.")
  drafts = {"draft_small": embedded.draft()}
  texts, _ = embedded.examples(args.num_inputs)
  vocabulary = embedded.vocabulary()
  read = functools.partial(encoded, vocabulary, texts, prompts=False)
  return Job(
    "ende", embedded.target(), drafts, read, _MAX_OUTPUT, vocabulary=vocabulary
  )


def _of_paper(args) -> Job:
  """Returns the job of a task of the paper."""
  if not args.target or not _drafts(args):
    raise ValueError(
      f"--preset paper needs checkpoints for {args.tasks}: --target DIR, T5 1.1 XXL "
      "fine-tuned on the task, and --draft NAME=DIR, fine-tuned T5 1.1 small, base and "
      "large, named T5-small, T5-base and T5-large as in the paper; the test sets in "
      "--tfds-data-dir; and T5's vocabulary, from gs:// or with --vocabulary."
    )
  max_input, max_output = _PAPER_LENGTHS[args.tasks]
  read = functools.partial(_published, args.tasks, args, max_input)
  target = _existing(args.target, "--target")
  vocabulary = args.vocabulary or ""
  return Job(args.tasks, target, {}, read, max_output, vocabulary=vocabulary)


def _of_flags(args) -> Job:
  """Returns the job of the pair in the flags."""
  # A vocabulary may be a Hugging Face folder.
  for flag, is_there in (("vocabulary", os.path.exists), ("inputs", os.path.isfile)):
    path = getattr(args, flag)
    if path is None or not is_there(path):
      raise ValueError(
        f"--{flag}: expected a file, got {path!r}. Your own pair needs --target, "
        "--draft, --vocabulary and --inputs."
      )
  if "draft" in args and not _drafts(args):
    raise ValueError(
      "--draft: expected NAME=DIR, `copy` or `quantized`, got no draft. Give at least "
      "1 draft."
    )

  def read():
    texts = lines(args.inputs, args.num_inputs, args.prefix)
    return encoded(args.vocabulary, texts, args.prompts)

  target = _existing(args.target, "--target")
  return Job(args.task, target, {}, read, 128, vocabulary=args.vocabulary)


def _drafts(args):
  drafts = {}
  for value in vars(args).get("draft") or []:
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


def lines(path: str, count: int | None, prefix: str) -> list[str]:
  """Returns the first lines of a file, each with a prefix."""
  texts = epath.Path(path).read_text().splitlines()[:count]
  if not texts:
    raise ValueError(f"--inputs: {path!r} has no line. Give an input on every line.")
  return [prefix + text for text in texts]


def _published(task, args, cut) -> Tokens:
  """Reads a test set through the seqio task and TFDS."""
  import seqio

  from specdec_t5x.data import tasks, vocabularies
  from specdec_t5x.training.batches import rows_of

  if args.tfds_data_dir:
    seqio.set_tfds_data_dir_override(args.tfds_data_dir)
  register = {"ende": tasks.wmt14_ende, "cnndm": tasks.cnn_dailymail}[task]
  path = args.vocabulary or vocabularies.T5_VOCABULARY.path
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
  ids = [example["inputs"].tolist() for example in rows_of(dataset)]
  return ids, vocabulary.eos_id
