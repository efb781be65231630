"""One step of beam search: pure functions of scores from any model.

The functions do a step of T5X's `decoding.beam_search` row by row. Each row has a
separate number of steps, so the rows of a batch may advance at different speeds. Pools
are in increasing order of score, and ties are broken as in T5X, so the hypotheses equal
T5X's.

Shapes: B rows, W hypotheses (the beam's width), S = max_length + 1 tokens, V
vocabulary, C candidates.
"""

import dataclasses
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.knobs import is_finite
from specdec_t5x.core.types import Cache, EndTokens, as_tuple, is_end

# (cache, tokens [B, N], key_positions [B, S], visible [B, N, S]) -> (logits [B, N, V],
# cache): scores N tokens per row, each given the slots that the token sees. The search
# calls models through this function; see `Transformer.extend_slots`.
BeamExtendFn = Callable[..., tuple[Float[Array, "B N V"], Cache]]

START_TOKEN = 0
# T5X's stand-in for -infinity: the score of an empty slot. The score is finite, as the
# first step adds log-probabilities to the score.
NOTHING = -1.0e7


@dataclasses.dataclass(frozen=True)
class BeamSettings:
  """The settings of a beam search.

  Attributes:
    max_length: the most tokens of the output.
    eos_id: the EOS token, or a tuple of all EOS tokens.
    alpha: the exponent of the brevity penalty; 0 ranks by plain log-probability.
  """

  max_length: int
  eos_id: EndTokens
  alpha: float = 0.6

  def __post_init__(self):
    if not is_finite(self.alpha):
      # With alpha < 0 a longer hypothesis may outscore the bound that ends a search.
      raise ValueError(
        f"BEAM_ALPHA must be a finite number of at least 0, got {self.alpha!r}. T5X's "
        "value is 0.6; 0 turns the penalty off."
      )


@flax.struct.dataclass
class Beam:
  """The hypotheses of each row, in two pools by increasing score.

  Attributes:
    num_steps: the number of steps, which is the length of every live hypothesis.
    live_tokens: the start token and the tokens of the live hypotheses.
    live_scores: the log-probabilities of the live hypotheses; about NOTHING in an empty
      slot; NaN in the full row after a NaN log-distribution.
    finished_tokens: the tokens of the best ended hypotheses with EOS, zero-padded.
    finished_scores: the log-probabilities of the ended hypotheses over the brevity
      penalty.
    is_finished: whether each slot of the finished pool is taken.
  """

  num_steps: Int[Array, "B"]
  live_tokens: Int[Array, "B W S"]
  live_scores: Float[Array, "B W"]
  finished_tokens: Int[Array, "B W S"]
  finished_scores: Float[Array, "B W"]
  is_finished: Bool[Array, "B W"]

  @property
  def last_tokens(self) -> Int[Array, "B W"]:
    """The last token of each live hypothesis."""
    last = self.num_steps[:, None, None]
    return jnp.take_along_axis(self.live_tokens, last, axis=2)[..., 0]


@flax.struct.dataclass
class Extension:
  """The origin of the live hypotheses after a step.

  Attributes:
    parents: the place of the extended hypothesis before the step.
    tokens: the added token.
  """

  parents: Int[Array, "B W"]
  tokens: Int[Array, "B W"]


def start(rows: int, width: int, max_length: int) -> Beam:
  """Returns beams with only the start token."""
  tokens = jnp.zeros((rows, width, max_length + 1), jnp.int32)
  tokens = tokens.at[:, :, 0].set(START_TOKEN)
  nothing = jnp.full((rows, width), NOTHING)
  return Beam(
    num_steps=jnp.zeros(rows, jnp.int32),
    live_tokens=tokens,
    # Only one hypothesis counts, or the beam would hold the same hypothesis W times.
    live_scores=nothing.at[:, -1].set(0.0),
    finished_tokens=jnp.zeros_like(tokens),
    finished_scores=nothing,
    is_finished=jnp.zeros((rows, width), bool),
  )


def step(
  settings: BeamSettings, beam: Beam, log_probs: Float[Array, "B W V"]
) -> tuple[Beam, Extension]:
  """Extends every live hypothesis and keeps the best, live and finished.

  Args:
    settings: the settings of the search.
    beam: the hypotheses; every row may take another token.
    log_probs: the log-distribution of the token after each live hypothesis.

  Returns:
    The beam after the step, and the origin of the live hypotheses.
  """
  rows, width, vocab = log_probs.shape
  # A NaN distribution is NaN throughout, so a check of one entry suffices.
  is_lost = jnp.isnan(log_probs[..., :1]).any(axis=1)
  # A hypothesis has one extension per EOS token. The best W (number of EOS + 1)
  # candidates therefore include W candidates without EOS.
  totals = (beam.live_scores[..., None] + log_probs).reshape(rows, -1)
  count = min(1 + len(as_tuple(settings.eos_id)), vocab)
  totals, flat = jax.lax.top_k(totals, count * width)
  parents = flat // vocab
  tokens = (flat % vocab).astype(jnp.int32)
  ends = is_end(tokens, settings.eos_id)
  num_steps = beam.num_steps + 1
  sequences = jax.vmap(lambda sequence, place, new: sequence.at[:, place].set(new))(
    take(beam.live_tokens, parents), num_steps, tokens
  )

  live_scores = jnp.where(ends, NOTHING, totals)
  live = _best(live_scores, width)
  penalty = brevity_penalty(settings.alpha, num_steps)[:, None]
  finished_scores = _pooled(
    beam.finished_scores, jnp.where(ends, totals / penalty, NOTHING)
  )
  finished = _best(finished_scores, width)
  new_beam = Beam(
    num_steps=num_steps,
    live_tokens=take(sequences, live),
    live_scores=jnp.where(is_lost, jnp.nan, take(live_scores, live)),
    finished_tokens=take(_pooled(beam.finished_tokens, sequences), finished),
    finished_scores=take(finished_scores, finished),
    is_finished=take(_pooled(beam.is_finished, ends), finished),
  )
  return new_beam, Extension(take(parents, live), take(tokens, live))


def searching(settings: BeamSettings, beam: Beam) -> Bool[Array, "B"]:
  """Returns whether another step could change each row's finished pool.

  Log-probabilities only fall and the penalty only grows. A live hypothesis therefore
  never exceeds the present log-probability over the penalty of the full length. T5X
  stops when no row could change; further steps do not change the result of a finished
  row. A row with NaN scores counts as finished.
  """
  bound = beam.live_scores.max(axis=1)
  bound = bound / brevity_penalty(settings.alpha, settings.max_length)
  may_enter = beam.finished_scores.min(axis=1) <= bound
  return (beam.num_steps < settings.max_length) & may_enter


def result(beam: Beam) -> tuple[Int[Array, "B W T"], Float[Array, "B W"]]:
  """Returns hypotheses without the start token, and scores, by increasing score.

  The result has the finished hypotheses. A row without finished hypotheses has the live
  hypotheses with plain log-probabilities, as in T5X. All scores of a row are NaN if a
  log-distribution was NaN.
  """
  any_finished = beam.is_finished.any(axis=1)[:, None]
  tokens = jnp.where(any_finished[..., None], beam.finished_tokens, beam.live_tokens)
  scores = jnp.where(any_finished, beam.finished_scores, beam.live_scores)
  is_lost = jnp.isnan(beam.live_scores).any(axis=1)[:, None]
  scores = jnp.where(is_lost, jnp.nan, scores)
  return tokens[:, :, 1:], scores


def brevity_penalty(alpha: float, length: int | Int[Array, "B"]) -> Float[Array, "*B"]:
  """Returns ((5 + length) / 6)^alpha (Wu et al., 2016, equation 14)."""
  return jnp.power((5.0 + length) / 6.0, alpha)


def _best(scores: Float[Array, "B C"], count: int) -> Int[Array, "B W"]:
  """Returns the places of the largest scores, by increasing score."""
  _, places = jax.lax.top_k(scores, count)
  return jnp.flip(places, axis=1)


def _pooled(old, new):
  """Returns the candidates of both pools."""
  return jnp.concatenate([old, new], axis=1)


def take(array: Array, places: Int[Array, "B P"]) -> Array:
  """Returns [B, P, ...] of [B, W, ...] at several places per row."""
  return jax.vmap(lambda row, i: row[i])(array, places)
