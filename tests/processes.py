"""Programs of the tests that need a process of their own."""

import json
import os
import subprocess
import sys

from tests.real_data import ROOT


def environment(devices=1):
  """Returns the environment of a command that has so many virtual CPU devices."""
  count = f"--xla_force_host_platform_device_count={devices}"
  return {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {count}",
  }


def printed(*arguments, timeout=None, **settings):
  """Runs Python to its end, these settings in its environment; returns what it prints.

  A timeout is for what may hang: many times what it takes on a slow machine.
  """
  paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
  process = subprocess.run(
    [sys.executable, *map(str, arguments)],
    env={**os.environ, **paths, **settings},
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
    timeout=timeout,
  )
  assert process.returncode == 0, process.stderr[-3000:]
  return process.stdout


def on_devices(count, *arguments):
  """Runs Python on so many virtual CPU devices; returns the JSON that it prints."""
  settings = {**environment(count), "JAX_PLATFORMS": "cpu"}
  return json.loads(printed(*arguments, **settings).splitlines()[-1])
