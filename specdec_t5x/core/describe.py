"""What ran, in words: read off the objects that ran."""

import dataclasses
import numbers
from typing import Any

# Fields of Flax modules that are no settings.
_NO_SETTINGS = ("parent", "name")


def describe(part: Any) -> Any:
  """Returns a part's kind and settings as JSON has them, and those of its own parts.

  >>> from specdec_t5x.core.distributions import Sampling
  >>> describe(Sampling(temperature=0.5))
  {'kind': 'Sampling', 'temperature': 0.5, 'top_k': 0, 'top_p': 0.0, 'coupled': False}

  Args:
    part: a drafter, rule, policy, decoder or network: dataclasses all.
  """
  if dataclasses.is_dataclass(part):
    names = [f.name for f in dataclasses.fields(part) if f.name not in _NO_SETTINGS]
    settings = {name: describe(getattr(part, name)) for name in names}
    return {"kind": type(part).__name__, **settings}
  if isinstance(part, tuple | list):
    return [describe(item) for item in part]
  # NumPy's numbers and subclasses of Python's.
  if isinstance(part, numbers.Integral) and not isinstance(part, bool):
    return int(part)
  return part if isinstance(part, bool | int | float | str | None) else str(part)
