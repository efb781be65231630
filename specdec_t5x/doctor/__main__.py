"""Says whether this machine can run the project: `python -m specdec_t5x.doctor`.

Prints versions, devices and the active `t5x`, then a line for each problem with what to
do. Exits with 0 where there is no problem, else with 1.
"""

import glob
import importlib
import os
import platform
import sys
import textwrap
from collections.abc import Mapping, Sequence

import specdec_t5x
from specdec_t5x.doctor import checks, facts

PACKAGES = (
  *("jax", "jaxlib", "flax", "optax", "seqio", "gin-config", "tensorflow"),
  *("tensorflow-datasets", "orbax-checkpoint", "sentencepiece", "packaging"),
  "safetensors",
)


def examine() -> dict[str, list[checks.Finding]]:
  """Returns the findings about this machine, by section."""
  ranges = facts.stated_ranges()
  code = os.path.dirname(os.path.dirname(os.path.abspath(specdec_t5x.__file__)))
  names = dict.fromkeys([*PACKAGES, *ranges])
  present = [extra for extra, files in facts.ACCELERATORS.items() if glob.glob(files)]
  requested = os.environ.get("JAX_PLATFORMS", "")
  devices, error = facts.jax_devices()
  platforms = {device.platform for device in devices}
  return {
    "machine": [
      checks.python(sys.version_info[:3]),
      checks.Finding("platform", platform.platform()),
      checks.Finding("cores", str(os.cpu_count())),
      checks.Finding("memory", checks.gigabytes(facts.memory())),
    ],
    "packages": [
      checks.project(specdec_t5x.__version__, facts.version("specdec_t5x"), code),
      *(
        checks.package(name, facts.version(name), ranges.get(name, ""))
        for name in names
      ),
      *checks.triton(facts.version("triton")),
    ],
    "t5x": checks.t5x(*facts.active_t5x(), facts.installed_t5x(sys.path)),
    "devices": [
      *checks.devices(devices, error, present, requested),
      *checks.fusions(facts.version("jaxlib"), platforms),
      *(_products() if "cpu" in platforms else ()),
      *checks.kept(facts.kept_folders()),
    ],
  }


def _products() -> list[checks.Finding]:
  reason, path = facts.native_products()
  library = importlib.import_module("specdec_t5x.native.library")
  instructions = library.bytes_by() if reason is None else None
  return [checks.products(reason, path), checks.rounded(instructions)]


def render(sections: Mapping[str, Sequence[checks.Finding]]) -> list[str]:
  """Returns the report: sections in columns, then hints, then problems."""
  findings = [finding for part in sections.values() for finding in part]
  column = max(len(finding.name) for finding in findings) + 4
  lines = []
  for title, part in sections.items():
    lines += [title, *(line for x in part for line in _columns(x, column)), ""]
  lines += [f"hint: {x.name} -> {x.fix}" for x in findings if x.fix and not x.problem]
  problems = [f"problem: {x.problem} -> {x.fix}" for x in findings if x.problem]
  return lines + (problems or ["no problem found"])


def _columns(finding, column):
  wrapper = textwrap.TextWrapper(88, f"  {finding.name}".ljust(column), " " * column)
  # Paths stay whole.
  wrapper.break_long_words = False
  wrapper.break_on_hyphens = False
  return wrapper.wrap(finding.value)


def main() -> int:
  """Prints the report; returns 1 if there is a problem, else 0."""
  # Set before JAX and TensorFlow load: no log, and no claim on most of a GPU's memory.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  sections = examine()
  print("\n".join(render(sections)))
  return int(any(x.problem for part in sections.values() for x in part))


if __name__ == "__main__":
  sys.exit(main())
