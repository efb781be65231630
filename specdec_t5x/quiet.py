"""Imports modules that load TensorFlow: without log lines, and after triton."""

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import sys
import tempfile
from types import ModuleType

from specdec_t5x import console


def import_quietly(name: str) -> ModuleType:
  """Imports a module with stderr held back, and shows stderr if the import fails.

  TensorFlow's C++ side writes to file descriptor 2 before any log level applies.
  Garbage collection is off, and loaded objects are frozen: TensorFlow has no garbage,
  and collections during the import and at exit would take as long as the import.
  """
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  console.STDERR.flush()
  try:
    terminal = os.dup(2)
  except OSError:  # Nothing can be printed.
    return importlib.import_module(name)
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    gc.disable()
    try:
      return importlib.import_module(name)
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

  Both contain LLVM, and a process that loads triton after TensorFlow aborts. PyTorch
  brings triton, and transformers' T5 imports triton.
  """
  spec = importlib.util.find_spec("triton")
  if "tensorflow" in sys.modules or spec is None or spec.origin is None:
    return
  library = os.path.join(os.path.dirname(spec.origin), "_C", "libtriton.so")
  # A missing or broken library can't be loaded later either.
  with contextlib.suppress(OSError):
    ctypes.CDLL(library)
