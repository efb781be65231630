"""Ways to decode beside each other: lengths of drafts and policies by batch, copies.

All that are compared run over the same inputs, in turn in one process.
"""

import argparse
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec_t5x import api
from specdec_t5x.bench import jobs, programs
from specdec_t5x.bench.command import REQUIRED, Command
from specdec_t5x.bench.measured import PLAIN, Setting, beside, tokens
from specdec_t5x.bench.oracle import replay
from specdec_t5x.bench.table import Table
from specdec_t5x.bench.timed import Program, Timed, alternate
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.policy import Fixed
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.stepwise import DEFAULT_GAMMA
from specdec_t5x.native import library
from specdec_t5x.network.sizes import SIZES, VOCAB_SIZE
from specdec_t5x.policies import get_policy
from specdec_t5x.vocabularies.opening import open_vocabulary

_BATCHES = r"""Plain decoding, fixed draft lengths and policies, by batch.

  python -m specdec_t5x.bench batches --target DIR --draft DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --batches 1 4 16 \
    --temperature 1 --top-k 40 --queue 8 --output DIR

Decodes the same inputs with each setting, in turn, in groups of --queue batches: batch
by batch, as `t5x.infer` does, each told what the one before left ('auto'); and as one
call with SLOTS, where a row that ends takes the next input. The speeds are medians over
the groups [quartiles], encoder included. 'auto' beside fixed lengths:

  --batches 1 --gamma 7 --gammas 1 2 3 5 7 --policies auto
"""
_COPY = r"""Times the copy draft on texts with known outputs, without a draft model.

  python -m specdec_t5x.bench copy --texts FILE.csv --source article \
    --output-field highlights --prefix "summarize: " --vocabulary FILE --output DIR

How much can be copied is a matter of the texts, and how long a call takes one of the
network's size. So the target, of a T5 1.1 size, runs in full with random weights, and
its argmax is bent to a given output, such as the highlights that people wrote for an
article. What a trained model of that size would write may copy more or less.
"""


def _batches(args: argparse.Namespace) -> Table:
  """Decodes every input with every setting, at each batch."""
  study, rows, fastest = jobs.load(args), [], {}
  sampling = Sampling(args.temperature, args.top_k, args.top_p)
  for batch in args.batches:
    size = batch * args.queue
    groups = [(first, texts) for first, texts, _ in api.padded_batches(study.ids, size)]
    timed = alternate(_of_batch(args, study, sampling, batch), groups)
    fastest[batch] = _fastest(timed)
    rows += _batch_rows(batch, timed, fastest[batch])
  facts = {"inputs": len(study.inputs)}
  words = {"sampling": sampling, "products": library.problem() or "native"}
  words["fastest"] = ", ".join(f"{name} at batch {n}" for n, name in fastest.items())
  return Table.of("batches", rows, facts | words, facts=facts)


def _of_batch(args, study, sampling, batch) -> dict[str, Program]:
  """Returns by name what decodes a group of inputs."""
  draft, settings, runs = study.drafts[0], {PLAIN: ((), {})}, {}
  parts = draft.model, draft.drafter
  policies = {f"gamma {gamma}": (gamma, Fixed()) for gamma in args.gammas}
  policies |= {name: (args.gamma, get_policy(name)) for name in args.policies}
  for name, (gamma, policy) in policies.items():
    settings[name] = parts, {"gamma": gamma, "policy": policy}
  for name, (given, words) in settings.items():
    decode = study.decode(0.0, *given, **words)
    decode = dataclasses.replace(decode, sampling=sampling)
    runs[name] = programs.decoding_groups(decode, batch)
    if args.queue > 1:
      slots = dataclasses.replace(decode.decoder, slots=batch)
      queued = dataclasses.replace(decode, decoder=slots)
      runs[f"{name}, SLOTS"] = programs.decoding_groups(queued, batch * args.queue)
  return runs


def _batch_rows(
  batch: int, timed: Mapping[str, Timed], best: str
) -> Iterator[dict[str, Any]]:
  cells = beside(timed, Setting(0, 0.0))
  outputs = {n: np.concatenate([*map(tokens, x.results)]) for n, x in timed.items()}
  for name, cell in cells.items():
    yield {
      "batch": batch,
      "setting": name,
      **cell.row(),
      "over_best": cell.over(cells[best]),
      "identical": int((outputs[name] == outputs[PLAIN]).all(axis=1).sum()),
    }


def _fastest(timed: Mapping[str, Timed]) -> str:
  """Returns what took the least time in all, of fixed lengths that decode in turn."""
  some = [name for name in timed if name.startswith("gamma") and "SLOTS" not in name]
  return min(some, key=lambda name: timed[name].seconds.sum())


def _copies(args: argparse.Namespace) -> Table:
  """Decodes every text plainly and with each least match, in turn."""
  vocabulary = open_vocabulary(args.vocabulary)
  texts = list(_texts(args, vocabulary))
  target = programs.random_model(args.size)
  known = target, args.max_length, vocabulary.eos_id
  drafters = {match: Copy(args.gamma, match) for match in args.matches}
  runs = {way: replay(*known, x) for way, x in {PLAIN: None, **drafters}.items()}
  timed = alternate(runs, texts)
  given = lambda way: [
    (result.tokens == text[1]).all()
    for result, text in zip(timed[way].results, texts, strict=True)
  ]
  rows, count = [], len(texts)
  for match, cell in beside(timed, Setting(args.gamma, 0.0)).items():
    if match != PLAIN:
      same = int(np.logical_and(given(PLAIN), given(match)).sum())
      row = {"identical": same, "texts": count, "equal": f"{same} of {count}"}
      rows.append({"copy_match": match, **cell.row(), **row})
  return Table.of("copy", rows, {"size": args.size})


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


BATCHES = Command(
  _BATCHES,
  _batches,
  {
    **jobs.PAIRS,
    **jobs.FEW,
    "batches": [1, 4, 16],
    "gamma": (5, "the longest draft of policies"),
    "gammas": ([1, 3, 5], "fixed"),
    "policies": (["auto"], "some of GAMMA_POLICY"),
    "queue": (1, "batches a group"),
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 0.0,
  },
)


COPY = Command(
  _COPY,
  _copies,
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
