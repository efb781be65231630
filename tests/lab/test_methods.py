"""The comparison of peers with our methods: installed peers and the rows of peers."""

import pytest

from benchmarks import jobs
from benchmarks.table import tables
from lab.peers import CTRANSLATE2, HUGGING_FACE, UPSTREAM, importable, methods, programs
from tests.benchmarks.conftest import steady_parts as steady_parts
from tests.lab.conftest import ran

pytestmark = pytest.mark.slow

FLAGS = "--rules=0 --max-length=10 --num-inputs=2 --gamma=3"


def test_installed_peers_are_found(pair):
  args = methods.COMMAND.parser().parse_args([*pair, *FLAGS.split(), "--output=none"])
  found = methods.installed(jobs.load(args), args)
  assert (programs.HF_PLAIN in found) == importable(HUGGING_FACE)
  assert (programs.CT2["int8"] in found) == importable(CTRANSLATE2)
  assert (programs.UPSTREAM in found) == importable(UPSTREAM)


@pytest.mark.usefixtures("steady_parts")
def test_heads_draft_trees_and_a_draft_runs_in_another_process(
  pair, heads, tmp_path, monkeypatch
):
  chain = {"of": ["heads"], "shape": "chain"}
  monkeypatch.setitem(tables("benchmarks")["methods"], "ways", [chain])
  monkeypatch.setattr(programs, "programs", lambda *_: {})
  flags = "--max-length=10 --num-inputs=2 --gamma=3 --temperatures=0 --sizes=2"
  drafts = f"--draft=parallel={heads['parallel']}"
  rows = ran("methods", tmp_path, *pair, drafts, *flags.split())["rows"]
  shapes = [(row["draft"], row["shape"]) for row in rows]
  assert shapes == [
    ("parallel", "chain"),
    ("small", "in another process"),
    ("parallel", "pruned to 2"),
    ("parallel", "tree of 2"),
  ]
  assert {row["identical"] for row in rows} == {"2/2"}
  assert all(row["c"] >= 0 for row in rows)
