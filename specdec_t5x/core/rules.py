"""The verification rules by name."""

from specdec_t5x.core.token import TokenVerification
from specdec_t5x.core.types import Rule

RULES: dict[str, Rule] = {"token": TokenVerification()}


def get_rule(name: str) -> Rule:
  """Returns the rule called `name`.

  Raises:
    ValueError: where there is none of that name.
  """
  if name not in RULES:
    raise ValueError(
      f"Unknown verification rule {name!r}; expected one of {sorted(RULES)}. Set it "
      "with --gin.VERIFICATION."
    )
  return RULES[name]
