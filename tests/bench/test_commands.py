"""Commands of the benchmark that one run each tests: the contents of their rows."""

import contextlib
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import t5x

from specdec_t5x.bench import infer, online, rules
from specdec_t5x.bench.online import CONTROL
from specdec_t5x.contrib.truncation import probs_bits
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.native import library
from tests import commands
from tests.bench.conftest import ran
from tests.e2e import runs
from tests.t5x_bridge import tiny


@pytest.mark.skipif(bool(library.problem()), reason="needs the kernels")
def test_a_certified_head_and_the_whole_one_are_timed_and_say_the_same(tmp_path):
  flags = "--vocab-size=4000", "--width=64", "--runs=3", "--rows", "1", "3"
  rows = ran("head", tmp_path, *flags)["rows"]
  assert [row["rows"] for row in rows] == [1, 3]
  for row in rows:
    assert row["same"] == "True"
    assert 1 <= row["computed"] < 400
    assert row["speed"]["median"] > 0


def test_every_k_of_a_link_has_its_bits_alpha_and_speed(pair, tmp_path):
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
      # A message has 16 bits a number, and less than 32 bytes around them.
      assert 16 * count <= row["received"] <= 16 * count + 32 * 8 / 2
      assert row["speedup_100_mbits"]["median"] > 0


RULES = {
  None: {"token", "block"},
  "independent": {"recursive", "kseq", "traversal"},
  "distinct": {"recursive", "traversal"},
}


def test_every_rule_that_can_judge_a_shape_has_a_number(
  pair, tmp_path, capsys, monkeypatch
):
  few = [("chain", chain(1)), ("2 candidates", delayed(0, 2, 1))]
  monkeypatch.setattr(rules, "shapes", lambda *sizes: few)
  flags = "--batch=2 --max-length=12 --num-inputs=3"
  rows = ran("rules", tmp_path, *pair, *flags.split())["rows"]
  greedy, sampled = ([r for r in rows if r["temperature"] == t] for t in "01")
  assert len(greedy) == 2
  assert len(sampled) == 1 + 2
  for row in rows:
    numbers = {name: x for name, x in row.items() if isinstance(x, dict)}
    expected = RULES[row["siblings"]] if row["temperature"] == "1" else {"greedy"}
    assert set(numbers) == expected
    for found in numbers.values():
      assert 1 <= found["value"] <= row["depth"] + 1
      assert found["low"] <= found["value"] <= found["high"]
  assert "| T |" in capsys.readouterr().out


def test_shapes_are_as_deep_or_as_large():
  sizes = [(name, tree.size, tree.depth) for name, tree in rules.shapes(5, 2, 2)]
  assert sizes == [
    ("chain", 5, 5),
    ("stem 2, 2 branches", 8, 5),
    ("2 candidates", 10, 5),
    ("stem 2, 2 branches", 10, 6),
    ("chain", 10, 10),
  ]


def run_in_this_process(command, stdout, stderr, check):
  """Runs `python -m t5x.infer` as `subprocess.run`, without starting Python again."""
  assert command[:3] == [sys.executable, "-m", "t5x.infer"]
  with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
    commands.infer(*command[3:])
  return subprocess.CompletedProcess(command, 0)


@pytest.mark.skipif(not hasattr(t5x, "PROVIDER"), reason="of t5x_runtime's command")
def test_the_user_s_command_is_compared_with_the_baseline(tmp_path, monkeypatch):
  monkeypatch.chdir(runs.ROOT)
  monkeypatch.setattr(infer, "subprocess", SimpleNamespace(run=run_in_this_process))
  monkeypatch.setattr(infer, "_processor_seconds", time.process_time)
  gin_file = runs.tiny_pair(tmp_path, 6)
  draft = tiny.save_t5x(tmp_path / "draft", tiny.DRAFT, seed=2)
  with gin_file.open("a") as file:
    file.write(f"DRAFT_CHECKPOINT_PATH = {draft!r}\n")
  flags = f"--gin-file={gin_file}", "--batches=4", "--temperatures=0", "--runs=1"
  (row,) = ran("infer", tmp_path / "out", *flags, "--gin=SEED=3")["rows"]
  assert row["equal"] == "6 of 6"
  assert row["tokens_per_call"] >= 1
  ratio = row["baseline_seconds"]["median"] / row["spec_seconds"]["median"]
  assert row["speed"]["median"] == pytest.approx(ratio)


def test_each_way_to_learn_has_its_alpha_beside_the_control_s(
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
  # Nothing is learned before the first requests are served.
  assert first[CONTROL] == first["forward_kl"] == first["reverse_kl"]
  for row in rows:
    if row["learns"] != CONTROL:
      assert row["equal"] == "3 of 3"
  assert any(row["over_control"] for row in rows)
  # What was measured is not measured again.
  monkeypatch.setattr(online, "_serve", None)
  assert ran("online", tmp_path, *domains, *flags)["rows"] == rows


def test_the_machine_is_compared_with_itself(tmp_path):
  rows = ran("machine", tmp_path, "--megabytes=1", "--runs=4", "--rows=4")["rows"]
  assert [row["value"]["median"] > 0 for row in rows] == [True] * 3
