"""Settings' names in messages: gin's macros, or Python's arguments.

The library's messages use the macros of gin files. An entry point of Python renames
them to its caller's arguments.
"""

import contextlib
import contextvars
import re
from collections.abc import Iterator

# Python's name of each macro that isn't the macro in lower case.
_OTHER = {
  "ACTIVATION_DTYPE": "dtype",
  "CHECKPOINT_PATH": "checkpoint",
  "COPY_MATCH": "match",
  "DRAFT_CHECKPOINT_PATH": "draft",
  "GAMMA_POLICY": "policy",
  "LOWER_GAMMA": "gamma of the lower drafter",
  "PARAM_DTYPE": "dtype",
  "TARGET_CHECKPOINT_PATH": "target",
  "TASK_FEATURE_LENGTHS": "max_length",
  "TOPK": "top_k",
  "TOPP": "top_p",
  "VERIFICATION": "rule",
  "VOCABULARY_PATH": "vocabulary",
}
_SAME = (
  *("BATCH_SIZE", "BITS", "BLOCK", "DRAFTER", "DTYPE", "GAMMA", "GROUP", "LENIENCE"),
  *("NUM_CANDIDATES", "PRODUCTS", "SAME_BITS", "SEED", "SHAPE", "SIBLINGS"),
  *("SKIP", "SLOTS", "TEMPERATURE", "WEIGHTS", "WHOLE", "WINDOW"),
)
_ARGUMENTS = _OTHER | {name: name.lower() for name in _SAME}
_is_python = contextvars.ContextVar("is_python", default=False)
_MACRO = re.compile(rf"(?:--gin\.)?\b({'|'.join(_ARGUMENTS)})\b")


def in_python(message: str) -> str:
  """Returns a message with Python's names of settings.

  >>> in_python("NUM_CANDIDATES=2 needs a draft model. Set --gin.GAMMA_POLICY.")
  'num_candidates=2 needs a draft model. Set policy.'
  """
  return _MACRO.sub(lambda match: _ARGUMENTS[match[1]], message)


def shown(message: str) -> str:
  """Returns a message with the names of settings that its reader uses."""
  return in_python(message) if _is_python.get() else message


@contextlib.contextmanager
def python_names() -> Iterator[None]:
  """Renames the settings in lines that the block prints, and in its ValueError."""
  before = _is_python.get()
  _is_python.set(True)
  try:
    yield
  except ValueError as error:
    error.args = tuple(
      in_python(part) if isinstance(part, str) else part for part in error.args
    )
    raise
  finally:
    # Not `reset`: a generator may end in another thread.
    _is_python.set(before)
