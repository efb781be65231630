"""Programs of the tests that need a separate process."""

import json
import os
import pathlib
import subprocess
import sys

from tests.real_data import ROOT


def environment(devices=1):
  count = f"--xla_force_host_platform_device_count={devices}"
  return {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {count}",
  }


def finished(*arguments, timeout=None, **settings):
  """Runs Python with settings in the environment and returns the ended process.

  A timeout is for programs that may hang: many times the duration on a slow machine.
  """
  return subprocess.run(
    [sys.executable, *map(str, arguments)],
    env={**environment(), **settings},
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
    timeout=timeout,
  )


def printed(*arguments, **settings):
  """Runs Python like `finished` and returns the printed text."""
  process = finished(*arguments, **settings)
  assert process.returncode == 0, process.stderr[-3000:]
  return process.stdout


def on_devices(count, *arguments):
  """Runs Python on virtual CPU devices and returns the printed JSON."""
  settings = {**environment(count), "JAX_PLATFORMS": "cpu"}
  return json.loads(printed(*arguments, **settings).splitlines()[-1])


def join_shards(folder: pathlib.Path) -> None:
  """Joins the files of two jobs by the shell lines of docs/how-to/many_devices.md."""
  page = (ROOT / "docs/how-to/many_devices.md").read_text()
  lines = page.split("cd runs/sharded\n")[1].split("```")[0]
  subprocess.run(["bash", "-euo", "pipefail", "-c", lines], cwd=folder, check=True)
