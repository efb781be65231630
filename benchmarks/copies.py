r"""Times the copy draft on texts with known outputs, without a draft model.

  python -m benchmarks copy --texts FILE.csv --source article \
    --output-field highlights --prefix "summarize: " --vocabulary FILE --output DIR

The texts determine how much can be copied, and the network's size the time of a call.
So the target, of a T5 1.1 size, runs in full with random weights, with the argmax bent
to a given output, such as human-written highlights of an article. The outputs of a
trained model of that size may copy more or less.
"""

import argparse
import re
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from benchmarks.command import REQUIRED, Command
from benchmarks.iteration import iterated
from benchmarks.oracle import oracle_start, random_model
from benchmarks.run import PLAIN, Run, Way, measure
from benchmarks.sizes import SIZES, VOCAB_SIZE
from benchmarks.study import Decode
from benchmarks.table import Table, render
from benchmarks.timed import Program
from specdec_t5x.build import together
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.vocabularies.opening import open_vocabulary


def make(args: argparse.Namespace) -> Table:
  """Decodes every text plainly and with each minimum match, in turn."""
  vocabulary = open_vocabulary(args.vocabulary)
  texts = list(_texts(args, vocabulary))
  target = random_model(args.size)
  ways = {}
  for key in (PLAIN, *args.matches):
    drafter = None if key == PLAIN else Copy(args.gamma, key)
    decoder, params = together(target, None, drafter)
    decode = Decode(decoder, params, GREEDY, args.max_length, vocabulary.eos_id)
    columns = {"copy_match": key, "texts": len(texts)}
    ways[key] = Way(program=_replay(decode), columns=columns)
  plain, *others = measure(Run(lambda *_: ways, inputs=lambda batch: texts))
  rows = []
  for row in others:
    same = sum(map(_are_given, plain.results, row.results, texts))
    rows.append({**row.values, "identical": same, "equal": f"{same} of {len(texts)}"})
  return render("copy", rows, {"size": args.size})


def _are_given(plain, ours, text) -> bool:
  """Returns whether both decodes equal the given output."""
  return bool((plain.tokens == text[1]).all() and (ours.tokens == text[1]).all())


def _replay(decode: Decode) -> Program:
  """Returns a program of (inputs [1, E], outputs [1, T]) that decodes the outputs."""
  run = iterated(oracle_start(decode))
  most = jnp.int32(decode.max_length)
  return lambda text: run(most, {"target": text[1]}, *decode.given(text[0]))


def _texts(args, vocabulary) -> Iterator[tuple[jnp.ndarray, jnp.ndarray]]:
  """Yields the tokens of each input and of each given output."""
  from specdec_t5x.data import text_files

  fields = [args.source] if args.lead else [args.source, args.output_field]
  if vocabulary.vocab_size > VOCAB_SIZE:
    raise ValueError(
      f"--vocabulary {args.vocabulary} has {vocabulary.vocab_size} pieces, more than "
      f"the network's {VOCAB_SIZE}. Use T5's vocabulary, or a smaller vocabulary."
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
  """Returns tokens cut to length - 1, with EOS and padding."""
  row = np.zeros((1, length), np.int32)
  ended = [*tokens[: length - 1], eos_id]
  row[0, : len(ended)] = ended
  return jnp.asarray(row)


COMMAND = Command(
  __doc__,
  make,
  {
    "texts": (str, "JSONL or CSV", REQUIRED),
    "vocabulary": (str, "a SentencePiece model, or ByT5's folder", REQUIRED),
    "source": ("article", "the input's field"),
    "output_field": ("highlights", "the output's field"),
    "lead": (0, "use this number of first sentences of the input as the output"),
    "prefix": ("", "text before every input"),
    "size": ("small", "size of the target", SIZES),
    "gamma": (DEFAULT_GAMMA, "maximum draft length"),
    "matches": ([1, 2, 3, 4], "COPY_MATCH"),
    "num_texts": (40, "maximum number of texts"),
    "input_length": (512, "maximum number of input tokens"),
    "max_length": (128, "maximum number of output tokens"),
  },
)
