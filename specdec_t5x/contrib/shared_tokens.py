"""Tables that map the target's tokens to the draft's tokens in compiled programs.

Shapes: B rows, S target tokens of a text, M draft tokens of the text, V the target's
vocabulary, W the draft's vocabulary, P the most draft tokens per target token.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# The logit of a token that the draft lacks. The probability is 0 at usual temperatures.
_LEAST = -1e9


class SharedTokens:
  """The draft's tokens for each token of the target.

  Attributes:
    ids: the id of the same token in the draft's vocabulary; -1 if the draft lacks the
      token.
    pieces: the draft's tokens of the same text, zero-padded; padding (0) has no pieces.
    longer: the largest ratio of a text's draft tokens to target tokens; the draft does
      not read further tokens.
  """

  def __init__(self, ids: Int[np.ndarray, "V"], pieces: Int[np.ndarray, "V P"]):
    """Keeps the tables.

    Raises:
      ValueError: if no token is shared.
    """
    if not (ids >= 0).any():
      raise ValueError(
        "Target and draft must share tokens, but the draft's vocabulary has 0 of the "
        f"target's {len(ids)} tokens. DRAFT_TOKENIZER must be the draft's tokenizer."
      )
    self.ids = ids
    self.pieces = pieces
    # The mean number of pieces per token suffices, as texts consist of short tokens.
    self.longer = max(1, -(-int((pieces > 0).sum()) // len(pieces)))
    self._key = ids.tobytes(), pieces.tobytes()

  def __eq__(self, other) -> bool:
    return isinstance(other, SharedTokens) and self._key == other._key

  def __hash__(self) -> int:
    return hash(self._key)

  def __repr__(self) -> str:
    return f"{int((self.ids >= 0).sum())} of {len(self.ids)} tokens"

  def in_draft(self, tokens: Int[Array, "B S"]) -> Int[Array, "B M"]:
    """Returns texts in draft tokens, zero-padded: the pieces of each token in turn."""
    rows, size = tokens.shape
    width = size * self.longer
    tokens = jnp.maximum(tokens, 0)  # Padding may be -1.
    pieces = jnp.asarray(self.pieces).at[tokens].get(mode="fill", fill_value=0)
    pieces = pieces.reshape(rows, -1)
    places = jnp.cumsum(pieces > 0, axis=1) - 1
    places = jnp.where(pieces > 0, places, width)
    text = jnp.zeros((rows, width), jnp.int32)
    return text.at[jnp.arange(rows)[:, None], places].set(pieces, mode="drop")

  def of_target(
    self, logits: Float[Array, "*B W"], vocab_size: int
  ) -> Float[Array, "*B V"]:
    """Gathers the draft's logits at the target's tokens.

    A softmax over the result renormalises the draft's distribution on shared tokens.
    """
    ids = jnp.pad(jnp.asarray(self.ids), (0, vocab_size - len(self.ids)))
    is_shared = ids.at[len(self.ids) :].set(-1) >= 0
    return jnp.where(is_shared, jnp.take(logits, ids, axis=-1, mode="clip"), _LEAST)
