"""Plain decoding with the same network: what speculation is compared with.

The strict baseline: with `block` K = gamma + 1 every call of the target has the shape
that speculation's calls have, the last known token and K - 1 fillers, whose own scores
are dropped. Then both runs do the same arithmetic on the same numbers, as far as the
machine and the compiler let them (docs/math.md, "The strict baseline").
"""

from typing import Any

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
from specdec_t5x.core.ends import EndTokens, is_end
from specdec_t5x.core.types import ExtendFn
from specdec_t5x.decoding.state import (
  Carry,
  Decoded,
  DecodeState,
  LoopFn,
  StepInfo,
  no_info,
)


@flax.struct.dataclass
class PlainIteration:
  """What observers are given: the logits of a block's K tokens, and what is counted."""

  logits: Float[Array, "B K V"]
  info: StepInfo


def generate_plain(
  extend: ExtendFn,
  sampling: Sampling,
  state: DecodeState,
  max_length: int,
  eos_id: EndTokens,
  adjust: AdjustFn,
  block: int = 1,
  loop: LoopFn = jax.lax.while_loop,
  queue: Any = None,
  observe=None,
) -> Decoded:
  """Decodes one token a call of the target until every row has ended.

  Args:
    extend: the target model.
    sampling: the adjustment of its distribution.
    state: where to start, made for a gamma of `block` - 1.
    max_length: the most tokens of the output.
    eos_id: the token that ends it, or all such tokens.
    adjust: computes the adjusted distribution.
    block: tokens a call, of which only the first counts; gamma + 1 is the strict
      baseline of a speculation with that gamma.
    loop: as for `decoding.generate.generate`.
    queue: likewise.
    observe: likewise; it is given a `PlainIteration` each.

  Returns:
    The output; its statistics count calls and tokens, and no drafts.
  """
  if observe:
    rows = state.lengths.shape[0]
    state = state.replace(observed=observe.start(rows, max_length))

  rest = max_length, eos_id, adjust, block

  def iterate(carry):
    before = carry.state
    state, found = _step(extend, sampling, before, *rest)
    if observe:
      kept = observe.observe(before.observed, before, found)
      state = state.replace(observed=kept)
    return carry.then(state, found.info)

  run = lambda carry: loop(Carry.unfinished, iterate, carry)
  return Carry.first(state, queue).finished(run, loop).decoded(max_length)


def step(
  extend: ExtendFn,
  sampling: Sampling,
  state: DecodeState,
  max_length: int,
  eos_id: EndTokens,
  adjust: AdjustFn,
  block: int = 1,
  decision: int = 0,
) -> tuple[DecodeState, StepInfo]:
  """Extends every live row by one token; arguments as `generate_plain`'s.

  `decision` says which of the iteration's draws the token is drawn by, where there are
  others: the last one.
  """
  rest = max_length, eos_id, adjust, block, decision
  state, found = _step(extend, sampling, state, *rest)
  return state, found.info


def _step(extend, sampling, state, max_length, eos_id, adjust, block=1, decision=0):
  """Does what `step` does, and tells all of it."""
  rows = jnp.arange(state.lengths.shape[0])
  fillers = jnp.zeros((rows.size, block - 1), jnp.int32)
  tokens = jnp.concatenate([state.last_tokens()[:, None], fillers], axis=1)
  logits, _, cache = extend(state.target_cache.at(state.lengths - 1), tokens)
  # Behind a barrier, or the compiler may drop the fillers' rows from the products.
  logits = jax.lax.optimization_barrier(logits)
  token, log_prob = _next(logits[:, 0], sampling, adjust, state, decision)
  live = ~state.ended
  lengths = state.lengths + live
  is_full = live >= state.remaining(max_length)
  # An ended row writes its own last token again.
  token = jnp.where(live, token, state.last_tokens())
  log_prob = jnp.where(live, log_prob, 0.0)
  state = state.replace(
    sequences=state.sequences.at[rows, lengths - 1].set(token),
    lengths=lengths,
    ended=state.ended | is_end(token, eos_id) | is_full,
    scores=state.scores + log_prob,
    iteration=state.iteration + 1,
    target_cache=cache,
  )
  one = live.astype(jnp.int32)
  info = no_info(rows.size).replace(target_calls=one, emitted=one, log_prob=log_prob)
  return state, PlainIteration(logits, info)


def _next(logits, sampling, adjust, state, decision):
  """Returns the next token of each row, and its log-probability."""
  if sampling.greedy:
    return argmax(logits).astype(jnp.int32), certain_log_prob(logits)
  if sampling.coupled:
    uniforms = state.uniforms_of_places(1)[:, 0]
  else:
    uniforms = state.uniforms(decision + 1)[:, decision]
  token, probs = draw(logits, sampling, uniforms, adjust)
  return token, jnp.log(jnp.take_along_axis(probs, token[:, None], axis=1)[:, 0])
