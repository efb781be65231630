"""How much of a checkpoint is on its way at once: the limit, and who keeps it."""

import threading
import time
from concurrent import futures

import pytest

from tests.contract.conftest import runtime_only
from tests.contract.test_checkpoints import make_state, restore, save

pytestmark = runtime_only
MIB = 2**20


class Gauge:
  """Adds up what is inside at once, and remembers the most."""

  def __init__(self):
    self._now, self.most, self._lock = 0, 0, threading.Lock()

  def pass_through(self, count):
    with self._lock:
      self._now += count
      self.most = max(self.most, self._now)
    time.sleep(0.01)
    with self._lock:
      self._now -= count


def through_a_budget(size, counts):
  from t5x import checkpoint_memory

  budget, gauge = checkpoint_memory.Budget(size), Gauge()

  def work(count):
    with budget.hold(count):
      gauge.pass_through(count)

  with futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(work, counts))
  return gauge.most


def test_threads_keep_to_the_budget_together():
  assert through_a_budget(10, [3] * 20) == 9


def test_what_is_larger_than_the_budget_goes_alone():
  assert through_a_budget(10, [50, 4, 50, 4, 4]) == 50


def test_an_error_gives_its_bytes_back():
  from t5x import checkpoint_memory

  budget = checkpoint_memory.Budget(10)
  for _ in range(2):
    with pytest.raises(KeyError), budget.hold(10):
      raise KeyError


def test_groups_are_full_largest_first_and_at_least_a_64th():
  from t5x import checkpoint_memory

  sizes = {"a": 1 * MIB, "b": 40 * MIB, "c": 20 * MIB, "d": 11 * MIB, "e": 12 * MIB}
  assert checkpoint_memory.groups(sizes) == [["b"], ["c", "e"], ["d", "a"]]
  many = {str(i): 64 * MIB for i in range(128)}  # 8 GiB: 128 MiB at once.
  assert {len(group) for group in checkpoint_memory.groups(many)} == {2}


@pytest.fixture
def little_at_once(monkeypatch):
  """At most 64 bytes at once: each array of `make_state` but the step fills that."""
  from t5x import checkpoint_memory

  monkeypatch.setattr(checkpoint_memory, "_LEAST", 64)
  monkeypatch.setattr(checkpoint_memory, "_PART", 0)


@pytest.mark.usefixtures("little_at_once")
def test_arrays_of_the_t5x_format_are_read_within_the_budget(monkeypatch, tmp_path):
  from t5x import checkpoint_arrays

  gauge, read = Gauge(), checkpoint_arrays.StoredArray.read

  def gauged(self, *args):
    gauge.pass_through(min(self.nbytes, 64))
    return read(self, *args)

  monkeypatch.setattr(checkpoint_arrays.StoredArray, "read", gauged)
  state = make_state()
  restore(save("t5x", tmp_path, state), state)
  assert 0 < gauge.most <= 64


@pytest.mark.usefixtures("little_at_once")
def test_arrays_of_the_orbax_format_are_read_in_groups(monkeypatch, tmp_path):
  from t5x import orbax_format

  groups, read = [], orbax_format._read_group

  def noted(checkpointer, directory, args):
    groups.append(sorted(args))
    return read(checkpointer, directory, args)

  monkeypatch.setattr(orbax_format, "_read_group", noted)
  state = make_state()
  restored = restore(save("orbax", tmp_path, state), state)
  assert [group for group in groups if len(group) > 1] == []
  assert len(groups) == len(restored.params) + 1
