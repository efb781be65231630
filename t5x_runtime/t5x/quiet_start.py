"""Imports TensorFlow without what it prints while it loads, and triton before it.

Its C++ side writes to file descriptor 2 before any log level applies. And nothing of it
is garbage: looking for some, while it loads and when Python ends, takes as long again.
"""

import contextlib
import ctypes
import gc
import importlib.util
import os
import sys
import tempfile


def import_tensorflow() -> None:
  """Imports TensorFlow with stderr held back, and shown should the import fail."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  sys.stderr.flush()
  terminal = os.dup(2)
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    gc.disable()
    try:
      import tensorflow  # noqa: F401
    except BaseException:
      held.seek(0)
      os.write(terminal, held.read())
      raise
    finally:
      gc.freeze()
      gc.enable()
      os.dup2(terminal, 2)
      os.close(terminal)


def load_triton() -> None:
  """Loads triton's library where it is installed and TensorFlow is not loaded yet.

  Both hold an LLVM, and a process that loads triton's second aborts; PyTorch brings it,
  and transformers' T5 imports it. Loaded first it does no harm.
  """
  found = importlib.util.find_spec("triton")
  if "tensorflow" in sys.modules or found is None or found.origin is None:
    return
  library = os.path.join(os.path.dirname(found.origin), "_C", "libtriton.so")
  # One that is missing or broken can't be loaded later either.
  with contextlib.suppress(OSError):
    ctypes.CDLL(library)
