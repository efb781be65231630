"""The verification rules by name."""

from specdec_t5x.core.block import BlockVerification
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.greedy import GreedyVerification
from specdec_t5x.core.lenient import LenientGreedyVerification, LenientVerification
from specdec_t5x.core.multi import KSeqVerification, RecursiveVerification
from specdec_t5x.core.token import TokenVerification
from specdec_t5x.core.types import Guarantee, Rule
from specdec_t5x.core.typical import TypicalVerification

RULES: dict[str, Rule] = {
  "token": TokenVerification(),
  "greedy": GreedyVerification(),
  "block": BlockVerification(),
  "kseq": KSeqVerification(),
  "recursive": RecursiveVerification(),
  "lenient": LenientVerification(),
  "typical": TypicalVerification(),
}


def get_rule(name: str) -> Rule:
  """Returns the rule called `name`, with its defaults.

  Raises:
    ValueError: where there is none of that name.
  """
  if not isinstance(name, str) or name not in RULES:
    raise ValueError(
      f"Unknown verification rule {name!r}; expected one of {sorted(RULES)}. Set it "
      "with --gin.VERIFICATION."
    )
  return RULES[name]


def guarantee_of(verification: str | None) -> Guarantee:
  """Returns what a run promises: of a rule, of 'beam', or of plain decoding (None)."""
  if verification is None:
    return Guarantee.EXACT
  if verification == "beam":
    return Guarantee.GREEDY_EXACT
  return get_rule(verification).guarantee


def accepts_by_mass(verification: str | None) -> bool:
  """Returns whether sum_x min(p, q) is a run's acceptance; a beam accepts levels."""
  return verification in RULES and RULES[verification].accepts_by_mass


def rule_for(
  name: str, sampling: Sampling, lenience: float = 1.0
) -> tuple[Rule, Sampling]:
  """Returns the rule for a way of sampling, and the target's adjustment it works on.

  The adjustment is `sampling` itself but for lenience at temperature 0, which
  compares with the target's law at temperature 1.

  Raises:
    ValueError: where rule, sampling and lenience do not go together.
  """
  rule = get_rule(name)
  if name == "greedy" and not sampling.greedy:
    raise ValueError(
      f"VERIFICATION='greedy' needs TEMPERATURE=0, got {sampling.temperature}: it "
      "gives the target's greedy output. To sample use 'token' or 'block'."
    )
  if name != "lenient":
    if lenience != 1.0:
      raise ValueError(
        f"LENIENCE={lenience} needs VERIFICATION='lenient', got {name!r}."
      )
    return rule, sampling
  if sampling.greedy:
    return LenientGreedyVerification(lenience), Sampling(temperature=1.0)
  return LenientVerification(lenience), sampling
