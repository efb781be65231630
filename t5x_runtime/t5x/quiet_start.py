"""Imports TensorFlow late and without output, and loads triton before TensorFlow.

TensorFlow's C++ code writes to file descriptor 2 before log levels apply. TensorFlow's
objects are never garbage: garbage collection during the import and at the end of Python
takes as long as the import itself.
"""

import contextlib
import ctypes
import gc
import importlib.util
import os
import sys
import tempfile

from t5x import messages


def announce() -> None:
  """Prints that the command has started, unless a flag sets QUIET."""
  flags = "".join(sys.argv).replace(" ", "")
  if "--gin.QUIET=True" not in flags:
    messages.say("[  0.0 s] Loading JAX.")


def import_seqio() -> None:
  """Imports TensorFlow quietly and seqio, and adds the deferred tasks."""
  if "tensorflow" not in sys.modules:
    messages.say("Loading TensorFlow and seqio.")
    _import_tensorflow()
  import seqio  # noqa: F401

  from t5x import plain_tasks

  plain_tasks.add_deferred()


def _import_tensorflow() -> None:
  """Imports TensorFlow without output; prints the output on stderr after an error."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  messages.stderr().flush()
  try:
    terminal = os.dup(2)
  except OSError:  # Nothing can be printed.
    import tensorflow

    return
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    gc.disable()
    try:
      import tensorflow  # noqa: F401
    except BaseException:
      held.seek(0)
      with contextlib.suppress(OSError):
        os.write(terminal, held.read())
      raise
    finally:
      gc.freeze()
      gc.enable()
      os.dup2(terminal, 2)
      os.close(terminal)


def load_triton() -> None:
  """Loads triton's library if triton is installed and TensorFlow is not loaded yet.

  Triton and TensorFlow both contain an LLVM. A process that loads triton after
  TensorFlow aborts; the other order is safe. PyTorch installs triton, and transformers'
  T5 imports triton.
  """
  spec = importlib.util.find_spec("triton")
  if "tensorflow" in sys.modules or spec is None or spec.origin is None:
    return
  library = os.path.join(os.path.dirname(spec.origin), "_C", "libtriton.so")
  # A missing or broken library can't be loaded later either.
  with contextlib.suppress(OSError):
    ctypes.CDLL(library)
