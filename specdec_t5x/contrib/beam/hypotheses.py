"""One step of beam search: pure functions of scores, whatever model they come from.

What T5X's `decoding.beam_search` does in a step, row by row: each row has its own
number of steps, so that the rows of a batch may advance at different speeds. Pools are
in increasing order of score and ties fall as they do in T5X, so that the hypotheses
are the same ones.

Shapes: B rows, W hypotheses (the beam's width), S = max_length + 1 tokens, V
vocabulary, C candidates.
"""

import dataclasses
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.checks import is_finite
from specdec_t5x.core.ends import EndTokens, as_tuple, is_end
from specdec_t5x.core.types import Cache

# (cache, tokens [B, N], key_positions [B, S], visible [B, N, S]) -> (logits [B, N, V],
# cache): scores N tokens a row, each in the light of the slots that it sees. How the
# search reaches a model: `Transformer.extend_slots` says more.
BeamExtendFn = Callable[..., tuple[Float[Array, "B N V"], Cache]]

START_TOKEN = 0
# T5X's stand-in for -infinity: the score of what is not a hypothesis. Finite, for the
# first step adds log-probabilities to it.
NOTHING = -1.0e7


@dataclasses.dataclass(frozen=True)
class BeamSettings:
  """What a beam search looks for.

  Attributes:
    max_length: the most tokens of the output.
    eos_id: the token that ends a hypothesis, or all such tokens.
    alpha: exponent of the brevity penalty; 0 ranks by plain log-probability.
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
  """The hypotheses of each row; both pools by increasing score.

  Attributes:
    num_steps: steps taken, which is the length of every live hypothesis.
    live_tokens: the start token and the tokens of the hypotheses that have not ended.
    live_scores: their log-probabilities; about NOTHING where there is no hypothesis,
      NaN, all of them, once a log-distribution was.
    finished_tokens: the best of those that ended, EOS included, then zeros.
    finished_scores: their log-probabilities over the brevity penalty.
    is_finished: which slots of the finished pool are taken.
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
  """How a step made the live hypotheses from those before it.

  Attributes:
    parents: the one that each of them extends.
    tokens: the token that it adds.
  """

  parents: Int[Array, "B W"]
  tokens: Int[Array, "B W"]


def start(rows: int, width: int, max_length: int) -> Beam:
  """Returns beams that hold the start token alone."""
  tokens = jnp.zeros((rows, width, max_length + 1), jnp.int32)
  tokens = tokens.at[:, :, 0].set(START_TOKEN)
  nothing = jnp.full((rows, width), NOTHING)
  return Beam(
    num_steps=jnp.zeros(rows, jnp.int32),
    live_tokens=tokens,
    # One hypothesis alone counts, or the beam would hold the same one W times.
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
    settings: what is searched for.
    beam: each row that may take another token.
    log_probs: log-distribution of the token after each live hypothesis.

  Returns:
    The beam after the step, and where its live hypotheses come from.
  """
  rows, width, vocab = log_probs.shape
  # Of a distribution that is not a number no probability is one, so any tells.
  is_lost = jnp.isnan(log_probs[..., :1]).any(axis=1)
  # A hypothesis has one extension by each end token, so W candidates for each, and W
  # more, hold W that go on.
  totals = (beam.live_scores[..., None] + log_probs).reshape(rows, -1)
  count = min(1 + len(as_tuple(settings.eos_id)), vocab)
  totals, flat = jax.lax.top_k(totals, count * width)
  parents, tokens = flat // vocab, (flat % vocab).astype(jnp.int32)
  ends = is_end(tokens, settings.eos_id)
  num_steps = beam.num_steps + 1
  sequences = jax.vmap(lambda sequence, place, new: sequence.at[:, place].set(new))(
    _take(beam.live_tokens, parents), num_steps, tokens
  )

  live = _best(jnp.where(ends, NOTHING, totals), width)
  penalty = brevity_penalty(settings.alpha, num_steps)[:, None]
  scores = jnp.where(ends, totals / penalty, NOTHING)
  pooled = lambda old, new: jnp.concatenate([old, new], axis=1)
  scores = pooled(beam.finished_scores, scores)
  finished = _best(scores, width)
  new_beam = Beam(
    num_steps=num_steps,
    live_tokens=_take(sequences, live),
    live_scores=jnp.where(
      is_lost, jnp.nan, _take(jnp.where(ends, NOTHING, totals), live)
    ),
    finished_tokens=_take(pooled(beam.finished_tokens, sequences), finished),
    finished_scores=_take(scores, finished),
    is_finished=_take(pooled(beam.is_finished, ends), finished),
  )
  return new_beam, Extension(_take(parents, live), _take(tokens, live))


def searching(settings: BeamSettings, beam: Beam) -> Bool[Array, "B"]:
  """Returns the rows whose finished pool another step might still change.

  Log-probabilities only fall and the penalty only grows, so no live hypothesis can
  reach more than its present log-probability over the penalty of the full length. T5X
  stops when this holds for all rows; a row that goes on until then stays as it is. It
  holds of scores that are NaN.
  """
  bound = beam.live_scores.max(axis=1)
  bound = bound / brevity_penalty(settings.alpha, settings.max_length)
  may_enter = beam.finished_scores.min(axis=1) <= bound
  return (beam.num_steps < settings.max_length) & may_enter


def result(beam: Beam) -> tuple[Int[Array, "B W T"], Float[Array, "B W"]]:
  """Returns hypotheses without the start token, and scores, by increasing score.

  Those that finished; in a row where none did, the live ones with their plain
  log-probabilities, as T5X does. All scores of a row are NaN where a log-distribution
  was.
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
  return jnp.flip(jax.lax.top_k(scores, count)[1], axis=1)


def _take(of_candidates, places):
  return jax.vmap(lambda array, place: array[place])(of_candidates, places)
