"""Drafting by a smaller model of the same family (Leviathan et al., algorithm 1).

Shapes: B rows, G gamma, S sequence buffer, L uniforms a decision.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core import tree
from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import argmax, certain_log_prob, draw
from specdec_t5x.core.types import Cache, ExtendFn, Proposal
from specdec_t5x.decoding.drafter import Context, Drafter
from specdec_t5x.decoding.state import DecodeState

DEFAULT_GAMMA = 5


@dataclasses.dataclass(frozen=True)
class DraftModel(Drafter):
  """Samples gamma tokens one by one from a network; its state is the cache.

  Attributes:
    network: drafts over the target's vocabulary: a network, or a table of n-grams.
    gamma: tokens a draft.
  """

  network: Any
  gamma: int = DEFAULT_GAMMA

  def __post_init__(self):
    check_gamma(self.gamma)

  @property
  def networks(self) -> Mapping[str, Any]:
    """The draft."""
    return {"draft": self.network}

  @property
  def tree(self) -> tree.Tree:
    """A chain of gamma tokens."""
    return tree.chain(self.gamma)

  def start(self, context: Context) -> Cache:
    """Returns the draft's first cache."""
    return context.start("draft")

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, Cache]:
    """Drafts gamma tokens; see `decoding.drafter.Drafter`."""
    sampling = context.sampling
    tokens, probs, cache = drafted_chain(
      context.extend["draft"],
      state,
      uniforms,
      lambda logits, uniforms: drawn(logits, sampling, uniforms),
      context.behind,
    )
    return Proposal.chain(tokens, probs, self.gamma), cache


def drafted_chain(
  extend: ExtendFn,
  state: DecodeState,
  uniforms: Float[Array, "B G L"],
  draw_fn: Callable[[Float[Array, "B V"], Float[Array, "B L"]], tuple[Array, Any]],
  behind: int = 2,
) -> tuple[Int[Array, "B G"], Any, Cache]:
  """Drafts a token after the other, each by a call of the network.

  Args:
    extend: the network.
    state: where the decode stands; the drafter's state is the network's cache.
    uniforms: of each token.
    draw_fn: from logits and uniforms to a token and its law, of any kind.
    behind: how many known tokens the cache may lack (`Context.behind`).

  Returns:
    The tokens, their laws, and the cache, which lacks the last token.
  """
  logits, cache = read_last(
    extend, state.drafter_state, state.sequences, state.lengths, behind
  )
  first = draw_fn(logits, uniforms[:, 0])

  def draft_next(carry, uniforms):
    cache, token = carry
    logits, _, cache = extend(cache, token[:, None])
    token, law = draw_fn(logits[:, 0], uniforms)
    return (cache, token), (token, law)

  later = uniforms[:, 1:].swapaxes(0, 1)
  (cache, _), rest = jax.lax.scan(
    draft_next, (cache, first[0]), later, length=uniforms.shape[1] - 1
  )
  tokens, laws = jax.tree.map(
    lambda head, tail: jnp.concatenate([head[None], tail]).swapaxes(0, 1), first, rest
  )
  return tokens, laws, cache


def check_gamma(gamma: Any) -> None:
  """Raises a ValueError where `gamma` is no length of a draft."""
  if not is_whole(gamma, 1):
    raise ValueError(
      f"GAMMA must be a whole number of at least 1, got {gamma!r}. For decoding "
      "without speculation use configs/baseline_*.gin, or no draft."
    )


def drawn(logits: Float[Array, "B V"], sampling, uniforms: Float[Array, "B L"]):
  """Returns a token and the law that it was drawn from, None of a certain one."""
  if sampling.greedy:
    return likeliest(logits), None
  return draw(logits, sampling, uniforms)


def likeliest(logits: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
  """Returns argmax; -1, which is no token, where the logits are no numbers."""
  token = argmax(logits).astype(jnp.int32)
  return jnp.where(jnp.isnan(certain_log_prob(logits)), -1, token)


def read_last(
  extend: ExtendFn,
  cache: Cache,
  sequences: Int[Array, "B S"],
  lengths: Int[Array, "B"],
  count: int = 2,
) -> tuple[Float[Array, "B V"], Cache]:
  """Returns the draft's logits after the known tokens, and its cache up to there.

  Args:
    extend: the draft.
    cache: the draft's.
    sequences: the known tokens.
    lengths: how many there are.
    count: how many of the last of them the cache may lack (`Context.behind`).
  """
  # The last drafted token of a fully accepted block was never fed back, so the cache
  # may lack the last two known tokens, never more, but for what speculations above
  # added: feed all that may be lacking. With fewer tokens known, the other slots hold
  # garbage until drafted tokens overwrite it.
  start = jnp.maximum(lengths - count, 0)
  window = start[:, None] + jnp.arange(count)
  tokens = jnp.take_along_axis(sequences, window, axis=1)
  logits, _, cache = extend(cache.at(start), tokens)
  last = (lengths - 1 - start)[:, None, None]
  return jnp.take_along_axis(logits, last, axis=1)[:, 0], cache.at(lengths)
