"""The benchmark of decoding at a set acceptance rate."""

import subprocess
import sys

import pytest

from tests.benchmarks.conftest import ran

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def table(tmp_path_factory, counted_clock):
  """Returns the table of a target as draft; test_oracle.py has more pairs."""
  folder = tmp_path_factory.mktemp("bench")
  flags = "--target tiny --gamma 2 --output-length 48 --input-length 8 --runs 2"
  flags += " --draft int4/32 --alphas 0 1"
  return ran("decode", folder, *flags.split())


def test_the_oracle_sets_alpha_and_keeps_the_plain_outputs(table):
  none, every = table["rows"]

  def measured(row):
    return [row[name]["value"] for name in ("alpha", "tokens_per_call")]

  assert (measured(none), measured(every)) == ([0, 1], [1, 3])
  assert none["identical"] == every["identical"] == "2/2"


def test_bench_decode_imports_no_tensorflow_seqio_or_t5x():
  check = (
    "import sys; from benchmarks.__main__ import main;"
    "\ntry: main(['decode', '--help'])\nexcept SystemExit: pass\n"
    "print({'tensorflow', 'seqio', 't5x'} & {n.split('.')[0] for n in sys.modules})"
  )
  ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
  assert ran.stdout.splitlines()[-1] == "set()", ran.stderr
