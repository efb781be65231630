"""What the rules that judge a single draft share: reading laws along the draft.

Shapes: B batch, G drafted tokens, K = G + 1 scored positions, V vocabulary.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.types import Proposal


def is_valid(proposal: Proposal) -> Bool[Array, "B G"]:
  """Returns which of the drafted tokens count."""
  return jnp.arange(proposal.tokens.shape[1]) < proposal.num_valid[:, None]


def drafted_probs(
  probs: Float[Array, "B N V"], proposal: Proposal
) -> Float[Array, "B G"]:
  """Returns what laws at the G drafted positions give to the drafted tokens."""
  drafted = probs[:, : proposal.tokens.shape[1]]
  tokens = proposal.tokens[..., None]
  return jnp.take_along_axis(drafted, tokens, axis=-1)[..., 0]


def ratio(p: Float[Array, "*shape"], q: Float[Array, "*shape"]):
  """Returns min(1, p / q), the chance to accept; 0 where p = 0, whatever q is."""
  return jnp.where((p >= q) & (p > 0), 1.0, p / jnp.where(q > 0, q, 1.0))


def leading(accepted: Bool[Array, "B G"]) -> Int[Array, "B"]:
  """Returns how many tokens come before the first one that was not accepted."""
  return jnp.cumprod(accepted, axis=1).sum(axis=1)


def law_at(
  probs: Float[Array, "B K V"], position: Int[Array, "B"]
) -> Float[Array, "B V"]:
  """Returns each row's law at its own position."""
  return jnp.take_along_axis(probs, position[:, None, None], axis=1)[:, 0]


def padded_draft_probs(proposal: Proposal) -> Float[Array, "B K V"]:
  """Returns q, and zeros where no drafted token counts: beyond `num_valid`.

  With q = 0 there, the residual at the position after the draft is p itself, and the
  bonus token needs no case of its own.
  """
  q = jnp.where(is_valid(proposal)[..., None], proposal.draft_probs, 0.0)
  return jnp.pad(q, ((0, 0), (0, 1), (0, 0)))


def draft_law_at(proposal: Proposal, position: Int[Array, "B"]) -> Float[Array, "B V"]:
  """Returns each row's `padded_draft_probs` at its own position, without the rest."""
  last = proposal.tokens.shape[1] - 1
  q = law_at(proposal.draft_probs, jnp.minimum(position, last))
  return jnp.where((position < proposal.num_valid)[:, None], q, 0.0)
