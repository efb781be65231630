"""Plain decoding with the same network: what speculation is compared with."""

import jax
import jax.numpy as jnp

from specdec_t5x.core.distributions import Sampling, adjusted_probs, sample
from specdec_t5x.core.types import ExtendFn
from specdec_t5x.decoding.state import Decoded, DecodeState, no_info


def generate_plain(
  extend: ExtendFn,
  sampling: Sampling,
  state: DecodeState,
  max_length: int,
  eos_id: int,
) -> Decoded:
  """Decodes one token a call of the target until every row has ended.

  Args:
    extend: the target model.
    sampling: the adjustment of its law.
    state: where to start.
    max_length: room for the output, in tokens.
    eos_id: the token that ends a sequence.

  Returns:
    The output; its statistics count calls and tokens, and no drafts.
  """
  rows = jnp.arange(state.lengths.shape[0])

  def unfinished(state):
    return ~state.ended.all()

  def iterate(state):
    logits, _, cache = extend(state.target_cache, state.last_tokens()[:, None])
    probs = adjusted_probs(logits[:, 0], sampling)
    token = sample(probs, state.uniforms(1)[:, 0]).astype(jnp.int32)
    live = ~state.ended
    lengths = state.lengths + live
    # An ended row writes its own last token again.
    token = jnp.where(live, token, state.last_tokens())
    log_prob = jnp.where(live, jnp.log(probs[rows, token]), 0.0)
    return state.replace(
      sequences=state.sequences.at[rows, lengths - 1].set(token),
      lengths=lengths,
      ended=state.ended | (token == eos_id) | (lengths > max_length),
      scores=state.scores + log_prob,
      iteration=state.iteration + 1,
      target_cache=cache.at(lengths - 1),
    )

  state = jax.lax.while_loop(unfinished, iterate, state)
  emitted = state.lengths - 1
  statistics = no_info(rows.size).replace(
    target_calls=emitted, emitted=emitted, log_prob=state.scores
  )
  return Decoded(state.sequences[:, 1 : max_length + 1], state.scores, statistics)
