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

  The flags are tried in a separate process, once per release of jaxlib.

  Args:
    flags: flags of XLA_FLAGS, separated.
    folder: the folder of the kept answers.
  """
  answers_file = folder / f"xla_flags-{importlib.metadata.version('jaxlib')}.json"
  answers = json.loads(answers_file.read_text()) if answers_file.is_file() else {}
  key = " ".join(flags)
  if key not in answers:
    working = flags if _starts(flags) else [flag for flag in flags if _starts([flag])]
    answers[key] = list(working)
    folder.mkdir(parents=True, exist_ok=True)
    answers_file.write_text(json.dumps(answers))
  return answers[key]


def _starts(flags: Sequence[str]) -> bool:
  settings = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}
  command = [sys.executable, "-c", _START]
  done = subprocess.run(
    command, env=os.environ | settings, capture_output=True, check=False
  )
  return done.returncode == 0
