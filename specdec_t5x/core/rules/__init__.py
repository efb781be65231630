"""The verification rules by name."""

import dataclasses
from typing import Any

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import KnobError
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


def get_rule(rule: Rule | str, **knobs: Any) -> Rule:
  """Returns a `Rule` unchanged, or creates the rule with a given name.

  Args:
    rule: a `Rule`, or a name in `RULES`.
    **knobs: values for a named rule's knobs, in place of the defaults.

  Raises:
    ValueError: if the name is unknown, or the rule lacks a knob of `knobs`.
  """
  if isinstance(rule, str) and rule in RULES:
    fields = {field.name for field in dataclasses.fields(RULES[rule])}
    surplus = sorted(set(knobs) - fields)
    if surplus:
      raise ValueError(
        f"The rule {rule!r} has no {', '.join(surplus)}, got {knobs}. The rule's knobs "
        f"are {sorted(fields) or 'none'}."
      )
    return dataclasses.replace(RULES[rule], **knobs)
  if not isinstance(rule, Rule):
    raise KnobError(
      "Unknown verification rule {value!r}; expected one of {names} or a Rule. Correct "
      "{rule}.",
      value=rule,
      names=sorted(RULES),
    )
  if knobs:
    raise ValueError(
      f"{knobs} are knobs of named rules, got the rule {rule!r}. Set the knobs on the "
      "Rule."
    )
  return rule


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
