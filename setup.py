"""Installs specdec_t5x. The extras name what only some uses need."""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
INIT = (HERE / "specdec_t5x" / "__init__.py").read_text()
VERSION = re.search(r'__version__ = "(.+)"', INIT).group(1)

# The gin files, from where they are in the repository to where a wheel has them.
FOLDERS = [
  "configs",
  *(f"configs/{p.name}" for p in (HERE / "configs").glob("[!_.]*/")),
]
# seqio needs tensorflow-text, which has no wheel for Python 3.14 yet.
WITH_TENSORFLOW = "python_version < '3.14'"
# The embedded pair, whose arrays have names that no wildcard matches.
DEMO = HERE / "specdec_t5x" / "demo"
PAIR = [str(p.relative_to(DEMO)) for p in DEMO.glob("pair/*/**/*") if p.is_file()]
CONFIGS = {f"specdec_t5x.{folder.replace('/', '.')}": folder for folder in FOLDERS}

setup(
  name="specdec_t5x",
  version=VERSION,
  description="Lossless speculative decoding for T5 in JAX, inside the T5X setup",
  long_description=(HERE / "README.md").read_text(),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  python_requires=">=3.11",
  packages=[*find_packages(include=["specdec_t5x", "specdec_t5x.*"]), *CONFIGS],
  package_dir=CONFIGS,
  package_data={
    **{name: ["*.gin"] for name in CONFIGS},
    "specdec_t5x.native": ["*.cc", "*.h"],
    "specdec_t5x.demo": ["pair/*", *PAIR],
    "specdec_t5x.native.cuda": ["*.cu", "*.cuh"],
  },
  # Why each one is here: docs/architecture.md, "Dependencies". An upper bound is the
  # next minor release after the newest one that the tests passed with.
  install_requires=[
    "jax>=0.10,<0.13",
    "flax>=0.12.6,<0.13",
    "jaxtyping>=0.3",
    "numpy>=2.0,<2.6",
    "gin-config>=0.5,<0.6",
    f"seqio>=0.0.20,<0.1; {WITH_TENSORFLOW}",
    f"tensorflow>=2.21,<2.22; {WITH_TENSORFLOW}",
    f"tensorflow-text>=2.21,<2.22; {WITH_TENSORFLOW}",
    f"tensorflow-datasets>=4.9.9,<5; {WITH_TENSORFLOW}",
    "sentencepiece>=0.2",
    "tokenizers>=0.21,<0.24",
    "msgpack>=1.1,<2",
    "safetensors>=0.8,<1",
    "orbax-checkpoint>=0.12,<0.13",
    "tensorstore>=0.1.74",
    "etils[epath]>=1.12",
    "filelock>=3.12",
    "sacrebleu>=2.4,<3",
    "rouge-score>=0.1.2,<0.2",
    "tqdm>=4.66",
  ],
  # `python -m t5x.infer` finds the package's gin files in whatever folder it is run.
  entry_points={"t5x.gin_search_paths": ["specdec_t5x = specdec_t5x:config_path"]},
  extras_require={
    "test": [
      "pytest>=8",
      "pytest-xdist>=3",
      "hypothesis>=6.100",
      "chex>=0.1.90",
      "beartype>=0.19",
      "scipy>=1.13",
      "packaging>=24",
      "rapidfuzz>=3",
      "ruff>=0.11,<0.20",
      "matplotlib>=3.9",
      "optuna>=4.2,<6",
      "grpcio>=1.70,<2",
      "nbclient>=0.10",
      "ipykernel>=6.29",
    ],
    "train": ["optax>=0.2.5,<0.3", "tqdm>=4.66"],
    "reproduce": ["matplotlib>=3.9"],
    "search": ["optuna>=4.2,<6"],
    "peers": ["torch>=2.6", "transformers>=5.23,<6", "ctranslate2>=4.8,<5"],
    # Any of the 1.x; TensorFlow brings one as well.
    "link": ["grpcio>=1.70,<2"],
    "tpu": ["jax[tpu]>=0.10,<0.13"],
    "cuda": ["jax[cuda13]>=0.10,<0.13"],
  },
  classifiers=[
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Programming Language :: Python :: 3.14",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
  ],
)
