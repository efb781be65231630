"""Links the dependencies of the wheels in an environment from the one that runs this.

  .venv/bin/python .ci/link_dependencies.py ENVIRONMENT

Only declared dependencies are linked, extras left out, so an import that setup.py does
not declare fails in ENVIRONMENT.
"""

import importlib.metadata as metadata
import pathlib
import sys

from packaging.requirements import Requirement

ROOTS = ("specdec_t5x", "specdec-t5x-runtime")


def closure(roots):
  """Returns the distributions that the roots need, the roots left out."""
  found, pending = {}, [(name, "") for name in roots]
  seen = set()
  while pending:
    name, extra = pending.pop()
    if (name.lower(), extra) in seen:
      continue
    seen.add((name.lower(), extra))
    distribution = metadata.distribution(name)
    if name not in roots:
      found[name.lower()] = distribution
    for need in map(Requirement, distribution.requires or ()):
      if need.marker is None or need.marker.evaluate({"extra": extra}):
        pending += [(need.name, chosen) for chosen in ("", *need.extras)]
  return found.values()


def link(distribution, site):
  """Links the top-level files and folders of a distribution into site-packages."""
  for file in distribution.files or ():
    top = file.parts[0]
    if top in ("..", "__pycache__"):
      continue
    path = site / top
    if not path.exists() and not path.is_symlink():
      path.symlink_to(pathlib.Path(distribution.locate_file(top)).resolve())


if __name__ == "__main__":
  (site,) = pathlib.Path(sys.argv[1]).glob("lib/python*/site-packages")
  for each in closure(ROOTS):
    link(each, site)
