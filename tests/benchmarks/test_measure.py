"""A run has a row for every way, batch, temperature and domain, timed in turn."""

import itertools
import os
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import environment, timed
from benchmarks.cells import Cells
from benchmarks.environment import ROOT
from benchmarks.measure import COUNTED, PLAIN, Measured, Run, Setting, Way, measure
from benchmarks.study import Group
from benchmarks.timed import Costs, alternate, median_ratio
from specdec_t5x.core import theory

# An iteration drafts 4 tokens in 2 s and scores the block in 10 s. A token takes 5 s.
COSTS = Costs(
  gamma=4, plain=5.0, plain_start=20.0, iteration=12.0, start=23.0, draft=2.0
)


def test_programs_take_turns_and_the_first_round_is_not_timed():
  calls = []

  def program(name):
    return lambda value: calls.append((name, value)) or np.ones(value)

  timed = alternate({"a": program("a"), "b": program("b")}, [1, 2])
  assert calls == [("a", 1), ("b", 1), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
  assert [result.size for result in timed["b"].results] == [1, 2]
  assert (timed["a"].seconds > 0).all()
  assert timed["a"].seconds.shape == (2,)


def test_the_ratio_is_the_median_of_ratios_and_noise_is_refused():
  spread = median_ratio(np.array([1.0, 2.0, 30.0]), np.array([1.0, 1.0, 1.0]))
  assert (spread.low, spread.median, spread.high) == (1.5, 2.0, 16.0)
  with pytest.raises(ValueError, match=r"time of \['plain'\] is lost in noise"):
    timed.medians({"plain": np.array([-1.0, 0.0, 1.0])})


def test_predicted_speeds_match_a_hand_calculation_and_theorem_3_8():
  # 10 tokens in 4 calls; 8 of 10 drafted tokens are accepted.
  columns = dict.fromkeys((*COUNTED, "plain_emitted", "identical", "outputs"), 10)
  columns |= {"target_calls": 4, "accepted": 8, "acceptance_mass": 8}
  columns |= {"seconds": 70, "plain_seconds": 70}
  columns = {name: np.array([value]) for name, value in columns.items()}
  row = Measured(Setting(4, 0.0), columns, COSTS).row()
  assert (row["c"], row["block"]) == (0.1, 2)
  assert row["predicted"].median == pytest.approx(70 / 71)
  assert row["ratio"] == pytest.approx(71 / 70)
  theorem = theory.walltime_improvement(0.8, 4, 0.1)
  assert row["theorem"] == pytest.approx(theorem)
  # Theorem 3.8 has a block as fast as a token: an iteration of 7 s.
  assert row["with_block"] == pytest.approx(theorem * 7 / 12)


def decode(emitted, token):
  """Returns a decode that emitted some tokens."""
  counts = SimpleNamespace(**dict.fromkeys(COUNTED, np.array([emitted])))
  return SimpleNamespace(statistics=counts, tokens=np.full((1, 3), token))


def ways(temperature, batch):
  """Returns three ways; one way emits a different token than plain decoding."""
  names = {PLAIN: 5, "same": 5, "other": 6}
  return {
    name: Way(lambda n, token=token: decode(n + batch, token), columns={"x": 1})
    for name, token in names.items()
  }


def test_every_combination_has_a_row_and_is_compared_with_the_plain_loop():
  run = Run(ways, lambda batch: (0, 1, 4), (0.0, 1.0), (2, 4), domains="aba")
  rows = list(measure(run))
  expected = itertools.product("01", (2, 4), "ab", (PLAIN, "same", "other"))
  found = [(x.values["temperature"], x.batch, x.domain, x.key) for x in rows]
  assert found == list(expected)
  assert [row.values["tokens"] for row in rows[:4]] == [(0 + 2) + (4 + 2)] * 3 + [1 + 2]
  equal = {(x.values["temperature"], x.key): x.values["identical"] for x in rows[::-1]}
  assert (equal["0", "same"], equal["0", "other"]) == ("2/2", "0/2")
  assert equal["1", "same"] == "sampled"
  assert {row.values["x"] for row in rows} == {1}
  assert rows[0].values["speed"].median == 1


@pytest.mark.parametrize(("num_tokens", "inputs"), [(1, 16), (200, 32), (10_000, 40)])
def test_inputs_are_decoded_until_there_are_enough_tokens(num_tokens, inputs):
  run = Run(ways, lambda batch: range(40), num_tokens=num_tokens)
  assert {row.cell.inputs for row in measure(run)} == {inputs}


@pytest.mark.parametrize(("timed", "inputs"), [(True, 2), (False, 3)])
def test_rows_that_pad_a_group_do_not_count(timed, inputs):
  """A timed input is a group, and a counted input is a row of a group."""
  groups = [Group(0, None, 2), Group(2, None, 1)]
  way = Way(lambda group: [decode(1, 5), decode(7, 5)])
  both = {PLAIN: way, "same": way}
  run = Run(lambda *_: both, lambda _: groups, setting=Setting(0, 0.0, timed=timed))
  cell = [row.cell for row in measure(run)][-1]
  assert (cell.inputs, cell.row()["tokens"]) == (inputs, 1 + 7 + 1)
  assert cell.row().get("identical") == ("3/3" if timed else None)


def test_half_of_a_cell_is_no_cell_and_is_measured_again(tmp_path, monkeypatch):
  cells = Cells(tmp_path)
  key = {"gamma": 3, "temperature": 0.0, "device": "cpu cpu"}

  def full(file):
    raise OSError("No space left on device")

  with monkeypatch.context() as patch:
    patch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
      cells.add(key, {"alpha": 0.5})
  assert any(cells.folder.iterdir())
  assert cells.find(key) is None
  assert cells.get(key, lambda: {"alpha": 0.6}) == {"alpha": 0.6}
  assert Cells(tmp_path).find(dict(reversed(key.items()))) == {"alpha": 0.6}
  assert cells.find({**key, "gamma": 4}) is None


def test_only_code_that_decodes_or_times_changes_the_digest(tmp_path):
  found = [list(ROOT.glob(pattern)) for pattern in environment.SOURCES]
  assert all(found)
  assert not any(ROOT / "benchmarks/table.py" in paths for paths in found)
  digests = set()
  for name, text in (("a", ""), ("a", "MORE = 1\n"), ("b", "")):
    (tmp_path / f"{name}.py").write_text(text)
    # The cache is skipped, because the folder changes.
    digests.add(environment.code.__wrapped__(tmp_path, ["*.py"]))
  assert len(digests) == 3
