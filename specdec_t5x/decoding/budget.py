"""One budget for all rows of a batch: drafts where they are likeliest to stand.

Shapes: B rows, G gamma, A = G B drafted tokens that could be admitted.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.decoding.cost_aware import ByTimes, Counts
from specdec_t5x.decoding.widths import holding, packed_widths


@dataclasses.dataclass(frozen=True)
class Budget(ByTimes):
  """Drafts in each row as much as pays, given what is drafted in all others.

  Row r's token at depth j is reckoned to stand with probability alpha_r^j; or, where
  heads say so of each token, with the product of theirs up to it. Tokens are admitted
  by that, the likeliest first, and as many of them as maximise

    (B + sum of what is admitted) / seconds,

  none included. Blocks are packed, so the seconds are of the longest draft and of the
  sum of all (`timed`), rounded up to a width that is compiled.

  A row's alpha is estimated from its own drafts, with that of the others as the prior;
  what heads say depends on no token that they draft. So all that is read was known
  before a token was drawn, and any search keeps every rule's guarantee; of scores that
  depend on drawn tokens a search would not (docs/math.md).

  Source: DSpark, arXiv 2607.05147, section 3.2, whose early stop is not needed for such
  scores. A first token alone seldom pays: all rows wait for the draft of one.
  """

  packs: bool = dataclasses.field(default=True, kw_only=True)

  def timed(self, lengths: tuple[int, ...], rows: int) -> tuple[tuple[int, ...], ...]:
    """No draft; then each length in one row alone; then each in every row."""
    none, *some = super().timed(lengths, rows)
    alone = ((length, *none[1:]) for length in lengths[1:])
    return (none, *alone, *some)

  def even(self, lengths: tuple[int, ...]) -> tuple[float, ...]:
    """Returns the seconds of drafts of each length in every row."""
    return (self.seconds[0], *self.seconds[len(lengths) :])

  def check(self, lengths: tuple[int, ...]) -> None:
    """Raises a ValueError where drafts are of all or nothing, or lack times."""
    if len(lengths) != lengths[-1] + 1:
      raise ValueError(
        f"A Budget needs drafts of any length, got ones of {lengths} tokens. Use "
        "GAMMA_POLICY 'auto' or 'fixed' with what drafts all or nothing."
      )
    super().check(lengths)

  def within(
    self,
    known: Counts,
    remaining: Int[Array, "B"],
    lengths: tuple[int, ...],
    confidence: Float[Array, "B G"] | None = None,
  ) -> Int[Array, "B"]:
    """Each row's share of the best budget.

    Raises:
      ValueError: where nothing was measured.
    """
    if not self.seconds:
      raise ValueError(
        "A Budget needs the seconds of iterations, got none: where nothing costs time "
        "there is no end to it. `generate` and t5x.infer measure them on one device; "
        "elsewhere use GAMMA_POLICY 'confidence' or 'fixed'."
      )
    gamma, rows = lengths[-1], remaining.shape[0]
    depths = jnp.arange(1, gamma + 1)[:, None]
    if confidence is None:
      survival = self._alpha(known) ** depths
    else:
      survival = jnp.cumprod(confidence, axis=1).T
    survival = jnp.where(depths < remaining, survival, 0)
    # Of equals, the less deep come first: a row's tokens stay in their order, and no
    # draft is longer than it need be.
    order = jnp.argsort(-survival.ravel(), stable=True)
    live = (remaining > 0).sum()
    tokens = live + jnp.cumsum(survival.ravel()[order])
    longest = jnp.maximum.accumulate(1 + order // rows)
    speeds = tokens / self._seconds(longest, rows, gamma)
    best = jnp.argmax(jnp.append(live / self.seconds[0], speeds))
    place = jnp.zeros_like(order).at[order].set(jnp.arange(order.size))
    return (place.reshape(gamma, rows) < best).sum(axis=0)

  def _alpha(self, known: Counts) -> Float[Array, "B"]:
    weight = self.prior_weight
    share = lambda prior, accepted, tried: (
      (prior * weight + accepted) / (weight + tried)
    )
    others = (counts.sum() - counts for counts in (known.accepted, known.tried))
    return share(share(self.prior_alpha, *others), known.accepted, known.tried)

  def _seconds(
    self, longest: Int[Array, "A"], rows: int, gamma: int
  ) -> Float[Array, "A"]:
    """Returns what the first 1, 2, .. admitted tokens cost, given the longest draft.

    Between one row of that length and all it is by the packed width.
    """
    widths = packed_widths(rows, gamma)
    width = lambda drafted: jnp.array(widths)[holding(widths, rows + drafted)]
    few, all_rows = width(longest), width(rows * longest)
    share = (width(1 + jnp.arange(longest.size)) - few) / jnp.maximum(all_rows - few, 1)
    alone, even = jnp.split(jnp.array(self.seconds[1:]), 2)
    return alone[longest - 1] + share * (even - alone)[longest - 1]
