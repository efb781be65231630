"""The policies by name. A policy decides how many tokens each row drafts next.

A policy reads the results of a row's earlier drafts, and keeps the guarantee of every
rule (`decoding.contracts`, docs/math.md).
"""

from specdec_t5x.decoding.contracts import Policy
from specdec_t5x.decoding.policies import CostAware, Fixed

POLICIES: dict[str, Policy] = {"auto": CostAware(), "fixed": Fixed()}


def get_policy(policy: Policy | str) -> Policy:
  """Returns a `Policy` unchanged, or the policy with a given name.

  Raises:
    ValueError: if the name is unknown.
  """
  if isinstance(policy, Policy):
    return policy
  if not isinstance(policy, str) or policy not in POLICIES:
    raise ValueError(
      f"Unknown GAMMA_POLICY {policy!r}; expected one of {sorted(POLICIES)} or a "
      "Policy."
    )
  return POLICIES[policy]
