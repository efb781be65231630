"""Several independent drafts of one draft model (SpecTr, arXiv 2310.15141)."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.types import Cache, Candidates, Verdict
from specdec_t5x.drafters.draft_model import DraftModel


@dataclasses.dataclass(frozen=True)
class IndependentDrafts:
  """Draws C drafts of each row; its state is a draft cache of B C rows.

  Attributes:
    drafter: draws one draft a row.
    num_candidates: C.
  """

  drafter: DraftModel
  num_candidates: int

  def propose(
    self,
    state: Cache,
    sequences: Int[Array, "B S"],
    lengths: Int[Array, "B"],
    uniforms: Float[Array, "B CG L"],
  ) -> tuple[Candidates, Cache]:
    """Drafts C times gamma tokens; see `core.types.Drafter`."""
    count = self.num_candidates
    repeat = lambda x: jnp.repeat(x, count, axis=0)
    draft, state = self.drafter.propose(
      state,
      repeat(sequences),
      repeat(lengths),
      uniforms.reshape(lengths.size * count, -1, uniforms.shape[-1]),
    )
    split = lambda x: x.reshape(-1, count, *x.shape[1:])
    return Candidates(
      split(draft.tokens), split(draft.draft_probs), split(draft.num_valid)
    ), state

  def commit(
    self, state: Cache, verdict: Verdict, features: Float[Array, "B K D"]
  ) -> Cache:
    """Hands the entries of the draft that was kept to all C."""
    count = self.num_candidates
    kept = jnp.arange(verdict.candidate.size) * count + verdict.candidate
    state = state.of_rows(jnp.repeat(kept, count))
    return self.drafter.commit(state, verdict, features)
