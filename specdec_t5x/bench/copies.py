r"""Times the copy draft on texts with known outputs, without a draft model.

  python -m specdec_t5x.bench copy --texts FILE.csv --source article \
    --output-field highlights --prefix "summarize: " --vocabulary FILE --output DIR

How much can be copied is a matter of the texts, and how long a call takes one of the
network's size. So the target, of a T5 1.1 size, runs in full with random weights, and
its argmax is bent to a given output, such as the highlights that people wrote for an
article. What a trained model of that size would write may copy more or less.
"""

import argparse
import re
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec_t5x.api import Model
from specdec_t5x.bench.command import REQUIRED, Command
from specdec_t5x.bench.oracle import oracle_start, random_model
from specdec_t5x.bench.run import PLAIN, Run, Way, measure
from specdec_t5x.bench.study import Decode
from specdec_t5x.bench.table import Table, render
from specdec_t5x.bench.timed import Program
from specdec_t5x.build import together
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding import generate
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.stepwise import DEFAULT_GAMMA
from specdec_t5x.network.sizes import SIZES, VOCAB_SIZE
from specdec_t5x.vocabularies.opening import open_vocabulary


def make(args: argparse.Namespace) -> Table:
  """Decodes every text plainly and with each least match, in turn."""
  vocabulary = open_vocabulary(args.vocabulary)
  texts = list(_texts(args, vocabulary))
  target = random_model(args.size)
  ways = {}
  for key in (PLAIN, *args.matches):
    drafter = None if key == PLAIN else Copy(args.gamma, key)
    program = replay(target, args.max_length, vocabulary.eos_id, drafter)
    ways[key] = Way(program=program, columns={"copy_match": key, "texts": len(texts)})
  plain, *others = measure(Run(lambda *_: ways, inputs=lambda batch: texts))
  rows = []
  for row in others:
    same = sum(map(_says, plain.results, row.results, texts))
    equal = {"identical": same, "equal": f"{same} of {len(texts)}"}
    rows.append({**row.values, **equal})
  return render("copy", rows, {"size": args.size})


def _says(plain, ours, text) -> bool:
  """Returns whether both decodes are the given output."""
  return bool((plain.tokens == text[1]).all() and (ours.tokens == text[1]).all())


def replay(
  target: Model, max_length: int, eos_id: int, drafter: Drafter | None
) -> Program:
  """Returns greedy decoding of a target that is made to say a given output.

  Args:
    target: runs in full; its argmax is bent.
    max_length: most tokens of the output.
    eos_id: the token that ends it.
    drafter: one without a network; None decodes plainly.

  Returns:
    A function of a pair: inputs [1, E], outputs [1, T].
  """
  decode = Decode(*together(target, None, drafter), GREEDY, max_length, eos_id)
  start = oracle_start(decode)

  @jax.jit
  def run(outputs, *arrays):
    how, state = start({"target": outputs}, *arrays)
    if drafter is None:
      return generate.generate_plain(how, state)
    return generate.generate(how, state)

  return lambda text: run(text[1], *decode.given(text[0]))


def _texts(args, vocabulary) -> Iterator[tuple[jnp.ndarray, jnp.ndarray]]:
  """Yields inputs and the outputs that are to be said, as tokens."""
  from specdec_t5x.data import text_files

  fields = [args.source] if args.lead else [args.source, args.output_field]
  if vocabulary.vocab_size > VOCAB_SIZE:
    raise ValueError(
      f"--vocabulary {args.vocabulary} has {vocabulary.vocab_size} pieces, more than "
      f"the network's {VOCAB_SIZE}. Use T5's, or a smaller one."
    )
  eos_id = vocabulary.eos_id
  for row in text_files.read_fields(args.texts, fields)[: args.num_texts]:
    output = row.get(args.output_field)
    if args.lead:
      sentences = re.split(r"(?<=[.!?]) +", row[args.source])
      output = " ".join(sentences[: args.lead])
    source = vocabulary.encode(args.prefix + row[args.source])
    yield (
      _padded(source, args.input_length, eos_id),
      _padded(vocabulary.encode(output), args.max_length, eos_id),
    )


def _padded(tokens: Sequence[int], length: int, eos_id: int) -> Int[Array, "1 length"]:
  """Returns tokens cut to what fits with the end of sequence, ended and padded."""
  row = np.zeros((1, length), np.int32)
  kept = [*tokens[: length - 1], eos_id]
  row[0, : len(kept)] = kept
  return jnp.asarray(row)


COMMAND = Command(
  __doc__,
  make,
  {
    "texts": (str, "JSONL or CSV", REQUIRED),
    "vocabulary": (str, "a SentencePiece model, or ByT5's folder", REQUIRED),
    "source": ("article", "the input's field"),
    "output_field": ("highlights", "the output's"),
    "lead": (0, "the output is instead the input's first so many sentences"),
    "prefix": ("", "before each input"),
    "size": ("small", "of the target", SIZES),
    "gamma": (DEFAULT_GAMMA, "the longest draft"),
    "matches": ([1, 2, 3, 4], "COPY_MATCH"),
    "num_texts": (40, "the first so many"),
    "input_length": (512, "in tokens"),
    "max_length": (128, "of an output"),
  },
)
