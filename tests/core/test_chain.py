import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core import chain
from specdec_t5x.core.lenient import LenientGreedyVerification, LenientVerification
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.types import Candidates, Proposal


def test_the_ratio_is_at_most_one_and_none_without_mass():
  p, q = jnp.array([0.0, 0.0, 0.2, 0.3, 0.1]), jnp.array([0.0, 0.5, 0.0, 0.2, 0.4])
  np.testing.assert_allclose(chain.ratio(p, q), [0, 0, 1, 1, 0.25])


@pytest.mark.parametrize(
  "rule",
  [*RULES.values(), LenientVerification(1e-60), LenientGreedyVerification(1e-60)],
  ids=lambda rule: type(rule).__name__,
)
@pytest.mark.parametrize("q", [0.0, 1e-30, 0.5])
def test_no_rule_accepts_a_token_that_the_target_excludes(rule, q):
  """Not where the draft has no mass there, nor under the least uniform, either."""
  target_probs = jnp.array([[[0.0, 0.5, 0.5]] * 3])
  proposal = Proposal(
    jnp.zeros((1, 2), jnp.int32), jnp.array([[[q, 1 - q, 0.0]] * 2]), jnp.array([2])
  )
  if rule.takes_candidates:
    fields = proposal.tokens, proposal.draft_probs, proposal.num_valid
    proposal = Candidates(*(jnp.stack([field] * 2, axis=1) for field in fields))
    target_probs = jnp.stack([target_probs] * 2, axis=1)
  uniforms = jnp.zeros((1, 5 if rule.takes_candidates else 3, 1))
  verdict = rule.verify(target_probs, proposal, uniforms)
  assert verdict.num_accepted.tolist() == [0]
  assert verdict.next_token.tolist() in ([1], [2])
