"""How much of a checkpoint is on its way at once: groups, kept by both formats."""

import time

import pytest

from tests.contract.conftest import IS_RUNTIME
from tests.contract.test_checkpoints import make_state, restore, save

if not IS_RUNTIME:
  pytest.skip("upstream T5X has its own limits", allow_module_level=True)

from t5x import checkpoint_arrays, checkpoint_memory, orbax_format

MIB = 2**20


def test_groups_are_full_largest_first_and_at_least_a_64th():
  sizes = {"a": 1 * MIB, "b": 40 * MIB, "c": 20 * MIB, "d": 11 * MIB, "e": 12 * MIB}
  assert checkpoint_memory.groups(sizes) == [["b"], ["c", "e"], ["d", "a"]]
  many = {str(i): 64 * MIB for i in range(128)}  # 8 GiB: 128 MiB at once.
  assert {len(group) for group in checkpoint_memory.groups(many)} == {2}


@pytest.mark.parametrize("layout", ["t5x", "orbax"])
def test_arrays_of_a_group_alone_are_on_their_way(layout, monkeypatch, tmp_path):
  reads, now = [], []

  def noted(names, read, *args):
    now.extend(names)
    time.sleep(0.01)
    reads.append(sorted(now))
    result = read(*args)
    del now[: len(names)]
    return result

  read, read_group = checkpoint_arrays.StoredArray.read, orbax_format._read_group
  monkeypatch.setattr(
    checkpoint_arrays.StoredArray,
    "read",
    lambda entry, *args: noted([entry.name], read, entry, *args),
  )
  monkeypatch.setattr(
    orbax_format, "_read_group", lambda *args: noted(args[2], read_group, *args)
  )
  # Each array of `make_state` but the step fills that.
  monkeypatch.setattr(checkpoint_memory, "_LEAST", 64)
  monkeypatch.setattr(checkpoint_memory, "_PART", 0)
  state = make_state()
  restored = restore(save(layout, tmp_path, state), state)
  assert {len(names) for names in reads} == {1}
  assert len(reads) == len(restored.params) + 1
