"""The verification rules by name."""

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.types import Guarantee, Rule
from specdec_t5x.lazy import Lazy

RULES = Lazy(
  {
    "token": "specdec_t5x.core.rules.token:Token",
    "greedy": "specdec_t5x.core.rules.token:Greedy",
    "block": "specdec_t5x.core.rules.block:Block",
    "kseq": "specdec_t5x.core.rules.kseq:KSeq",
    "recursive": "specdec_t5x.core.rules.recursive:Recursive",
    "traversal": "specdec_t5x.core.rules.traversal:Traversal",
    "coupled": "specdec_t5x.core.rules.coupled:Coupled",
    "lenient": "specdec_t5x.core.rules.lenient:Lenient",
    "typical": "specdec_t5x.core.rules.lossy:Typical",
    "top_k": "specdec_t5x.core.rules.lossy:TopK",
    "distance": "specdec_t5x.core.rules.lossy:Distance",
  },
  make=lambda rule: rule(),
)


def rule_at(rule: Rule, sampling: Sampling) -> tuple[Rule, Sampling]:
  """Returns the rule and the settings for p that decode with `sampling` (`Rule.at`).

  At temperature 0 every exact rule becomes `Greedy`, which needs no distributions. With
  coupled draws every exact rule becomes `Coupled`.

  Raises:
    ValueError: if the rule does not support `sampling`.
  """
  if sampling.certain and rule.guarantee is Guarantee.EXACT:
    return RULES["greedy" if sampling.greedy else "coupled"], sampling
  if sampling.coupled and not sampling.greedy:
    raise ValueError(
      f"Coupled draws need a rule that keeps the target's distribution, got "
      f"{type(rule).__name__}. Use 'coupled', or Sampling(coupled=False)."
    )
  return rule.at(sampling)
