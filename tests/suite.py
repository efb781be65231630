"""The quick tests, and the duration of every test file.

`make test` runs the quick suite: in every folder the cheapest files, up to the folder's
budget of CPU seconds. `make durations` runs every test and writes the durations.
"""

import datetime
import json
import os
import pathlib
import platform
import time
from collections.abc import Mapping

import pytest

RECORD = pathlib.Path(__file__).with_name("durations.json")
# CPU seconds of the quick suite by folder of tests/; "" is for files outside folders.
BUDGETS = {
  "": 90.0,
  "exactness": 75.0,
  "decoding": 25.0,
  "errors": 25.0,
  "drafters": 20.0,
  "e2e": 20.0,
  "network": 20.0,
  "core": 15.0,
  "t5x_bridge": 15.0,
  "contract": 10.0,
  "contrib": 25.0,
  "training": 10.0,
}
DEFAULT_BUDGET = 5.0
_KEY = "cpu and wall seconds"
_STARTED = pytest.StashKey[tuple[float, float]]()


def quick_files(
  files: Mapping[str, Mapping[str, float]], budgets: Mapping[str, float]
) -> set[str]:
  """Returns the files of the quick suite.

  Args:
    files: costs by path below tests/: "cpu" and "wall" seconds, and "slow_cpu", the
      part of "cpu" in tests that are marked slow.
    budgets: CPU seconds by folder; DEFAULT_BUDGET is for missing folders.

  >>> cost = lambda cpu, slow: {"cpu": cpu, "slow_cpu": slow}
  >>> files = {"a/x.py": cost(9, 8), "a/y.py": cost(2, 0), "a/z.py": cost(3, 0)}
  >>> sorted(quick_files(files, {"a": 3.0}))
  ['a/x.py', 'a/y.py']
  """
  quick = set()
  spent = {}
  costs = {name: cost["cpu"] - cost["slow_cpu"] for name, cost in files.items()}
  for name in sorted(costs, key=costs.get):
    folder = folder_of(name)
    spent[folder] = spent.get(folder, 0.0) + costs[name]
    if spent[folder] <= budgets.get(folder, DEFAULT_BUDGET):
      quick.add(name)
  return quick


def folder_of(name: str) -> str:
  """Returns the folder of tests/ that has a file."""
  return name.split("/")[0] if "/" in name else ""


def recorded() -> dict[str, dict[str, float]]:
  """Returns the costs of files, as last written by `make durations`."""
  return json.loads(RECORD.read_text())["files"] if RECORD.is_file() else {}


def chosen(items: list[pytest.Item], suite: str) -> list[bool]:
  """Returns whether tests are in a suite: 'quick', 'slow' (the rest) or 'all'."""
  costs = recorded()
  quick = quick_files(costs, BUDGETS)

  def is_quick(item):
    name = file_of(item.nodeid)
    is_marked = item.get_closest_marker("slow") is not None
    return not is_marked and (name in quick or name not in costs)

  return [suite == "all" or is_quick(item) == (suite == "quick") for item in items]


def costliest_first(items: list[pytest.Item]) -> None:
  """Sorts tests by the file's wall seconds, so that the last files are short."""
  costs = recorded()

  def wall(name):
    return costs.get(name, {"wall": 0.0})["wall"]

  items.sort(key=lambda item: -wall(file_of(item.nodeid)))


def file_of(nodeid: str) -> str:
  """Returns the path of a test's file below tests/."""
  return nodeid.split("::")[0].removeprefix("tests/")


def start_timing(item: pytest.Item) -> None:
  """Records the time before a test and the test's fixtures."""
  item.stash[_STARTED] = _cpu(), time.perf_counter()


def end_timing(item: pytest.Item) -> None:
  """Adds the seconds since `start_timing` to the report of the test's teardown."""
  cpu, wall = item.stash[_STARTED]
  item.user_properties.append((_KEY, (_cpu() - cpu, time.perf_counter() - wall)))


def _cpu() -> float:
  used = os.times()
  return used.user + used.system + used.children_user + used.children_system


def resident_bytes() -> int:
  """Returns the resident memory of this process on Linux, else 0."""
  statm = pathlib.Path("/proc/self/statm")
  if not statm.is_file():
    return 0
  return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Durations:
  """A plugin that adds up the costs of tests in the process that gathers reports."""

  def __init__(self):
    self._files = {}

  def pytest_runtest_logreport(self, report):
    if report.when != "teardown":
      return
    cost = self._files.setdefault(
      file_of(report.nodeid), {"wall": 0.0, "cpu": 0.0, "slow_cpu": 0.0}
    )
    for key, seconds in report.user_properties:
      if key == _KEY:
        cost["cpu"] += seconds[0]
        cost["wall"] += seconds[1]
        cost["slow_cpu"] += seconds[0] * ("slow" in report.keywords)

  def pytest_sessionfinish(self):
    files = {
      name: {key: round(value, 1) for key, value in cost.items()}
      for name, cost in sorted(self._files.items())
    }
    record = {
      "machine": f"{_processor()}, {os.cpu_count()} cores",
      "python": platform.python_version(),
      "date": datetime.date.today().isoformat(),
      "files": files,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def _processor() -> str:
  """Returns the processor's name on Linux, else the machine's type."""
  for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
    if line.startswith("model name"):
      return line.split(":", 1)[1].strip()
  return platform.machine()
