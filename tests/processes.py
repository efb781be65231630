"""Programs of the tests that need a process of their own."""

import json
import os
import subprocess
import sys

from tests.real_data import ROOT


def on_devices(count, *arguments):
  """Runs Python on so many virtual CPU devices; returns the JSON that it prints."""
  flags = f"--xla_force_host_platform_device_count={count}"
  environment = {
    **os.environ,
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}",
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join(sys.path),
  }
  process = subprocess.run(
    [sys.executable, *arguments],
    env=environment,
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0, process.stderr[-3000:]
  return json.loads(process.stdout.splitlines()[-1])
