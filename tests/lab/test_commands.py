"""The commands that measure, each on a tiny pair."""

import json

import numpy as np
import pytest

from benchmarks.table import tables
from lab.__main__ import main
from lab.link.bits import probs_bits
from lab.online import command
from lab.online.command import CONTROL
from lab.peers import programs
from specdec_t5x.native import library
from tests.benchmarks.conftest import named
from tests.benchmarks.conftest import steady_parts as steady_parts
from tests.lab.conftest import ran
from tests.t5x_bridge import tiny


@pytest.mark.slow
@pytest.mark.skipif(bool(library.problem()), reason="needs the kernels")
def test_a_certified_head_and_the_full_head_are_timed_and_agree(tmp_path):
  flags = "--vocab-size=4000 --width=64 --runs=3 --rows 1 3"
  rows = ran("head", tmp_path, *flags.split())["rows"]
  assert [row["rows"] for row in rows] == [1, 3]
  for row in rows:
    assert row["same"] == "True"
    assert 1 <= row["computed"] < 400
    assert row["speed"]["median"] > 0


@pytest.mark.slow
def test_every_k_has_bits_alpha_and_speed(pair, tmp_path):
  flags = "--gamma=2 --batch=2 --max-length=12 --num-inputs=2 --num-timed=2"
  flags += " --top-k 2 0 --mbits 100"
  rows = ran("link", tmp_path, *pair, *flags.split())["rows"]
  assert [row["kept"] for row in rows] == ["-", "all, float32", 2, "all, 64"]
  expected = (6, None, probs_bits(2, 64), probs_bits(64, 64))
  numbers = (1, None, 1 + 2 * 2, 1 + 64)
  for row, bits, count in zip(rows, expected, numbers, strict=True):
    assert row["bits"] == bits
    assert 0 <= row["alpha"]["value"] <= 1
    if bits:
      # A message has 16 bits per number, and less than 32 bytes of overhead.
      assert 16 * count <= row["received"] <= 16 * count + 32 * 8 / 2
      assert row["speedup_100_mbits"]["median"] > 0


@pytest.mark.slow
def test_every_loss_has_alpha_and_the_gain_over_the_control(
  domains, tmp_path, monkeypatch
):
  pytest.importorskip("matplotlib")
  flags = "--requests=6 --window=3 --interval=3 --kept=4 --gamma=2 --max-length=10"
  flags = [*flags.split(), "--input-length=32", "--learning-rate=0.02"]
  rows = ran("online", tmp_path, *domains, *flags, "--chart")["rows"]
  assert (tmp_path / "online.svg").exists()
  ways = [(r["learns"], r["domain"], r["first"], r["last"]) for r in rows]
  assert ways == [
    (way, domain, first, first + 3)
    for way in (CONTROL, "forward_kl", "reverse_kl")
    for domain in ("one", "two")
    for first in (0, 3)
  ]
  first = {way: r["alpha"] for r in reversed(rows) if (way := r["learns"])}
  # The draft learns nothing before the end of the first requests.
  assert first[CONTROL] == first["forward_kl"] == first["reverse_kl"]
  for row in rows:
    if row["learns"] != CONTROL:
      assert row["equal"] == "3 of 3"
  assert any(row["over_control"] for row in rows)
  # A second run measures nothing.
  monkeypatch.setattr(command, "serve", pytest.fail)
  assert ran("online", tmp_path, *domains, *flags)["rows"] == rows


@pytest.mark.slow
def test_an_output_that_repeats_its_input_is_copied(files, tmp_path, capsys):
  path = tmp_path / "texts.jsonl"
  sentences = tiny.sentences(3, seed=4)
  lines = [json.dumps({"article": text, "highlights": text}) for text in sentences]
  path.write_text("\n".join(lines))
  flags = "--size=tiny --gamma=3 --matches 1 --input-length=48 --max-length=48"
  flags = [*named({"texts": path}, vocabulary=files["vocabulary"]), *flags.split()]
  (row,) = ran("copy", tmp_path, *flags)["rows"]
  assert (row["copy_match"], row["equal"]) == (1, "3/3")
  assert row["tokens_per_call"]["value"] > 2
  assert row["alpha"]["value"] > 0.7
  assert "| 3/3   |" in capsys.readouterr().out
  # The first sentences of the input are copied as well.
  path.write_text('{"article": "the old dog. a cat. the man"}\n')
  (row,) = ran("copy", tmp_path, *flags, "--lead=1")["rows"]
  assert row["equal"] == "1/1"
  assert row["alpha"]["value"] > 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("steady_parts")
def test_heads_draft_trees_and_a_draft_runs_in_another_process(
  pair, heads, tmp_path, monkeypatch
):
  methods = tables("benchmarks")["methods"]
  chains = [way for way in methods["ways"] if way["of"] == ["heads"]]
  monkeypatch.setitem(methods, "ways", chains)
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
  # A table of shapes has the shape's own length, and no policy that may draft nothing.
  assert all(row["drafted"] > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.usefixtures("counted_clock")
def test_every_plan_gives_the_plain_outputs(pair, tmp_path, capsys):
  flags = "--draft=copy --max-length=24 --num-inputs=3 --gamma=2 --levels=2"
  found = ran("hierarchy", tmp_path, *pair, *flags.split())
  assert [row["levels"] for row in found["rows"]] == [0, 1, 2]
  assert found["rows"][2]["plan"].startswith("copy")
  assert {row["identical"] for row in found["rows"]} == {"3/3"}
  for row in found["rows"]:
    assert row["ms_predicted"] > 0
    assert row["speed"] == pytest.approx(found["rows"][0]["ms"] / row["ms"])
    assert row["tokens_per_call"]["value"] >= 1
  stand = np.array(list(found["survival"].values()))
  assert ((stand >= 0) & (stand <= 1)).all()
  assert (np.diff(stand, axis=1) <= 0).all()
  assert "ms a token predicted" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("name", "flags", "message"),
  [
    ("layers", "--trials=-1", "--trials must be at least 0"),
    ("layers", "--gamma=0", "--gamma must be at least 1"),
    ("model", "--topology v9:1x1", "Expected a topology such as v4:1x1x1"),
    ("model", "--widths 2 4", "Expected width 1"),
    ("hierarchy", "", "expected NAME=DIR, `copy` or `quantized`, got no draft"),
    ("tree", "--draft {draft}", "expected heads, but not EAGLE's, got 'draft_model'"),
    ("link", "--draft copy", "a link needs a draft model or a table of n-grams"),
    ("online", "--requests=6 --domain=three", "expected NAME=FILE, of a file that"),
    (
      "online",
      "--requests=7 --input-length=32",
      "expected --requests=7 lines of at most --input-length=32",
    ),
    (
      "copy",
      "--texts=texts.jsonl --vocabulary={vocabulary} --size=tiny --source=story",
      "story",
    ),
    ("methods", "--draft copy --also others.txt", "--also: expected NAME=FILE"),
  ],
)
def test_bad_flags_are_refused(
  name, flags, message, files, domains, tmp_path, capsys, monkeypatch
):
  pair = named({n: files[n] for n in ("target", "vocabulary", "inputs")})
  inputs = {"model": [], "copy": [], "online": domains}.get(name, pair)
  monkeypatch.chdir(tmp_path)
  (tmp_path / "texts.jsonl").write_text('{"article": "a", "highlights": "a"}')
  flags = flags.format(**files)
  output = tmp_path / "output"
  assert main([name, *inputs, *flags.split(), f"--output={output}"]) == 1
  printed = capsys.readouterr()
  assert message in printed.err
  assert printed.err.count("error:") == 1
  assert printed.out == ""
  assert not output.exists()
