"""Makes what is missing of a demo pair: the vocabulary, the target, the drafts."""

import os

from absl import logging

from specdec_t5x import train
from specdec_t5x.demo.recipe import DemoPair, Part
from specdec_t5x.demo.vocabulary import demo_vocabulary

# The news corpus has no more unigram pieces than about 1,070, the English one than 950.
VOCABULARY_SIZES = {"ende": 2_000, "cnndm": 1_000, "lm": 880}


def make_vocabulary(pair: DemoPair) -> None:
  """Trains the pair's vocabulary; one that is there is checked and kept."""
  demo_vocabulary(pair.vocabulary, VOCABULARY_SIZES[pair.name], pair.name)


def make_part(part: Part) -> None:
  """Trains a network; a run that was killed goes on from its last checkpoint.

  Raises:
    ValueError: where training left no checkpoint at the place that the recipe says.
  """
  # seqio warns of sources that are not files; ours shuffle themselves.
  logging.set_verbosity(logging.ERROR)
  # As `python -m specdec_t5x.train --gin_file=...`, without starting Python again.
  train.run(part.job, [part.gin_file])
  if not os.path.isdir(part.checkpoint):
    raise ValueError(
      f"{part.gin_file} was run, but {part.checkpoint} is not there. The steps in that "
      "file and in specdec_t5x/demo/recipe.py must agree."
    )
