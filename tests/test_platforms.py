"""Every entry point reports an unavailable platform in one sentence."""

import subprocess
import sys

import pytest

import specdec_t5x
from specdec_t5x.demo import embedded
from tests.processes import environment
from tests.real_data import ROOT

_LOAD = f"import specdec_t5x; specdec_t5x.load_model({embedded.target()!r})"
COMMANDS = {
  "python": ["-c", _LOAD],
  "infer": ["-m", "t5x.infer", "--gin_file=configs/spec_ende.gin"],
  "train": ["-m", "specdec_t5x.train", "--gin_file=configs/train/draft.gin"],
  "benchmarks": ["-m", "benchmarks", "machine", "--output=unused"],
}


@pytest.mark.parametrize(
  ("name", "platform"),
  [
    ("python", "cuda"),
    ("python", "cpuu"),
    ("infer", "gpu"),
    ("train", "tpu"),
    ("benchmarks", "typo,cuda"),
  ],
)
def test_an_unavailable_platform_is_reported_in_one_sentence(name, platform):
  process = subprocess.run(
    [sys.executable, *COMMANDS[name]],
    cwd=ROOT,
    check=False,
    env=environment() | {"JAX_PLATFORMS": platform},
    capture_output=True,
    text=True,
  )
  assert process.returncode == 1
  message = f"platform {platform!r}, the value of JAX_PLATFORMS, but finds 'cpu'"
  [line] = [line for line in process.stderr.splitlines() if message in line]
  assert "Set JAX_PLATFORMS=cpu" in line
  # No frame of JAX; Python 3.13 prints three lines and more per frame.
  assert process.stderr.count('  File "') < 6


def test_the_available_platform_is_used():
  assert specdec_t5x.load_model(embedded.draft())
