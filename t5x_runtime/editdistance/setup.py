"""Installs `editdistance`, by RapidFuzz, where there is no wheel of that name."""

from setuptools import setup

setup(
  name="editdistance",
  # The release with these functions; the part behind + tells the two packages apart.
  version="0.8.1+rapidfuzz",
  description="editdistance.eval by RapidFuzz, which has wheels",
  license="Apache-2.0",
  python_requires=">=3.11",
  py_modules=["editdistance"],
  install_requires=["rapidfuzz>=3"],
)
