"""Drafting by a network with another vocabulary, on the shared tokens.

q is the draft's distribution on the shared tokens, renormalised, and 0 elsewhere. As q
is a distribution over the target's tokens, every rule keeps its guarantee. Source:
token-level intersection, Timor et al., arXiv 2502.05202 (ICML 2025).

Shapes: B rows, M draft tokens of a sequence, V the target's vocabulary.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.contrib.shared_tokens import SharedTokens
from specdec_t5x.core.types import Cache, ExtendFn
from specdec_t5x.decoding.drafter import Context
from specdec_t5x.decoding.state import START_TOKEN, DecodeState
from specdec_t5x.drafters.draft_model import DraftModel, StepwiseState, caught_up
from specdec_t5x.network.functional import lacks_encoder


@dataclasses.dataclass(frozen=True)
class OtherVocabulary(DraftModel):
  """Samples up to gamma tokens one by one from a network with another vocabulary.

  The draft's cache holds the known text in pieces: each token of the target is one
  token of the draft, or several.

  Attributes:
    tokens: the map from the target's tokens to the network's tokens.
  """

  tokens: SharedTokens = dataclasses.field(kw_only=True)

  has_own_tokens = True

  @staticmethod
  def tables_of(target: str, draft: str) -> SharedTokens:
    """Returns the tables of the vocabularies at two paths."""
    # A local import, as drafting reads no vocabulary.
    from specdec_t5x.contrib import vocabulary_tables

    return vocabulary_tables.of_files(target, draft)

  def check(self, target: Any) -> None:
    """Raises a ValueError if the tables do not fit the target and the network."""
    for name, network, size in (
      ("target", target, len(self.tokens.ids)),
      ("draft", self.network, int(self.tokens.pieces.max()) + 1),
    ):
      if size > network.config.vocab_size:
        raise ValueError(
          f"The {name}'s tokenizer has at least {size} tokens, but the {name}'s "
          f"vocab_size is {network.config.vocab_size}. VOCABULARY_PATH must be the "
          "target's tokenizer, DRAFT_TOKENIZER the draft's."
        )
    if lacks_encoder(self.network):
      raise ValueError(
        "DRAFT_TOKENIZER needs a draft with an encoder, got a draft on the target's "
        "encoder. Leave DRAFT_TOKENIZER out."
      )

  def extend(self, context: Context) -> ExtendFn:
    """Returns the draft network with the target's tokens as inputs and outputs.

    Only shared tokens may be inputs.
    """
    extend = context.networks["draft"].extend
    ids = jnp.asarray(self.tokens.ids)

    def extend_in_target_tokens(cache, tokens):
      logits, features, cache = extend(cache, ids[tokens])
      return self._of_target(context, logits), features, cache

    return extend_in_target_tokens

  def start(self, context: Context) -> StepwiseState:
    """Returns a state with the draft's initial cache, of inputs in draft tokens."""

    def in_draft(beginning):
      return dataclasses.replace(
        beginning,
        inputs=self.tokens.in_draft(beginning.inputs),
        num_slots=beginning.num_slots * self.tokens.longer,
        prompts=self.tokens.in_draft(beginning.prompts),
      )

    cache = context.networks["draft"].start(in_draft)
    return StepwiseState(cache, jnp.zeros_like(cache.index))

  def first_logits(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Scores the pieces that the cache lacks, two pieces per call."""
    sequences, lengths = self._known(state)
    cache = state.drafter_state.cache
    # If the last token has no pieces, the draft reads the last known piece again.
    cache = cache.at(jnp.minimum(cache.index, lengths - 1))
    extend = context.networks["draft"].extend
    logits, cache = caught_up(extend, cache, sequences, lengths)
    return self._of_target(context, logits), cache

  def next_state(self, cache: Cache, state: DecodeState) -> StepwiseState:
    """Returns the state with the draft's cache, and the number of known pieces."""
    _, lengths = self._known(state)
    return StepwiseState(cache, lengths)

  def _known(self, state: DecodeState) -> tuple[Int[Array, "B M"], Int[Array, "B"]]:
    """Returns the known text in draft tokens, and the number of known draft tokens."""
    text = self.tokens.in_draft(state.sequences[:, 1:])
    # A longer text would leave no room for a draft. The draft continues the beginning
    # of such a text.
    longest = text.shape[1] - self.gamma
    lengths = 1 + jnp.minimum((text > 0).sum(axis=1), longest - 1)
    start = jnp.full_like(text[:, :1], START_TOKEN)
    return jnp.concatenate([start, text], axis=1), lengths

  def _of_target(self, context: Context, logits) -> Float[Array, "*B V"]:
    return self.tokens.of_target(logits, context.target.vocab_size)
