"""Rounding or a bug? Compares greedy speculation with plain decoding.

  python -m lab differences --dtype bfloat16

Decodes every input both ways, finds the first difference of each pair of outputs, and
prints the margins of the logits there: the gaps between the two best tokens. With
--strict the plain run scores in blocks of gamma + 1, too, and the outputs should be
equal bit for bit. To reproduce another run, give the run's batch size, max_length and
dtype, as ties depend on them. In float32 products keep all digits.
Exits with 0 if there are no differences or only ties, with 1 if there is another
difference or logits are NaN, and with 2 if the input is bad.

The logits of the plain output from one pass without a cache, called whole, show the
size of rounding. docs/math.md ("Numerical ties") has the criterion.
"""

import argparse
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec_t5x import api
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.types import EndTokens
from specdec_t5x.data import text_files
from specdec_t5x.data.tasks import TRANSLATE_ENDE
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.demo import embedded
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.config import DTYPES
from specdec_t5x.trace.recording import piece_of
from specdec_t5x.vocabularies.opening import open_vocabulary

# Differences of up to SLACK times the largest observed rounding count as rounding: the
# maximum over few positions is below the maximum over many positions.
SLACK = 4.0
_PROGRAM = "python -m lab differences"


@dataclasses.dataclass(frozen=True)
class _KeepLogits:
  """An observer that keeps the deciding logits [B, T, V] of each token."""

  vocab_size: int

  def start(self, rows, max_length):
    return jnp.zeros((rows, max_length, self.vocab_size))

  def observe(self, kept, before, iteration):
    logits = iteration.logits
    rows, size = logits.shape[:2]
    places = (before.lengths - before.starts)[:, None] + jnp.arange(size)
    # Logits beyond the output are dropped; rejected places are scored again.
    return kept.at[jnp.arange(rows)[:, None], places].set(logits, mode="drop")


def record(
  decoder: Decoder,
  params: Any,
  inputs: Int[Array, "B E"],
  max_length: int,
  eos_id: EndTokens,
) -> Decoded:
  """Decodes greedily; `observed` are each token's logits [B, T, V]."""
  keys = row_keys(jax.random.key(0), inputs.shape[0])
  keep = _KeepLogits(decoder.target.config.vocab_size)
  ctx = decoder.context(params, len(keys), GREEDY, max_length, eos_id)
  start = ctx.first_state(inputs, keys)
  start = start.replace(observed=keep.start(len(keys), max_length))

  def extend_apart(*args):
    # Without a barrier XLA could compute the logits twice, for the choice of the token
    # and for the record.
    logits, features, cache = ctx.target.extend(*args)
    return jax.lax.optimization_barrier(logits), features, cache

  target = dataclasses.replace(ctx.target, extend=extend_apart)
  return generate(dataclasses.replace(ctx, target=target), start, observe=keep)


def score_whole(
  network: Any, params: Any, inputs: Int[Array, "B E"], tokens: Int[Array, "B T"]
) -> Float[Array, "B T V"]:
  """Returns the logits of each token, from one pass without a cache."""
  shifted = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
  # The mask counts all tokens: tokens before the end never attend to later tokens.
  mask = jnp.ones_like(shifted)
  return network.apply({"params": params}, inputs, shifted, mask, enable_dropout=False)


def measure(
  logits: Float[Array, "3 B T V"], tokens: Int[Array, "2 B T"]
) -> dict[str, Array]:
  """Returns the measures of each position.

  Args:
    logits: the plain, the speculative and the whole logits.
    tokens: the plain and the speculative output.
  """
  plain, speculative, whole = logits
  best = jax.lax.top_k(logits[:2], 2)[0]
  return {
    "distance": jnp.abs(plain - speculative).max(axis=-1),
    "rounding": jnp.abs(plain - whole).max(axis=-1),
    "largest": jnp.abs(plain).max(axis=-1),
    "margins": jnp.moveaxis(best[..., 0] - best[..., 1], 0, -1),
    "is_best": jnp.moveaxis(logits[:2].argmax(axis=-1) == tokens, 0, -1),
    # Maxima can't detect NaN: XLA's maxima may drop NaN (`core.distributions`).
    "is_finite": jnp.isfinite(logits).all(axis=(0, -1)),
  }


@dataclasses.dataclass(frozen=True)
class Difference:
  """The first difference of an example's two outputs, or the first logits with NaN."""

  example: int  # The example's number, from 0.
  position: int  # The token's position in the output, from 0.
  # The plain and the speculative run's token; None if the run had ended.
  tokens: tuple[int | None, int | None]
  # The gap between the two best tokens, for plain and speculative logits.
  margins: tuple[float, float]
  distance: float  # The largest difference of plain and speculative logits.
  reason: str  # Why rounding does not explain the difference; '' for a tie.


@dataclasses.dataclass(frozen=True)
class Report:
  """The comparison of two runs."""

  differences: tuple[Difference, ...]  # The differences, at most one per example.
  rounding: float  # The largest difference of plain and whole logits.
  positions: int  # The number of positions up to the first difference of each example.
  distance: float  # The largest difference of plain and speculative logits there.
  identical: int  # The number of these positions with equal logits, bit for bit.
  # The number of these positions with logits that differ by more than rounding.
  beyond: int


def judge(
  plain: Sequence[Sequence[int]],
  speculative: Sequence[Sequence[int]],
  measures: Mapping[str, np.ndarray],
  epsilon: float,
) -> Report:
  """Judges the first difference of each pair of outputs, given without padding.

  A difference is a tie if each run chose the token with the run's largest logit, and
  the runs' logits differ by rounding: by at most `SLACK` times the largest rounding or
  one epsilon of the largest logit, whichever is larger, and in any case by at most half
  of the digits, sqrt(epsilon) of the largest logit.
  """
  distance = measures["distance"]
  is_finite = measures["is_finite"]
  position = np.arange(distance.shape[1])
  in_plain, in_speculative = (
    position < np.array([len(run) for run in runs])[:, None]
    for runs in (plain, speculative)
  )
  rounding = measures["rounding"][in_plain & is_finite].max(initial=0.0)
  limit = np.maximum(SLACK * rounding, epsilon * measures["largest"])
  limit = np.minimum(limit, np.sqrt(epsilon) * measures["largest"])
  compared = in_plain & in_speculative & is_finite
  differences = []
  for example, runs in enumerate(zip(plain, speculative, strict=True)):
    for first in range(max(map(len, runs))):
      tokens = tuple(run[first] if first < len(run) else None for run in runs)
      if tokens[0] != tokens[1] or not is_finite[example, first]:
        break
    else:
      continue
    compared[example, first + 1 :] = False
    d = float(distance[example, first])
    reason = ""
    if not is_finite[example, first]:
      reason = "the logits are not numbers"
    elif None in tokens:
      reason = "one run had ended, without an end of sequence"
    elif not (is_best := measures["is_best"][example, first]).all():
      run = "speculative" if is_best[0] else "plain"
      reason = f"the {run} run's token is not the best token of the run's logits"
    elif d > limit[example, first]:
      most = limit[example, first]
      reason = f"the runs' logits differ by more than rounding ({most:.2g})"
    margins = tuple(measures["margins"][example, first].tolist())
    differences.append(Difference(example, first, tokens, margins, d, reason))
  return Report(
    tuple(differences),
    float(rounding),
    positions=int(compared.sum()),
    distance=float(distance[compared].max(initial=0.0)),
    identical=int((distance[compared] == 0).sum()),
    beyond=int((distance > limit)[compared].sum()),
  )


def compare(
  target: api.Model,
  draft: api.Model,
  ids: Sequence[Sequence[int]],
  eos_id: EndTokens,
  args: argparse.Namespace,
) -> Report:
  """Decodes inputs, given as tokens, both ways and judges the differences."""
  decoders = (
    Decoder(target.network, block=args.gamma + 1 if args.strict else 1),
    Decoder(target.network, DraftModel(draft.network, args.gamma)),
  )
  params = {"target": target.params, "draft": draft.params}
  # Separate programs, as in the decodes to explain.
  words = {"max_length": args.max_length, "eos_id": eos_id}
  run = jax.jit(functools.partial(record, **words), static_argnums=0)
  whole = jax.jit(functools.partial(score_whole, target.network))
  parts = []
  with jax.default_matmul_precision("float32"):
    for _, inputs, count in api.padded_batches(ids, args.batch_size):
      runs = [run(decoder, params, inputs) for decoder in decoders]
      logits = [run.observed for run in runs]
      logits.append(whole(params["target"], inputs, runs[0].tokens))
      tokens = [run.tokens for run in runs]
      measures = jax.jit(measure)(jnp.stack(logits), jnp.stack(tokens))
      result = tokens, [run.statistics.emitted for run in runs], measures
      parts.append(jax.tree.map(lambda x, n=count: np.asarray(x)[:n], result))
  tokens, lengths, measures = jax.tree.map(lambda *x: np.concatenate(x), *parts)
  one, other = (
    [row[:length].tolist() for row, length in zip(*run, strict=True)]
    for run in zip(tokens, lengths, strict=True)
  )
  epsilon = float(jnp.finfo(target.network.config.dtype).eps)
  return judge(one, other, measures, epsilon)


def main(argv: Sequence[str]) -> int:
  """Compares both decodes, prints the report, and returns the exit status."""
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(_PROGRAM, description=__doc__, formatter_class=raw)
  numbers = {"examples": 100, "gamma": 5, "max_length": 128, "batch_size": 16}
  texts = {"target": embedded.target(), "draft": embedded.draft()}
  texts |= {"vocabulary": embedded.vocabulary(), "prefix": TRANSLATE_ENDE}
  texts["input"] = str(embedded.FOLDER / "test.en")
  for name, default in {**texts, **numbers}.items():
    about = {"type": type(default), "default": default, "help": "(%(default)s)"}
    parser.add_argument(f"--{name}", **about)
  parser.add_argument("--dtype", choices=DTYPES, default="float32")
  parser.add_argument("--strict", action="store_true", help="plain blocks of gamma + 1")
  args = parser.parse_args(argv)
  try:
    for name in numbers:
      if getattr(args, name) < 1:
        raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}.")
    lines = text_files.read_lines(args.input)[: args.examples]
    target, draft = (api.load_model(x, args.dtype) for x in (args.target, args.draft))
    size = target.network.config.vocab_size
    vocabulary = open_vocabulary(args.vocabulary, vocab_size=size)
    ids = api.encoded([args.prefix + x for x in lines], target.network, vocabulary)
    report = compare(target, draft, ids, api.end_tokens(target, vocabulary), args)
  except (ValueError, OSError) as error:
    parser.exit(2, f"{_PROGRAM}: error: {error}\n")
  bugs = sum(bool(difference.reason) for difference in report.differences)
  for x in report.differences:
    pieces = ["" if t is None else piece_of(vocabulary, t) for t in x.tokens]
    verdict = f"DIFFERENT: {x.reason}" if x.reason else "tie"
    print(
      f"line {x.example + 1}, token {x.position + 1}: plain {pieces[0]!r} with margin "
      f"{x.margins[0]:.2g}, speculative {pieces[1]!r} with margin {x.margins[1]:.2g}, "
      f"logits differ by {x.distance:.2g}: {verdict}"
    )
  print(
    f"{args.dtype}: {len(report.differences)} of {len(ids)} outputs differ: "
    f"{len(report.differences) - bugs} ties, {bugs} DIFFERENT. The logits differ by up "
    f"to {report.distance:.2g}, and rounding without speculation is up to "
    f"{report.rounding:.2g}. They are equal bit for bit at {report.identical} of "
    f"{report.positions} positions, and beyond rounding at {report.beyond}."
  )
  return int(bugs > 0)
