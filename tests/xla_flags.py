"""XLA flags that the installed XLA knows; an unknown flag aborts the process."""

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

_START = "import jax; jax.devices()"


def accepted(flags: Sequence[str], folder: pathlib.Path) -> list[str]:
  """Returns the flags that XLA starts with.

  The flags are tried in a process of their own, once for each release of jaxlib.

  Args:
    flags: as in XLA_FLAGS, one flag each.
    folder: keeps the answers.
  """
  kept = folder / f"xla_flags-{importlib.metadata.version('jaxlib')}.json"
  answers = json.loads(kept.read_text()) if kept.is_file() else {}
  key = " ".join(flags)
  if key not in answers:
    known = flags if _starts(flags) else [flag for flag in flags if _starts([flag])]
    answers[key] = list(known)
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(answers))
  return answers[key]


def _starts(flags: Sequence[str]) -> bool:
  wanted = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}
  command = [sys.executable, "-c", _START]
  done = subprocess.run(
    command, env=os.environ | wanted, capture_output=True, check=False
  )
  return done.returncode == 0
