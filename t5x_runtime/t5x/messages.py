"""Messages of a command: best effort, because results don't depend on a reader.

The reader of stderr may end (`2>&1 | head`), and a daemon may have no stderr.
"""

import contextlib
import os
import sys
from typing import Any, TextIO


class BestEffort:
  """A stream that drops texts that can't be written.

  Args:
    stream: the stream; None drops all texts.
  """

  def __init__(self, stream: TextIO | None):
    self._stream = stream

  def write(self, text: str) -> int:
    """Writes a text, or drops the text if the stream is closed or broken."""
    # ValueError: the stream is closed, or lacks the characters.
    with contextlib.suppress(OSError, ValueError):
      if self._stream is not None:
        self._stream.write(text)
    return len(text)

  def flush(self) -> None:
    """Flushes the stream, if possible."""
    with contextlib.suppress(OSError, ValueError):
      if self._stream is not None:
        self._stream.flush()

  def isatty(self) -> bool:
    """Returns whether the stream is a terminal."""
    with contextlib.suppress(OSError, ValueError):
      return self._stream is not None and self._stream.isatty()
    return False

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


def stderr() -> BestEffort:
  """Returns the current stderr as a stream that raises no errors."""
  return BestEffort(sys.stderr)


def say(message: str) -> None:
  """Prints a line on stderr, if possible."""
  print(message, file=stderr(), flush=True)


def protect(command: str) -> None:
  """Makes the output of this process best effort, and Ctrl-C's message one line.

  A closed descriptor 1 or 2 becomes /dev/null: otherwise the next file that is opened
  gets the number, and libraries write messages into the file.

  Args:
    command: name of the command.
  """
  for number, name in ((1, "stdout"), (2, "stderr")):
    try:
      os.fstat(number)
    except OSError:
      null = os.open(os.devnull, os.O_WRONLY)
      if null != number:
        os.dup2(null, number)
        os.close(null)
    setattr(sys, name, BestEffort(getattr(sys, name)))
  usual = sys.excepthook

  def hook(kind, error, trace):
    if not issubclass(kind, KeyboardInterrupt):
      usual(kind, error, trace)
      return
    notes = getattr(error, "__notes__", ["Run the same command again."])
    say(f"{command}: interrupted. {' '.join(notes)}")

  sys.excepthook = hook
