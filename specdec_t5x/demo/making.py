"""Makes the missing parts of a demo pair: vocabulary, target and drafts."""

import json
import os

from absl import logging

from specdec_t5x import train
from specdec_t5x.data.hints import DIRECTORY
from specdec_t5x.demo import held_out
from specdec_t5x.demo.recipe import DemoPair, Part
from specdec_t5x.demo.vocabulary import demo_vocabulary

# The news corpus has at most about 1,070 unigram pieces, the English corpus 950.
VOCABULARY_SIZES = {"ende": 2_000, "cnndm": 1_000, "lm": 880}
# The number of written test texts, which give over 10,000 output tokens.
_TEXTS = 1000


def make_vocabulary(pair: DemoPair) -> None:
  """Trains the pair's vocabulary, or checks an existing vocabulary."""
  demo_vocabulary(pair.vocabulary, VOCABULARY_SIZES[pair.name], pair.name)


def make_part(part: Part) -> None:
  """Trains a network; a killed run continues from the last checkpoint.

  Raises:
    ValueError: if training did not write the checkpoint of the recipe.
  """
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
      "the gin file and in specdec_t5x/demo/recipe.py must agree."
    )


def describe(pair: DemoPair, directory: str = DIRECTORY) -> None:
  """Writes pair.json and the test texts of a pair, for `benchmarks`.

  Args:
    pair: a pair with target and drafts; other parts may be made later.
    directory: the folder of the pairs.
  """
  folder = os.path.join(directory, pair.name)
  os.makedirs(folder, exist_ok=True)
  texts = [text for text, _ in held_out.held_out_texts(pair.name, _TEXTS)]
  description = {
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
    description["also"] = {"news (out of domain)": _write(folder, "news.txt", news)}
  _write(folder, "pair.json", [json.dumps(description, indent=1)])


def _write(folder, name, lines) -> str:
  path = os.path.join(folder, name)
  with open(path, "w", encoding="utf-8") as file:
    file.write("\n".join(lines) + "\n")
  return path
