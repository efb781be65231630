"""Verification of several candidates: k-SEQ, and recursive rejection.

C drafts are drawn independently from q. Both rules walk along the positions with the
drafts that agree with what was accepted so far: given that prefix, their next tokens
are independent draws from q. At each position they differ only in how one of several
such draws is accepted, and what is recovered where none is.

Sources: Sun et al. (SpecTr), NeurIPS 2023, arXiv 2310.15141, algorithm 2 and section 4
(there p is the draft, q the target); recursive rejection: Miao et al. (SpecInfer),
arXiv 2305.09781, algorithm 2 (multi-step speculative sampling).
Shapes: B batch, C candidates, G drafted tokens, K = G + 1, V vocabulary.
"""

import abc

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core import chain
from specdec_t5x.core.distributions import residual, sample
from specdec_t5x.core.types import Candidates, Guarantee, Verdict

# Halvings of the interval that k-SEQ's rho lies in: any end of it is exact.
_BISECTIONS = 24


class _MultiVerification(abc.ABC):
  """Walks along the positions with the drafts that are still in the running."""

  guarantee = Guarantee.EXACT
  takes_candidates = True
  accepts_by_mass = False

  def verify(
    self,
    target_probs: Float[Array, "B C K V"],
    proposal: Candidates,
    uniforms: Float[Array, "B U L"],
  ) -> Verdict:
    """Accepts a prefix of one draft; see `core.types.Rule`.

    U = C G + 1: the draws of the drafted tokens, draft by draft, and of the next.
    """
    tokens = proposal.tokens
    accepted, next_probs, candidate = jax.vmap(self._walk)(
      target_probs,
      proposal.draft_probs,
      tokens,
      uniforms[:, :-1, -1].reshape(tokens.shape),
      jnp.arange(tokens.shape[2] + 1) < proposal.num_valid[..., None],
    )
    return Verdict(accepted, sample(next_probs, uniforms[:, -1]), candidate)

  @abc.abstractmethod
  def choose(
    self,
    p: Float[Array, "V"],
    q: Float[Array, "V"],
    tokens: Int[Array, "C"],
    present: Bool[Array, "C"],
    uniforms: Float[Array, "C"],
  ) -> tuple[Bool[Array, "C"], Float[Array, "V"]]:
    """Judges the tokens of those present, independent draws from q.

    Returns:
      Which ones pass (the first of them is accepted), and the law of the token that
      is recovered where none does; p where nobody is present.
    """

  def _walk(self, target_probs, draft_probs, tokens, draws, counts):
    """Judges one row.

    Args:
      target_probs: p, [C, K, V].
      draft_probs: q, [C, G, V].
      tokens: the drafts, [C, G].
      draws: uniforms, [C, G].
      counts: which of K positions each draft has a token at, [C, K].

    Returns:
      How many tokens are accepted, the law of the next one, and of which draft.
    """
    # After the drafts' last position no token counts, and p is what is left.
    pad = lambda x: jnp.pad(x, ((0, 0), (0, 1)) + ((0, 0),) * (x.ndim - 2))
    padded = [pad(x) for x in (draft_probs, tokens, draws)]
    by_position = jax.tree.map(
      lambda x: x.swapaxes(0, 1), (target_probs, *padded, counts)
    )

    def judge(carry, position):
      running, going, accepted, next_probs = carry
      p, q, tokens, draws, counts = position
      present = running & counts
      passes, rest = self.choose(
        p[jnp.argmax(running)], q[jnp.argmax(present)], tokens, present, draws
      )
      next_probs = jnp.where(going, rest, next_probs)
      going &= passes.any()
      agreeing = present & (tokens == tokens[jnp.argmax(passes)])
      running = jnp.where(going, agreeing, running)
      return (running, going, accepted + going, next_probs), None

    everyone = jnp.ones(tokens.shape[0], bool)
    start = (everyone, jnp.array(True), jnp.array(0), target_probs[0, 0])
    (running, _, accepted, next_probs), _ = jax.lax.scan(judge, start, by_position)
    return accepted, next_probs, jnp.argmax(running)


class KSeqVerification(_MultiVerification):
  """k-SEQ: of k draws, accepts the first x to pass with min(1, p(x) / (rho q(x))).

  One draw passes with probability beta = sum_x min(q(x), p(x) / rho), any of k with
  1 - (1 - beta)^k; rho is the least at which the target's mass suffices for that:
  1 - (1 - beta)^k = rho beta.
  """

  def choose(self, p, q, tokens, present, uniforms):
    """Judges the tokens of those present; see `_MultiVerification.choose`."""
    count = present.sum()
    rho = least_rho(p, q, count)
    one = jnp.minimum(q, p / rho)
    passes = present & (uniforms < chain.ratio(p[tokens], rho * q[tokens]))
    beta = one.sum()
    # Of the accepted tokens' law, any_passes / beta * one; no mass where beta is 0.
    share = any_passes(beta, count) / jnp.where(beta > 0, beta, 1.0)
    return passes, residual(p, share * one)


def least_rho(
  p: Float[Array, "V"], q: Float[Array, "V"], count: Int[Array, ""]
) -> Float[Array, ""]:
  """Returns the least rho in [1, count] with 1 - (1 - beta)^count <= rho beta.

  At that and any larger rho k-SEQ is exact, so bisection, which keeps the upper end,
  can cost acceptance (2^-24 of it) and never exactness.
  """

  def halve(_, ends):
    low, high = ends
    middle = (low + high) / 2
    # The condition, both sides taken from 1: these differences lose no digits where p
    # and q are close.
    missed = jnp.maximum(q - p / middle, 0.0).sum()
    left = jnp.maximum(p - middle * q, 0.0).sum()
    enough = missed**count >= left
    return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

  ends = (jnp.array(1.0), jnp.maximum(count, 1).astype(jnp.float32))
  return jax.lax.fori_loop(0, _BISECTIONS, halve, ends)[1]


def any_passes(beta: Float[Array, ""], count: Int[Array, ""]) -> Float[Array, ""]:
  """Returns 1 - (1 - beta)^count, with the digits that it has for a small beta."""
  beta = jnp.minimum(beta, 1.0)
  return jnp.where(count > 0, -jnp.expm1(count * jnp.log1p(-beta)), 0.0)


class RecursiveVerification(_MultiVerification):
  """Recursive rejection: one token verification after the other on what is left.

  The first draw is judged against p; each one after a rejection against the residual
  norm(max(0, p - q)) that the rejection left in place of p.
  """

  def choose(self, p, q, tokens, present, uniforms):
    """Judges the tokens of those present; see `_MultiVerification.choose`."""

    def judge(left, draw):
      token, present, uniform = draw
      passes = present & (uniform < chain.ratio(left[token], q[token]))
      # Past the first that passes `left` means nothing, and nobody asks for it.
      return jnp.where(present, residual(left, q), left), passes

    left, passes = jax.lax.scan(judge, p, (tokens, present, uniforms))
    return passes, left
