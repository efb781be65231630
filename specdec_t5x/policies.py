"""The policies by name: how many tokens each row drafts next.

Each knows what a row's earlier drafts came to, and keeps the guarantee of every rule
(`decoding.policy`, docs/math.md).
"""

from specdec_t5x.decoding.cost_aware import CostAware
from specdec_t5x.decoding.policy import Fixed, Policy

POLICIES: dict[str, Policy] = {"auto": CostAware(), "fixed": Fixed()}
# Policies of earlier versions, none of which was better than 'auto' beyond noise.
_REMOVED = ("budget", "confidence", "exit")


def get_policy(policy: Policy | str) -> Policy:
  """Returns a policy: as it is, or the one of that name.

  Raises:
    ValueError: where there is none of that name.
  """
  if isinstance(policy, Policy):
    return policy
  if policy in _REMOVED:
    raise ValueError(
      f"GAMMA_POLICY {policy!r} was removed, for it was never better than 'auto' "
      "(docs/results/failures.md). Use 'auto'."
    )
  if not isinstance(policy, str) or policy not in POLICIES:
    raise ValueError(
      f"Unknown GAMMA_POLICY {policy!r}; expected one of {sorted(POLICIES)} or a "
      "Policy."
    )
  return POLICIES[policy]
