"""Plain decoding: a token for each call of the target.

The strict baseline has blocks of K = gamma + 1 tokens: the last known token and K - 1
fillers. Every call of the target then has the shape of a call of speculation, and both
runs compute the same arithmetic on the same numbers, as far as machine and compiler
permit (docs/math.md, "The strict baseline"). The scores of fillers are dropped.

Shapes: B rows, K tokens of a block, V vocabulary.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.distributions import (
  AdjustFn,
  Sampling,
  argmax,
  certain_log_prob,
  draw,
)
from specdec_t5x.core.types import EndTokens, ExtendFn, is_end
from specdec_t5x.decoding.state import DecodeState, StepInfo, no_info


@dataclasses.dataclass(frozen=True)
class Plain:
  """How to decode without a draft: everything that is fixed at compile time.

  Attributes:
    extend: scores tokens by the target.
    sampling: the adjustment of the target's distribution.
    max_length: the most tokens of the output.
    eos_id: the EOS token, or several.
    adjust: computes the adjusted distribution.
    block: tokens of a call; only the first token counts. gamma + 1 is the strict
      baseline of a speculation with gamma.
    decision: index of the draw that decides the token, among the draws of an iteration.
  """

  extend: ExtendFn
  sampling: Sampling
  max_length: int
  eos_id: EndTokens
  adjust: AdjustFn
  block: int = 1
  decision: int = 0


@flax.struct.dataclass
class PlainIteration:
  """The result of an iteration without a draft.

  Attributes:
    logits: the target's logits at all tokens of the block.
    info: the counts.
  """

  logits: Float[Array, "B K V"]
  info: StepInfo


def step(plain: Plain, state: DecodeState) -> tuple[DecodeState, PlainIteration]:
  """Extends every live row by one token.

  Args:
    plain: how to decode.
    state: the decode's state, made for a gamma of `block` - 1.
  """
  rows = jnp.arange(state.lengths.shape[0])
  fillers = jnp.zeros((rows.size, plain.block - 1), jnp.int32)
  tokens = jnp.concatenate([state.last_tokens()[:, None], fillers], axis=1)
  logits, _, cache = plain.extend(state.target_cache.at(state.lengths - 1), tokens)
  # Behind a barrier, or the compiler may drop the fillers' rows from the products.
  logits = jax.lax.optimization_barrier(logits)
  token, log_prob = _next_token(plain, state, logits[:, 0])
  live = ~state.ended
  lengths = state.lengths + live
  is_full = live >= state.remaining(plain.max_length)
  # An ended row writes its own last token again.
  token = jnp.where(live, token, state.last_tokens())
  log_prob = jnp.where(live, log_prob, 0.0)
  state = state.replace(
    sequences=state.sequences.at[rows, lengths - 1].set(token),
    lengths=lengths,
    ended=state.ended | is_end(token, plain.eos_id) | is_full,
    scores=state.scores + log_prob,
    iteration=state.iteration + 1,
    target_cache=cache,
  )
  one = live.astype(jnp.int32)
  info = no_info(rows.size).replace(target_calls=one, emitted=one, log_prob=log_prob)
  return state, PlainIteration(logits, info)


def _next_token(plain, state, logits):
  """Returns the next tokens of the rows, and their log-probabilities."""
  sampling = plain.sampling
  if sampling.greedy:
    return argmax(logits).astype(jnp.int32), certain_log_prob(logits)
  if sampling.coupled:
    uniforms = state.uniforms_of_places(1)[:, 0]
  else:
    uniforms = state.uniforms(plain.decision + 1)[:, plain.decision]
  token, probs = draw(logits, sampling, uniforms, plain.adjust)
  return token, jnp.log(jnp.take_along_axis(probs, token[:, None], axis=1)[:, 0])
