"""The comparison of peers with our methods: installed peers and the rows of peers."""

import pytest

from benchmarks import jobs
from benchmarks import methods as bench_methods
from lab.peers import CTRANSLATE2, HUGGING_FACE, UPSTREAM, importable, methods, programs
from tests.lab.conftest import ran

pytestmark = pytest.mark.slow

FLAGS = "--no-rules --max-length=10 --num-inputs=2 --gamma=3"
GREEDY = "--temperatures=0", "--sizes=3"


@pytest.fixture
def echo(monkeypatch):
  """Patches the methods to a single method, and the peers to two plain decoders."""

  def few(study, draft, gamma):
    plain = study.program(study.decode(0.0))
    return dict.fromkeys((programs.HF_GAMMA, programs.CT2["int8"]), plain)

  monkeypatch.setattr(programs, "programs", few)
  every = bench_methods.ways

  def first(*args):
    return dict([*every(*args).items()][:1])

  monkeypatch.setattr(bench_methods, "ways", first)


@pytest.mark.usefixtures("echo")
def test_the_table_has_the_installed_peers_and_names_missing_peers(pair, tmp_path):
  pytest.importorskip("matplotlib")
  found = ran("methods", tmp_path, *pair, *FLAGS.split(), *GREEDY, "--chart")
  rows = {row["draft"]: row for row in found["rows"] if row["shape"] == "peer"}
  assert list(rows) == [programs.HF_GAMMA, programs.CT2["int8"]]
  assert [row["guarantee"] for row in rows.values()] == ["GREEDY_EXACT", "LOSSY"]
  assert [row["training"] for row in rows.values()] == ["a draft model", "none"]
  assert {row["identical"] for row in rows.values()} == {"2/2"}
  assert all(row["milliseconds"] > 0 for row in rows.values())
  assert [row["shape"] for row in found["rows"]] == ["chain", "peer", "peer"]
  *_, peers, missing = found["notes"]
  assert "lab/peers/hugging_face.py" in peers
  others = [name for name in programs.PROGRAMS if name not in rows]
  assert missing == f"missing peers {', '.join(others)}"
  assert {"torch", "transformers", "ctranslate2"} <= found["environment"].keys()
  assert found["command"].startswith("python -m lab methods ")
  assert (tmp_path / "methods.svg").is_file()


@pytest.mark.usefixtures("echo")
def test_sampling_has_no_peers(pair, tmp_path):
  flags = [*FLAGS.split(), "--temperatures=1", "--sizes=3"]
  found = ran("methods", tmp_path, *pair, *flags)
  assert [row["shape"] for row in found["rows"]] == ["chain"]
  assert not [note for note in found["notes"] if "missing peers" in note]


@pytest.mark.parametrize(
  ("name", "modules"),
  [(programs.HF_PLAIN, HUGGING_FACE), (programs.CT2["int8"], CTRANSLATE2)],
)
def test_installed_peers_are_found(name, modules, pair):
  args = methods.COMMAND.parser().parse_args([*pair, *FLAGS.split(), "--output=none"])
  found = methods.installed(jobs.load(args), args)
  assert (name in found) == importable(modules)
  assert (programs.UPSTREAM in found) == importable(UPSTREAM)
