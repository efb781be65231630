"""Compares installed releases with the releases of the last passed test suite.

python -m specdec_t5x.doctor.tested            # prints a line if one is newer
python -m specdec_t5x.doctor.tested --record   # after `make test` has passed
"""

import importlib.metadata
import json
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence

RECORD = pathlib.Path(__file__).with_name("tested.json")


def read() -> dict[str, str]:
  """Returns the newest releases that the test suite passed with, by package."""
  return json.loads(RECORD.read_text())


def installed() -> dict[str, str]:
  """Returns the installed releases of the recorded packages."""
  return {name: importlib.metadata.version(name) for name in read()}


def warning(found: Mapping[str, str], tested: Mapping[str, str]) -> str | None:
  """Returns a line with the releases newer than the tested releases, if any.

  Args:
    found: installed releases by package.
    tested: tested releases by package.

  >>> warning({"jax": "0.12.1"}, {"jax": "0.12.0.1"})
  'Not tested yet with jax 0.12.1 (tested with 0.12.0.1).'
  >>> warning({"jax": "0.10.2"}, {"jax": "0.12.0.1"})
  """
  newer = [
    f"{name} {version} (tested with {tested[name]})"
    for name, version in found.items()
    if _numbers(version) > _numbers(tested[name])
  ]
  return f"Not tested yet with {', '.join(newer)}." if newer else None


def _numbers(version: str) -> tuple[int, ...]:
  return tuple(map(int, re.findall(r"\d+", version)))


def main(arguments: Sequence[str]) -> None:
  """Prints the warning, if any; with --record writes the installed releases."""
  if list(arguments) == ["--record"]:
    newest = {
      name: max(version, read()[name], key=_numbers)
      for name, version in installed().items()
    }
    RECORD.write_text(json.dumps(newest, indent=2, sort_keys=True) + "\n")
  elif line := warning(installed(), read()):
    print(line)


if __name__ == "__main__":
  main(sys.argv[1:])
