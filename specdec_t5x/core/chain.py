"""Functions of several rules that read distributions along a draft.

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
  """Returns p(x) of each drafted token x, with p the distribution after x's parent."""
  tokens = proposal.tokens[..., None]
  distributions = proposal.tree.of_parents(target_probs)
  return jnp.take_along_axis(distributions, tokens, axis=-1)[..., 0]


def ratio(p: Float[Array, "*shape"], q: Float[Array, "*shape"]):
  """Returns the acceptance probability min(1, p / q); 0 if p = 0, for any q."""
  return jnp.where((p >= q) & (p > 0), 1.0, p / jnp.where(q > 0, q, 1.0))


def leading(accepted: Bool[Array, "B G"]) -> Int[Array, "B"]:
  """Returns the number of tokens before the first rejected token."""
  return jnp.cumprod(accepted, axis=1).sum(axis=1)


def greedy_prefix(
  target_probs: Float[Array, "B N V"], proposal: Proposal, passes: Bool[Array, "B G"]
) -> Verdict:
  """Accepts the tokens before the first failure; the next token is argmax p."""
  num_accepted = leading(passes & proposal.is_valid)
  return Verdict(num_accepted, argmax(probs_at(target_probs, num_accepted)))


def probs_at(
  probs: Float[Array, "B N V"], position: Int[Array, "B"]
) -> Float[Array, "B V"]:
  """Returns each row's distribution at the row's `position`."""
  return jnp.take_along_axis(probs, position[:, None, None], axis=1)[:, 0]


def draft_probs_at(
  proposal: Proposal, position: Int[Array, "B"], vocab_size: int
) -> Float[Array, "B V"]:
  """Returns each row's q at the row's `position`, and zeros beyond `num_valid`.

  With q = 0 beyond `num_valid`, the residual at the position after the draft is p, and
  the bonus token needs no special case.
  """
  place = jnp.minimum(position, proposal.tokens.shape[1] - 1)
  if proposal.draft_probs is None:
    token = jnp.take_along_axis(proposal.tokens, place[:, None], axis=1)[:, 0]
    q = jax.nn.one_hot(token, vocab_size)
  else:
    q = probs_at(proposal.draft_probs, place)
  return jnp.where((position < proposal.num_valid)[:, None], q, 0.0)
