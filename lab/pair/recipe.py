"""Trains the pair in the package again: a vocabulary, a target and its drafts.

  python -m lab pair            # target and draft, in an hour on two cores
  python -m lab pair --more     # only a smaller draft, heads and n-grams, in minutes
  python -m lab pair --pack     # also puts target and draft into the package

Writes to runs/demo/ende. A killed run continues from the last checkpoint. Without
--pack the pair in the package stays unchanged. Run this in the root of a clone.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence

from absl import logging

from lab.pair import texts
from specdec_t5x import train

HERE = "lab/pair"


@dataclasses.dataclass(frozen=True)
class Part:
  """A network that the recipe trains."""

  name: str
  about: str  # A short description, with the approximate minutes on two cores.
  folder: str  # The output folder in `texts.FOLDER`.
  steps: int  # The number of training steps.
  gin_file: str  # The gin file of the training run.
  job: str = "train"  # The job of `python -m specdec_t5x.train`.
  bindings: tuple[str, ...] = ()  # Gin bindings besides the file.

  @property
  def checkpoint(self) -> str:
    """The path of the trained checkpoint, from the repository's root."""
    return os.path.join(texts.FOLDER, self.folder, f"checkpoint_{self.steps}")


def _heads(kind: str, about: str) -> Part:
  kinds = (f"HEADS = {kind!r}",)
  return Part(kind, about, f"heads/{kind}", 600, f"{HERE}/heads.gin", "heads", kinds)


TARGET = Part(
  "target", "10.4M parameters, 44 minutes", "target", 8000, f"{HERE}/target.gin"
)
DRAFT = Part(
  "draft_small", "1.0M, distilled, 16 minutes", "draft_small", 8000, f"{HERE}/draft.gin"
)
MORE = (
  Part(
    "draft_tiny",
    "0.4M, distilled, half a minute",
    "draft_tiny",
    600,
    f"{HERE}/draft_tiny.gin",
  ),
  _heads("parallel", "2.4M, from the target's features, 3 minutes"),
  _heads("eagle", "2.7M, from the target's features and its own, 3 minutes"),
  _heads("shared_encoder", "a layer on the target's encoder, 2 minutes"),
  Part(
    "ngrams",
    "a table of the training targets, seconds",
    "ngrams",
    0,
    "configs/train/ngrams.gin",
    "ngrams",
    (
      f"TARGETS = {os.path.join(texts.FOLDER, 'train.de')!r}",
      f"VOCABULARY_PATH = {texts.VOCABULARY!r}",
      "VOCAB_SIZE = 2048",
      f"OUTPUT_DIR = {os.path.join(texts.FOLDER, 'ngrams')!r}",
    ),
  ),
)


def make(part: Part) -> None:
  """Trains a network, unless the network exists.

  Raises:
    ValueError: if training did not write the checkpoint of the recipe.
  """
  print(f"{part.name} ({part.about}): {part.checkpoint}", flush=True)
  if os.path.isdir(part.checkpoint):
    return
  verbosity = logging.get_verbosity()
  # seqio warns about sources that are not files, but our sources shuffle rows.
  logging.set_verbosity(logging.ERROR)
  try:
    # Like `python -m specdec_t5x.train --gin_file=...`, in this process.
    train.run(part.job, [part.gin_file], part.bindings)
  finally:
    logging.set_verbosity(verbosity)
  if not os.path.isdir(part.checkpoint):
    raise ValueError(
      f"{part.gin_file} was run, but {part.checkpoint} does not exist. The steps in "
      f"the gin file and in {HERE}/recipe.py must agree."
    )


def make_texts() -> None:
  """Writes missing texts, and the vocabulary if it is missing."""
  for split in ("train", "validation"):
    if not os.path.isfile(os.path.join(texts.FOLDER, f"{split}.de")):
      texts.write(texts.FOLDER, split, texts.SIZES[split])
  if not os.path.isfile(texts.VOCABULARY):
    pathlib.Path(texts.VOCABULARY).write_bytes(texts.trained_vocabulary())


def main(argv: Sequence[str]) -> int:
  """Trains the parts that the flags name.

  Args:
    argv: the flags.

  Returns:
    The exit status: 0, or 1 after an error message about the input.
  """
  parser = argparse.ArgumentParser(
    prog="python -m lab pair",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  chosen = parser.add_mutually_exclusive_group()
  chosen.add_argument(
    "--more", action="store_true", help="train further drafts of the packed target"
  )
  chosen.add_argument(
    "--pack", action="store_true", help="put target and draft into the package"
  )
  flags = parser.parse_args(argv)
  if not os.path.isfile(TARGET.gin_file):
    parser.error(f"expected to run in the repository's root ({TARGET.gin_file}).")
  try:
    make_texts()
    for part in MORE if flags.more else (TARGET, DRAFT):
      make(part)
    if flags.pack:
      from lab.pair import pack

      pack.pack(TARGET, DRAFT)
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  return 0
