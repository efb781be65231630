"""An oracle draft with a given acceptance rate, for measurements of walltime.

The real networks run at every step, at full cost. Afterwards their logits are bent
towards tokens chosen beforehand: the target's logits towards the output, the draft's
towards the output at the positions to accept. Walltime at a given alpha can therefore
be measured with any weights and in any dtype. An oracle cannot decode, as the output
must be known.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from specdec_t5x.core.types import ExtendFn

# A forced token's logit exceeds all other logits by the margin, so that a softmax is
# one-hot in float32 up to the temperature below.
_MARGIN = 1e4
MOST_TEMPERATURE = 10.0


def forced_tokens(
  outputs: Int[Array, "B T"],
  alpha: float | Float[Array, "B T"],
  vocab_size: int,
  key: Key[Array, ""],
) -> Int[Array, "B T"]:
  """Returns the oracle's draft at each position of the output.

  The draft has the target's token with probability alpha, independently at each
  position, and another token otherwise. Each tried token is therefore accepted with
  probability alpha.

  Args:
    outputs: the target's greedy outputs.
    alpha: the acceptance rate, a number or an array with a rate per position.
    vocab_size: the size of the vocabulary.
    key: a random key; the key is consumed.
  """
  kept = jax.random.uniform(key, outputs.shape) < alpha
  return jnp.where(kept, outputs, (outputs + 1) % vocab_size)


def oracle_extend(extend: ExtendFn, forced: Int[Array, "B T"]) -> ExtendFn:
  """Returns `extend` with all mass at output position i on forced[:, i].

  The distribution is one-hot at temperatures up to `MOST_TEMPERATURE`.

  Args:
    extend: the real network.
    forced: the result of `forced_tokens`; the last token stands for all positions
      beyond T.
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
