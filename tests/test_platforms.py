"""A platform that JAX doesn't have is one sentence, from each entry point."""

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
  "bench": ["-m", "specdec_t5x.bench", "machine", "--output=unused"],
}


@pytest.mark.parametrize(
  ("name", "platform"),
  [
    ("python", "cuda"),
    ("python", "cpuu"),
    ("infer", "gpu"),
    ("train", "tpu"),
    ("bench", "typo,cuda"),
  ],
)
def test_a_platform_that_is_not_there_is_one_sentence(name, platform):
  found = subprocess.run(
    [sys.executable, *COMMANDS[name]],
    cwd=ROOT,
    check=False,
    env=environment() | {"JAX_PLATFORMS": platform},
    capture_output=True,
    text=True,
  )
  assert found.returncode == 1
  message = f"platform {platform!r}, the value of JAX_PLATFORMS, but finds 'cpu'"
  [line] = [line for line in found.stderr.splitlines() if message in line]
  assert "Set JAX_PLATFORMS=cpu" in line
  assert len(found.stderr.splitlines()) < 12


def test_the_platform_that_is_there_is_taken():
  assert specdec_t5x.load_model(embedded.draft())
