"""Checks of settings, and knobs: dataclass fields that declare their valid values."""

import dataclasses
import math
import numbers
import string
from collections.abc import Callable
from typing import Any, NamedTuple


class Name(NamedTuple):
  """The names of a setting: the argument in Python, and the macro in gin files."""

  python: str
  gin: str


# Settings with another macro than the argument in upper case.
_NAMES = {
  "activation_dtype": Name("dtype", "ACTIVATION_DTYPE"),
  "lower_gamma": Name("gamma of the lower drafter", "LOWER_GAMMA"),
  "max_length": Name("max_length", "TASK_FEATURE_LENGTHS"),
  "order": Name("order", "NGRAM_ORDER"),
  "param_dtype": Name("dtype", "PARAM_DTYPE"),
  "policy": Name("policy", "GAMMA_POLICY"),
  "rule": Name("rule", "VERIFICATION"),
  "top_k": Name("top_k", "TOPK"),
  "top_p": Name("top_p", "TOPP"),
}


class KnobError(ValueError):
  """An error whose message names settings.

  The message has the arguments of Python. The command line shows the macros of gin
  files instead (`t5x_bridge.macros`). Every `{name}` of the message that `values` lacks
  is a setting's name, and so is a `Name` among the values.

  >>> error = KnobError("{policy}={value!r} needs a {gamma}.", value="auto")
  >>> str(error)
  "policy='auto' needs a gamma."
  >>> error.in_gin()
  "GAMMA_POLICY='auto' needs a GAMMA."
  """

  def __init__(self, template: str, **values: Any):
    super().__init__(template)
    self.template, self.values = template, values

  def __str__(self) -> str:
    return self._message(is_gin=False)

  def in_gin(self) -> str:
    """Returns the message with the macros of gin files."""
    return self._message(is_gin=True)

  def _message(self, is_gin: bool) -> str:
    fields = [field for _, field, _, _ in string.Formatter().parse(self.template)]
    words = {x: _NAMES.get(x, Name(x, x.upper())) for x in fields if x} | self.values
    words = {x: y[is_gin] if isinstance(y, Name) else y for x, y in words.items()}
    return self.template.format(**words)


def invalid(name: str, expected: str, value: Any, fix: str = "") -> KnobError:
  """Returns the error of a setting that has an invalid value.

  Args:
    name: the setting.
    expected: the valid values in words.
    value: the value.
    fix: a sentence, which may name settings in braces; '' for no sentence.
  """
  template = f"{{{name}}} must be {expected}, got {{value!r}}. {fix}".rstrip()
  return KnobError(template, value=value)


@dataclasses.dataclass(frozen=True)
class Knob:
  """The declaration of a knob.

  Attributes:
    expected: the valid values in words.
    accepts: the valid values as a function.
    macro: the name in gin files; '' stands for the class and the field.
    fix: a sentence for error messages, with `{knob}` for the name; '' for no sentence.
  """

  expected: str
  accepts: Callable[[Any], bool]
  macro: str = ""
  fix: str = ""


def knob(default: Any, declaration: Knob, **words: str) -> Any:
  """Returns a dataclass field that is a knob; `words` may be its `macro` and `fix`."""
  declaration = dataclasses.replace(declaration, **words)
  return dataclasses.field(default=default, metadata={"knob": declaration})


def check_knobs(part: Any) -> None:
  """Raises a ValueError if a knob of a dataclass has an invalid value."""
  for field in dataclasses.fields(part):
    if declaration := field.metadata.get("knob"):
      value = getattr(part, field.name)
      check_value(declaration, value, field.name, type(part).__name__)


def check_value(declaration: Knob, value: Any, name: str, part: str = "") -> None:
  """Raises a ValueError if a value is invalid for the knob of a name.

  The message has the class, `part`, if the knob has no macro.
  """
  macro = declaration.macro
  if not declaration.accepts(value):
    raise KnobError(
      ("{knob} must be {expected}, got {value!r}. " + declaration.fix).rstrip(),
      knob=Name(name, macro) if macro else f"{part}.{name}",
      expected=declaration.expected,
      value=value,
    )


def whole(least: int, most: int | float = math.inf) -> Knob:
  """Returns the knob of whole numbers from `least` to `most`, both included."""
  expected = f"a whole number of at least {least}"
  if most < math.inf:
    expected = f"from {least} to {most}"
  return Knob(expected, lambda value: is_whole(value, least) and value <= most)


def finite() -> Knob:
  """Returns the knob of finite numbers of at least 0."""
  return Knob("a finite number of at least 0", is_finite)


def is_whole(value: Any, least: int) -> bool:
  """Returns whether `value`, of any type, is an integer of at least `least`."""
  is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  return is_integer and bool(value >= least)


def is_finite(value: Any) -> bool:
  """Returns whether `value` is a finite number of at least 0."""
  is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  return is_real and math.isfinite(value) and bool(value >= 0)


def is_probability(value: Any) -> bool:
  """Returns whether `value` is a number from 0 to 1."""
  return is_finite(value) and bool(value <= 1)
