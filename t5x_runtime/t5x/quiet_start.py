"""Imports TensorFlow late, without what it prints while it loads; and triton before it.

Its C++ side writes to file descriptor 2 before any log level applies. And nothing of it
is garbage: looking for some, while it loads and when Python ends, takes as long again.
"""

import contextlib
import ctypes
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile


def announce() -> None:
  """Says at once that the command has started, unless QUIET is set by a flag."""
  flags = "".join(sys.argv).replace(" ", "")
  if "--gin.QUIET=True" not in flags:
    print("[  0.0 s] Loading JAX.", file=sys.stderr, flush=True)


def import_seqio() -> None:
  """Imports seqio, TensorFlow with it, and adds the tasks that waited for it."""
  import seqio  # noqa: F401

  from t5x import plain_tasks

  plain_tasks.add_deferred()


class _Quiet(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Imports tensorflow quietly when it is first imported."""

  def find_spec(self, name, path=None, target=None):
    """Returns tensorflow's spec, with this loader; None for other modules."""
    if name != "tensorflow":
      return None
    self._found = importlib.machinery.PathFinder.find_spec(name, path)
    return self._found and importlib.machinery.ModuleSpec(name, self)

  def create_module(self, spec):
    """Returns the imported module."""
    sys.meta_path.remove(self)
    print("Loading TensorFlow and seqio.", file=sys.stderr, flush=True)
    import_tensorflow()
    return sys.modules[spec.name]

  def exec_module(self, module):
    """Leaves the module as it was imported."""
    module.__spec__ = self._found


def quieten_tensorflow() -> None:
  """Sees to it that TensorFlow is imported quietly, whoever imports it first."""
  sys.meta_path.insert(0, _Quiet())


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
