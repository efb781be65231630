"""A run has a row for every way, batch, temperature and domain."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.measure import COUNTED, PLAIN, Measured, Run, Setting, Way, measure
from benchmarks.study import Group


def decode(emitted, token):
  """Returns a decode that emitted some tokens in half as many calls."""
  counts = dict.fromkeys(COUNTED, np.array([emitted]))
  counts["target_calls"] = np.array([emitted / 2])
  tokens = np.full((1, 3), token)
  return SimpleNamespace(statistics=SimpleNamespace(**counts), tokens=tokens)


def ways(temperature, batch):
  """Returns three ways; one way emits a different token than plain decoding."""
  names = {PLAIN: 5, "same": 5, "other": 6}
  return {
    name: Way(lambda n, token=token: decode(n + batch, token), columns={"x": 1})
    for name, token in names.items()
  }


def test_every_combination_has_a_row_and_is_compared_with_the_plain_loop():
  run = Run(ways, lambda batch: range(3), (0.0, 1.0), (2, 4))
  rows = list(measure(run))
  assert [(r.values["temperature"], r.batch, r.key) for r in rows] == [
    (temperature, batch, key)
    for temperature in "01"
    for batch in (2, 4)
    for key in (PLAIN, "same", "other")
  ]
  assert [row.values["tokens"] for row in rows[:1]] == [2 + 3 + 4]
  equal = {(r.values["temperature"], r.key): r.values["identical"] for r in rows}
  assert equal["0", "same"] == "3/3"
  assert equal["0", "other"] == "0/3"
  assert equal["1", "same"] == "sampled"
  assert {row.values["x"] for row in rows} == {1}
  assert rows[0].values["speed"].median == 1


@pytest.mark.parametrize("domains", ["aab", "aba", "abb"])
def test_every_domain_has_separate_rows(domains):
  inputs = 0, 1, 4
  run = Run(ways, lambda batch: inputs, domains=domains)
  rows = [row for row in measure(run) if row.key == "same"]
  assert [row.domain for row in rows] == ["a", "b"]
  expected = [
    sum(n + 1 for n, name in zip(inputs, domains, strict=True) if name == domain)
    for domain in "ab"
  ]
  assert [row.values["tokens"] for row in rows] == expected


@pytest.mark.parametrize(("num_tokens", "inputs"), [(1, 16), (200, 32), (10_000, 40)])
def test_inputs_are_decoded_until_there_are_enough_tokens(num_tokens, inputs):
  run = Run(ways, lambda batch: range(40), num_tokens=num_tokens)
  assert {row.cell.inputs for row in measure(run)} == {inputs}


@pytest.mark.parametrize(("timed", "inputs"), [(True, 2), (False, 3)])
def test_rows_that_pad_a_group_do_not_count(timed, inputs):
  """A timed input is a group, and a counted input is a row of a group."""
  groups = [Group(0, None, 2), Group(2, None, 1)]

  def program(group):
    return [decode(1, 5), decode(7, 5)]

  both = {PLAIN: Way(program), "same": Way(program)}
  run = Run(lambda *_: both, lambda _: groups, setting=Setting(0, 0.0, timed=timed))
  cell = [row.cell for row in measure(run)][-1]
  assert (cell.inputs, cell.row()["tokens"]) == (inputs, 1 + 7 + 1)
  assert ("seconds" in cell.columns) == timed
  if timed:
    assert cell.row()["identical"] == "3/3"


def test_a_cell_survives_json():
  cell = [row.cell for row in measure(Run(ways, lambda batch: range(2)))][-1]
  again = Measured.of(cell.setting, cell.to_result())
  assert again.row() == cell.row()
