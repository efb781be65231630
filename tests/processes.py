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


def on_devices(count, *arguments):
  """Runs Python on so many virtual CPU devices; returns the JSON that it prints."""
  process = subprocess.run(
    [sys.executable, *arguments],
    env={**environment(count), "JAX_PLATFORMS": "cpu"},
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0, process.stderr[-3000:]
  return json.loads(process.stdout.splitlines()[-1])
