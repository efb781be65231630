"""The benchmark of decoding at a set acceptance rate."""

import subprocess
import sys

import pytest

from tests.bench.conftest import ran


@pytest.fixture(scope="module")
def found(tmp_path_factory, counted_clock):
  """Of a target that drafts for itself; of others see tests/bench/test_oracle.py."""
  folder = tmp_path_factory.mktemp("bench")
  flags = "--target tiny --gamma 2 --output-length 48 --input-length 8 --runs 2"
  flags += " --draft int4/32 --alphas 0 1"
  return ran("decode", folder, *flags.split())


def test_the_oracle_sets_alpha_and_outputs_are_the_plain_ones(found):
  none, every = found["rows"]

  def came(row):
    return [row[name]["value"] for name in ("alpha", "tokens_per_call")]

  assert (came(none), came(every)) == ([0, 1], [1, 3])
  assert none["identical"] == every["identical"] == "2/2"


def test_it_needs_neither_tensorflow_nor_seqio_nor_t5x():
  check = (
    "import sys; from specdec_t5x.bench.__main__ import main;"
    "\ntry: main(['decode', '--help'])\nexcept SystemExit: pass\n"
    "print({'tensorflow', 'seqio', 't5x'} & {n.split('.')[0] for n in sys.modules})"
  )
  ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
  assert ran.stdout.splitlines()[-1] == "set()", ran.stderr
