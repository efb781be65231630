"""The comparison of peers with our methods: installed peers and the rows of peers."""

import pytest

from benchmarks import jobs
from lab.peers import CTRANSLATE2, HUGGING_FACE, UPSTREAM, importable, methods, programs

pytestmark = pytest.mark.slow

FLAGS = "--rules=0 --max-length=10 --num-inputs=2 --gamma=3"


@pytest.mark.parametrize(
  ("name", "modules"),
  [(programs.HF_PLAIN, HUGGING_FACE), (programs.CT2["int8"], CTRANSLATE2)],
)
def test_installed_peers_are_found(name, modules, pair):
  args = methods.COMMAND.parser().parse_args([*pair, *FLAGS.split(), "--output=none"])
  found = methods.installed(jobs.load(args), args)
  assert (name in found) == importable(modules)
  assert (programs.UPSTREAM in found) == importable(UPSTREAM)
