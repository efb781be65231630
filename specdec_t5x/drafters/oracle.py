"""A draft with a set acceptance rate, for measuring time: it knows the answer.

The real networks run at every step, at their full cost. Only then are their logits bent
towards tokens that were chosen beforehand: the target's to the output, the draft's to
the output at the accepted positions. So walltime at a given alpha can be measured with
any weights and in any dtype. Not a way to decode: it has to be given the output.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from specdec_t5x.core.types import ExtendFn

# A forced token's logit is so far above all others that a softmax is one-hot in
# float32, up to the temperature below.
_MARGIN = 1e4
MOST_TEMPERATURE = 10.0


def forced_tokens(
  outputs: Int[Array, "B T"],
  alpha: float | Float[Array, "B T"],
  vocab_size: int,
  key: Key[Array, ""],
) -> Int[Array, "B T"]:
  """Returns what the oracle drafts at each position of the output.

  The target's own token with probability alpha, independently at each position, and
  another one otherwise: each tried token is then accepted with probability alpha.

  Args:
    outputs: the target's greedy outputs.
    alpha: the acceptance wanted, one for all positions or one each.
    vocab_size: tokens there are.
    key: consumed.
  """
  kept = jax.random.uniform(key, outputs.shape) < alpha
  return jnp.where(kept, outputs, (outputs + 1) % vocab_size)


def oracle_extend(extend: ExtendFn, forced: Int[Array, "B T"]) -> ExtendFn:
  """Returns the network `extend` with all mass at output position i on forced[:, i].

  The distribution is one-hot at temperatures up to `MOST_TEMPERATURE`.

  Args:
    extend: the real network.
    forced: from `forced_tokens`; its last one stays beyond T.
  """

  def bent(cache, tokens, positions=None, tree=None):
    # The token at slot i (the start token has slot 0) predicts output position i.
    at = cache.index[:, None] + jnp.arange(tokens.shape[1])
    logits, features, cache = extend(cache, tokens, positions, tree)
    chosen = jnp.take_along_axis(forced, at, axis=1, mode="clip")
    rows, columns = jnp.indices(chosen.shape)
    first = logits.max(axis=-1) + _MARGIN
    return logits.at[rows, columns, chosen].set(first), features, cache

  return bent
