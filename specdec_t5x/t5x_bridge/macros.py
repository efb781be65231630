"""Names settings by the macros of gin files in errors of a run."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from specdec_t5x.core.knobs import KnobError


@contextlib.contextmanager
def macro_names() -> Iterator[None]:
  """Raises a `KnobError` of the block as a ValueError with the macros of gin files."""
  try:
    yield
  except KnobError as error:
    raise ValueError(error.in_gin()) from error


def made(constructor: Callable[[], Any]) -> Any:
  """Returns the object of a constructor, whose arguments gin makes.

  Errors of the constructor and of its arguments have the macros of gin files.
  """
  with macro_names():
    return constructor()
