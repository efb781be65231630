import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.rules import RULES, token
from specdec_t5x.core.rules.lenient import Lenient, LenientGreedy
from specdec_t5x.core.types import Proposal
from specdec_t5x.drafters.tree_draft import delayed


def test_the_ratio_is_at_most_one_and_zero_without_target_mass():
  p = jnp.array([0.0, 0.0, 0.2, 0.3, 0.1])
  q = jnp.array([0.0, 0.5, 0.0, 0.2, 0.4])
  np.testing.assert_allclose(token.ratio(p, q), [0, 0, 1, 1, 0.25])


@pytest.mark.parametrize(
  "rule",
  [*RULES.values(), Lenient(1e-60), LenientGreedy(1e-60)],
  ids=lambda rule: type(rule).__name__,
)
def test_no_rule_accepts_a_token_that_the_target_excludes(rule):
  """The rule holds without draft mass on the token, and under the smallest uniform."""
  target_probs = jnp.array([[[0.0, 0.5, 0.5]] * 5] * 3)
  draft_probs = jnp.array([[[q, 1 - q, 0.0]] * 4 for q in (0.0, 1e-30, 0.5)])
  proposal = Proposal.chain(jnp.zeros((3, 4), jnp.int32), draft_probs, 4)
  if rule.takes_trees:
    proposal = proposal.replace(tree=delayed(0, 2, 2))
  verdict = jax.jit(rule.verify)(target_probs, proposal, jnp.zeros((3, 5, 1)))
  assert verdict.last.tolist() == [0, 0, 0]
  assert {*verdict.next_token.tolist()} <= {1, 2}
