"""What rules share: reading distributions along a draft.

Shapes: B batch, G drafted tokens, N = G + 1 nodes, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import argmax
from specdec_t5x.core.types import Proposal, Verdict


def drafted_probs(
  target_probs: Float[Array, "B N V"], proposal: Proposal
) -> Float[Array, "B G"]:
  """Returns what p after each drafted token's parent gives to the token."""
  tokens = proposal.tokens[..., None]
  distributions = proposal.tree.of_parents(target_probs)
  return jnp.take_along_axis(distributions, tokens, axis=-1)[..., 0]


def ratio(p: Float[Array, "*shape"], q: Float[Array, "*shape"]):
  """Returns min(1, p / q), the chance to accept; 0 where p = 0, whatever q is."""
  return jnp.where((p >= q) & (p > 0), 1.0, p / jnp.where(q > 0, q, 1.0))


def leading(accepted: Bool[Array, "B G"]) -> Int[Array, "B"]:
  """Returns how many tokens come before the first one that was not accepted."""
  return jnp.cumprod(accepted, axis=1).sum(axis=1)


def greedy_prefix(
  target_probs: Float[Array, "B N V"], proposal: Proposal, passes: Bool[Array, "B G"]
) -> Verdict:
  """Accepts the first tokens, as long as they pass; the next one is argmax p."""
  num_accepted = leading(passes & proposal.is_valid)
  return Verdict(num_accepted, argmax(probs_at(target_probs, num_accepted)))


def probs_at(
  probs: Float[Array, "B N V"], position: Int[Array, "B"]
) -> Float[Array, "B V"]:
  """Returns each row's distribution at its own position."""
  return jnp.take_along_axis(probs, position[:, None, None], axis=1)[:, 0]


def draft_probs_at(
  proposal: Proposal, position: Int[Array, "B"], vocab_size: int
) -> Float[Array, "B V"]:
  """Returns each row's q at its own position; zeros where no drafted token counts.

  With q = 0 beyond `num_valid`, the residual at the position after the draft is p
  itself, and the bonus token needs no case of its own.
  """
  place = jnp.minimum(position, proposal.tokens.shape[1] - 1)
  if proposal.draft_probs is None:
    token = jnp.take_along_axis(proposal.tokens, place[:, None], axis=1)[:, 0]
    q = jax.nn.one_hot(token, vocab_size)
  else:
    q = probs_at(proposal.draft_probs, place)
  return jnp.where((position < proposal.num_valid)[:, None], q, 0.0)
