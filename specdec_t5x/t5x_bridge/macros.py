"""Names settings by the macros of gin files in errors of a run."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from specdec_t5x import programs
from specdec_t5x.core.knobs import KnobError
from specdec_t5x.platforms import check_platform


@contextlib.contextmanager
def macro_names() -> Iterator[None]:
  """Raises a `KnobError` of the block as a ValueError with the macros of gin files."""
  try:
    yield
  except KnobError as error:
    raise ValueError(error.in_gin()) from error


def made(constructor: Callable[[], Any]) -> Any:
  """Returns the object of a constructor, whose arguments gin makes.

  Errors of the constructor and of its arguments have the macros of gin files. gin makes
  the model by this function before a run uses JAX, so this function also checks the
  platform and keeps compiled programs.
  """
  check_platform()
  programs.keep()
  with macro_names():
    return constructor()


def missing_pair(config: str, example: str) -> NoReturn:
  """Raises an error that explains how to add a pair, as in `example`, to `config`."""
  raise ValueError(
    f"{config} needs a target and a draft: add --gin_file={example} or another file of "
    "configs/pairs/ with --gin.TARGET_CHECKPOINT_PATH and --gin.DRAFT_CHECKPOINT_PATH, "
    "or a gin file of your own with the two paths, VOCABULARY_PATH and the sizes of "
    "the networks."
  )
