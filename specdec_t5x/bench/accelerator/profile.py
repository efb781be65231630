"""Where a program's time goes on its device, from JAX's profiler."""

import collections
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax

_TOP = 12
# Lines that say what ran, the first kind that there is: a GPU's kernels, a TPU's
# operations, a CPU's threads.
_LINES = "Stream", "XLA Ops", "tf_XLA"
# A loop's time is that of its operations, and the CPU's threads tell of themselves.
_LEFT_OUT = "while", "end: ", "ThreadpoolListener", "Thunk"


def top_costs(run: Callable[[], Any]) -> list[dict[str, Any]]:
  """Runs a program once and returns what took longest.

  Returns:
    A row an operation: its "name", how often it ran ("count"), "ms" in all and "share"
    of all operations' time. Of the device; of the CPU where there is no other.
  """
  jax.block_until_ready(run())
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      jax.block_until_ready(run())
    (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(path))
    return summed(data.planes)


def summed(planes) -> list[dict[str, Any]]:
  """Returns the rows of a profile's planes: see `top_costs`."""
  planes = list(planes)
  devices = [plane for plane in planes if plane.name.startswith("/device:")]
  hosts = [plane for plane in planes if plane.name.startswith("/host:CPU")]
  lines = [line for plane in devices or hosts for line in plane.lines]
  kinds = ([line for line in lines if line.name.startswith(kind)] for kind in _LINES)
  spent, counts = collections.Counter(), collections.Counter()
  for line in next(filter(None, kinds), []):
    for event in line.events:
      if not event.name.startswith(_LEFT_OUT):
        spent[event.name] += event.duration_ns
        counts[event.name] += 1
  total = sum(spent.values())
  return [
    {"name": name, "count": counts[name], "ms": ns / 1e6, "share": ns / total}
    for name, ns in spent.most_common(_TOP)
  ]
