"""The tokens of two vocabularies in each other: tables that compiled programs read.

Shapes: B rows, S tokens of a text, M the draft's tokens of it, V the target's
vocabulary, W the draft's, P the most of the draft's tokens for one of the target's.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# For logits of tokens that the draft lacks: no probability, at any usual temperature.
_LEAST = -1e9


class SharedTokens:
  """What the draft has of each of the target's tokens.

  Attributes:
    ids: the same token in the draft's vocabulary; -1 where there is none.
    pieces: the draft's tokens of the same text, zero-padded; of padding (0) none.
    longer: how many times as long as in the target's tokens a text may be in the
      draft's; what goes beyond is not read.
  """

  def __init__(self, ids: Int[np.ndarray, "V"], pieces: Int[np.ndarray, "V P"]):
    """Keeps the tables.

    Raises:
      ValueError: where no token is shared.
    """
    if not (ids >= 0).any():
      raise ValueError(
        f"None of the target's {len(ids)} tokens is one of the draft's, expected some: "
        "there is nothing to draft from. Check that DRAFT_TOKENIZER is the draft's."
      )
    self.ids, self.pieces = ids, pieces
    # Of the mean token, and the tokens that texts are made of are short ones.
    self.longer = max(1, -(-int((pieces > 0).sum()) // len(pieces)))
    self._key = ids.tobytes(), pieces.tobytes()

  def __eq__(self, other) -> bool:
    return isinstance(other, SharedTokens) and self._key == other._key

  def __hash__(self) -> int:
    return hash(self._key)

  def __repr__(self) -> str:
    return f"{int((self.ids >= 0).sum())} of {len(self.ids)} tokens"

  def in_draft(self, tokens: Int[Array, "B S"]) -> Int[Array, "B M"]:
    """Returns texts in the draft's tokens, zero-padded: the pieces of each token."""
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
    """Returns the draft's logits at the target's tokens, which renormalises them."""
    ids = jnp.pad(jnp.asarray(self.ids), (0, vocab_size - len(self.ids)))
    is_shared = ids.at[len(self.ids) :].set(-1) >= 0
    return jnp.where(is_shared, jnp.take(logits, ids, axis=-1, mode="clip"), _LEAST)
