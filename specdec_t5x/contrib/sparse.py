"""Drafting from truncated distributions, as in `contrib.link`, in a single process.

(TK-SLT, arXiv 2509.04576; TSLT, arXiv 2512.16273: truncate first, then draw.)

Shapes: B rows, G gamma, K kept tokens, V vocabulary, L uniforms per decision.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.contrib.truncation import SparseProbs, Truncation
from specdec_t5x.core.distributions import AdjustFn, Sampling
from specdec_t5x.core.noise import perturbed
from specdec_t5x.core.types import Cache, Proposal, check_uniforms
from specdec_t5x.decoding.contracts import Context
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.draft_model import ChainDrafter, gamma_knob, likeliest
from specdec_t5x.network.net import Net, read_last


@dataclasses.dataclass(frozen=True)
class SparseDraft(ChainDrafter):
  """Samples gamma tokens one by one from truncated and rounded distributions."""

  network: Any  # The drafting network, over the target's vocabulary.
  gamma: int | None = gamma_knob()  # The number of tokens of a draft.
  truncation: Truncation = Truncation()  # noqa: RUF009 - frozen

  @property
  def networks(self) -> Mapping[str, Any]:
    """The drafting network, by name."""
    return {"draft": self.network}

  def start(self, context, caches, source) -> Cache:
    """Returns the draft's first cache."""
    return caches["draft"]

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, Cache]:
    """Drafts gamma tokens; see `decoding.contracts.Drafter`."""
    check_uniforms(uniforms, self.tree.size)
    tokens, distribution, cache = drafted_sparsely(
      context.networks["draft"],
      state,
      uniforms,
      context.sampling,
      self.truncation,
      context.adjust,
      context.behind,
    )
    probs = None
    if distribution is not None:
      probs = distribution.dense(context.target.vocab_size)
    return Proposal.chain(tokens, probs, self.tree.size), cache


def drafted_sparsely(
  net: Net,
  state: DecodeState,
  uniforms: Float[Array, "B G L"],
  sampling: Sampling,
  truncation: Truncation,
  adjust: AdjustFn,
  behind: int = 2,
) -> tuple[Int[Array, "B G"], SparseProbs | None, Cache]:
  """Drafts a chain from truncated distributions, with a call of the network per token.

  Args:
    net: the network.
    state: the decode's state; the drafter's state is the network's cache.
    uniforms: the uniforms of each token.
    sampling: the adjustment of the distribution, before truncation.
    truncation: the truncation of the distribution.
    adjust: computes the distribution.
    behind: the number of known tokens that the cache may lack (`Context.behind`).

  Returns:
    The tokens, the distributions [B, G, K] (None if the tokens are certain), and the
    network's cache, which lacks the last token.
  """

  def draw(logits, uniforms):
    return draw_sparsely(logits, uniforms, sampling, truncation, adjust)

  logits, cache = read_last(
    net, state.drafter_state, state.sequences, state.lengths, behind
  )
  first = draw(logits, uniforms[:, 0])

  def draft_next(carry, uniforms):
    cache, token = carry
    logits, _, cache = net.extend(cache, token[:, None])
    token, distribution = draw(logits[:, 0], uniforms)
    return (cache, token), (token, distribution)

  later_uniforms = uniforms[:, 1:].swapaxes(0, 1)
  (cache, _), later = jax.lax.scan(
    draft_next, (cache, first[0]), later_uniforms, length=uniforms.shape[1] - 1
  )
  tokens, distributions = jax.tree.map(
    lambda head, tail: jnp.concatenate([head[None], tail]).swapaxes(0, 1), first, later
  )
  return tokens, distributions, cache


def draw_sparsely(
  logits: Float[Array, "B V"],
  uniforms: Float[Array, "B L"],
  sampling: Sampling,
  truncation: Truncation,
  adjust: AdjustFn,
) -> tuple[Int[Array, "B"], SparseProbs | None]:
  """Draws tokens; returns the tokens and their distributions, None if certain."""
  if sampling.certain:
    return likeliest(perturbed(logits, sampling, uniforms, adjust)), None
  distribution = truncation.of(adjust(logits, sampling))
  return distribution.draw(uniforms).astype(jnp.int32), distribution
