"""Installs `t5x`, T5X's inference contract, where upstream T5X is not installed."""

import importlib.metadata
import pathlib
import re
import sys
import sysconfig

from setuptools import setup

HERE = pathlib.Path(__file__).parent
NAME = "specdec-t5x-runtime"


def refuse_beside_upstream() -> None:
  """Stops where another `t5x` is installed: one would shadow the other."""
  # pip builds in an isolated environment, but `sysconfig` still names the interpreter's
  # own site-packages through its base or virtual environment.
  prefixes = {sys.prefix, sys.exec_prefix, str(pathlib.Path(sys.executable).parents[1])}
  folders = {
    sysconfig.get_path(kind, vars={"base": prefix, "platbase": prefix})
    for prefix in prefixes
    for kind in ("purelib", "platlib")
  }
  for folder in sorted(folders):
    for found in importlib.metadata.distributions(path=[folder]):
      if found.metadata["Name"] == "t5x":
        _refuse(f"t5x {found.version} in {folder}")
    package = pathlib.Path(folder) / "t5x" / "__init__.py"
    if package.is_file() and "specdec" not in package.read_text():
      _refuse(str(package.parent))


def _refuse(where: str) -> None:
  sys.exit(
    f"{NAME} provides the package t5x, but another package t5x is installed: {where}. "
    f"Uninstall the installed package (pip uninstall t5x), or do not install {NAME}: "
    "specdec_t5x runs on either package."
  )


refuse_beside_upstream()

setup(
  name=NAME,
  version=re.search(
    r'__version__ = "(.+)"', (HERE / "t5x" / "__init__.py").read_text()
  ).group(1),
  description="The inference contract of T5X, from PyPI packages alone",
  long_description=__doc__,
  long_description_content_type="text/plain",
  license="Apache-2.0",
  python_requires=">=3.11",
  packages=["t5x", "t5x.configs", "t5x.configs.runs"],
  package_data={"t5x.configs.runs": ["*.gin"]},
  install_requires=[
    "absl-py>=2.1",
    "etils[epath]>=1.12",
    "filelock>=3.12",
    "flax>=0.12.6,<0.13",
    "gin-config>=0.5,<0.6",
    "jax>=0.10,<0.13",
    "numpy>=2.0,<2.6",
    "orbax-checkpoint>=0.12,<0.13",
    "seqio>=0.0.20,<0.1",
    "tensorflow>=2.21,<2.22",
    "tensorstore>=0.1.74",
    "tqdm>=4.66",
  ],
)
