"""The verification rules by name."""

import dataclasses
from typing import Any

from specdec_t5x.core.types import Rule
from specdec_t5x.lazy import Lazy

RULES = Lazy(
  {
    "token": "specdec_t5x.core.token:Token",
    "greedy": "specdec_t5x.core.greedy:Greedy",
    "block": "specdec_t5x.core.block:Block",
    "kseq": "specdec_t5x.contrib.kseq:KSeq",
    "recursive": "specdec_t5x.contrib.recursive:Recursive",
    "traversal": "specdec_t5x.core.traversal:Traversal",
    "coupled": "specdec_t5x.core.greedy:Coupled",
    "lenient": "specdec_t5x.core.lenient:Lenient",
    "typical": "specdec_t5x.contrib.typical:Typical",
    "top_k": "specdec_t5x.contrib.approximate:TopK",
    "distance": "specdec_t5x.contrib.approximate:Distance",
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
    raise ValueError(
      f"Unknown verification rule {rule!r}; expected one of {sorted(RULES)} or a Rule. "
      "Correct --gin.VERIFICATION."
    )
  if knobs:
    raise ValueError(
      f"{knobs} are knobs of named rules, got the rule {rule!r}. Set the knobs on the "
      "Rule."
    )
  return rule
