"""Descriptions of the objects that ran, for records of a run."""

import dataclasses
import numbers
from typing import Any

# Fields of Flax modules that are not settings.
_NO_SETTINGS = ("parent", "name")


def describe(part: Any) -> Any:
  """Returns the kind and the settings of a part and all nested parts, as JSON types.

  >>> from specdec_t5x.core.distributions import Sampling
  >>> describe(Sampling(temperature=0.5))
  {'kind': 'Sampling', 'temperature': 0.5, 'top_k': 0, 'top_p': 0.0, 'coupled': False}

  Args:
    part: a dataclass: a drafter, rule, policy, decoder or network.
  """
  if dataclasses.is_dataclass(part):
    names = [f.name for f in dataclasses.fields(part) if f.name not in _NO_SETTINGS]
    settings = {name: describe(getattr(part, name)) for name in names}
    return {"kind": type(part).__name__, **settings}
  if isinstance(part, tuple | list):
    return [describe(item) for item in part]
  # Converts NumPy's integers and subclasses of int.
  if isinstance(part, numbers.Integral) and not isinstance(part, bool):
    return int(part)
  return part if isinstance(part, bool | int | float | str | None) else str(part)
