"""Makes what is missing of a demo pair: the vocabulary, the target, the drafts."""

import json
import os

from absl import logging

from specdec_t5x import train
from specdec_t5x.data.hints import DIRECTORY
from specdec_t5x.demo import held_out
from specdec_t5x.demo.recipe import DemoPair, Part
from specdec_t5x.demo.vocabulary import demo_vocabulary

# The news corpus has no more unigram pieces than about 1,070, the English one than 950.
VOCABULARY_SIZES = {"ende": 2_000, "cnndm": 1_000, "lm": 880}
# Texts of the test split that are written down: over 10,000 tokens of outputs.
_TEXTS = 1000


def make_vocabulary(pair: DemoPair) -> None:
  """Trains the pair's vocabulary; one that is there is checked and kept."""
  demo_vocabulary(pair.vocabulary, VOCABULARY_SIZES[pair.name], pair.name)


def make_part(part: Part) -> None:
  """Trains a network; a run that was killed goes on from its last checkpoint.

  Raises:
    ValueError: where training left no checkpoint at the place that the recipe says.
  """
  verbosity = logging.get_verbosity()
  # seqio warns of sources that are not files; ours shuffle themselves.
  logging.set_verbosity(logging.ERROR)
  try:
    # As `python -m specdec_t5x.train --gin_file=...`, without starting Python again.
    train.run(part.job, [part.gin_file], part.bindings)
  finally:
    logging.set_verbosity(verbosity)
  if not os.path.isdir(part.checkpoint):
    raise ValueError(
      f"{part.gin_file} was run, but {part.checkpoint} is not there. The steps in that "
      "file and in specdec_t5x/demo/recipe.py must agree."
    )


def describe(pair: DemoPair, directory: str = DIRECTORY) -> None:
  """Writes down what is measured of a pair, for `bench`: pair.json, and its texts.

  Args:
    pair: a pair whose target and drafts are made; the others may be made later.
    directory: where pairs are.
  """
  folder = os.path.join(directory, pair.name)
  os.makedirs(folder, exist_ok=True)
  texts = [text for text, _ in held_out.held_out_texts(pair.name, _TEXTS)]
  found = {
    "target": pair.target.path,
    "drafts": {part.name: part.path for part in pair.drafts},
    "more": {part.name: part.path for part in pair.more},
    "tables": {part.name: part.path for part in pair.tables},
    "makes": {part.name: part.command for part in pair.more + pair.tables},
    "vocabulary": pair.vocabulary,
    "inputs": _write(folder, "inputs.txt", texts),
    "also": {},
    "max_input": pair.max_input,
    "max_output": pair.max_output,
    "prompts": pair.are_prompts,
  }
  if pair.name == "ende":
    news = held_out.news_sentences(_TEXTS)
    found["also"] = {"news (out of domain)": _write(folder, "news.txt", news)}
  _write(folder, "pair.json", [json.dumps(found, indent=1)])


def _write(folder, name, lines) -> str:
  path = os.path.join(folder, name)
  with open(path, "w", encoding="utf-8") as file:
    file.write("\n".join(lines) + "\n")
  return path
