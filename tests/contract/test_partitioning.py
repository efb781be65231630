"""partitioning and InferenceState, on eight virtual devices."""

import textwrap

import jax
import numpy as np
import pytest
from t5x import partitioning, train_state

from tests.contract.conftest import IS_RUNTIME, runtime_only, tiny_model, tiny_state
from tests.processes import on_devices

PROGRAM = """
  import json, sys
  import jax, jax.numpy as jnp, numpy as np
  from flax.core import freeze
  from flax.linen import partitioning as fp
  from t5x import checkpoints, partitioning, train_state
  P = jax.sharding.PartitionSpec
  kernel = np.arange(128.0, dtype=np.float32).reshape(16, 8)
  state = train_state.InferenceState.create(freeze({
    "params": {"kernel": jnp.asarray(kernel)},
    "params_axes": {"kernel_axes": fp.AxisMetadata(names=("embed", "mlp"))}}))
  part = partitioning.PjitPartitioner(
    model_parallel_submesh=(1, 1, 1, 2),
    logical_axis_rules=partitioning.standard_logical_axis_rules(1, 2))
  layout = part.get_data_layout(16)
  where = sys.argv[1]
  checkpoints.Checkpointer(state, part, where).save(state)
  import os; os.makedirs(where + "/orbax")
  manager = checkpoints.OrbaxCheckpointManagerInterface(where + "/orbax", state, part)
  manager.save(state); manager.close()
  out = {"mesh": dict(part.mesh.shape), "axes": str(part.get_mesh_axes(state).params),
    "layout": [layout.batch_size, layout.shard_id, layout.num_shards,
      bool(layout.is_first_host_in_replica_set)]}
  for path in (where + "/checkpoint_0", where + "/orbax/checkpoint_0"):
    reader = checkpoints.OrbaxCheckpointManagerInterface(
      where, jax.eval_shape(lambda: state), part)
    restored = reader.restore(path=path).params["kernel"]
    out.setdefault("shards", []).append(
      sorted(set(str(s.data.shape) for s in restored.addressable_shards)))
    out.setdefault("equal", []).append(bool((np.asarray(restored) == kernel).all()))
  axes = part.get_mesh_axes(state)
  fn = part.partition(lambda params, x: x @ params["kernel"],
    in_axis_resources=(axes.params, P("data")), out_axis_resources=P("data"))
  x = np.ones((8, 16), np.float32)
  y = fn(restored_params := reader.restore(path=path).params, x)
  out["product"] = bool(np.allclose(y, x @ kernel))
  out["rows"] = sorted(set(s.data.shape[0] for s in y.addressable_shards))
  compiled = part.compile(fn, restored_params, x)
  out["compiled"] = bool(np.allclose(compiled(restored_params, x), x @ kernel))
  for n in (1, 2, 3, 8) if sys.argv[2] == "runtime" else ():
    try:
      out[n] = dict(partitioning.PjitPartitioner(num_partitions=n).mesh.shape)
    except ValueError as error:
      out[n] = str(error)
  print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
  provider = "runtime" if IS_RUNTIME else "upstream"
  folder = str(tmp_path_factory.mktemp("eight"))
  return on_devices(8, "-c", textwrap.dedent(PROGRAM), folder, provider)


def test_shards_on_eight_devices(out):
  assert out["mesh"] == {"data": 4, "model": 2}
  assert "'data', 'model'" in out["axes"]
  assert out["layout"] == [16, 0, 1, True]
  assert out["shards"] == [["(4, 4)"]] * 2
  assert out["equal"] == [True, True]
  assert out["product"]
  assert out["compiled"]
  assert out["rows"] == [2]


@runtime_only
def test_num_partitions_is_the_size_of_the_model_axis(out):
  # The documented behaviour for accelerators; upstream puts all CPUs into 'model'.
  assert out["1"] == {"data": 8, "model": 1}
  assert out["2"] == {"data": 4, "model": 2}
  assert out["8"] == {"data": 1, "model": 8}
  assert "3" in out["3"]


def test_standard_rules():
  rules = partitioning.standard_logical_axis_rules()
  assert dict(rules)["batch"] == "data"
  assert dict(rules)["joined_kv"] == dict(rules)["vocab"] == "model"
  assert ("embed", None) in rules
  full = partitioning.standard_logical_axis_rules(2, 2, [("mine", "model")])
  assert [r for r in full if r[0] == "embed"] == [
    ("embed", "model"),
    ("embed", "data"),
  ]
  assert full[-1] == ("mine", "model")
  with pytest.raises(ValueError, match="3"):
    partitioning.standard_logical_axis_rules(3, 1)


def test_a_partitioner_needs_a_size():
  with pytest.raises(ValueError, match="num_partitions"):
    partitioning.PjitPartitioner()


def test_inference_state():
  state = tiny_state(tiny_model())
  layout = state.state_dict()
  assert set(layout) == {"target", "state"}
  assert int(layout["state"]["step"]) == 7
  doubled = jax.tree.map(lambda x: 2 * x, layout["target"])
  restored = state.restore_state({"target": doubled, "state": {"step": 9}})
  assert int(restored.step) == 9

  def leaf(s):
    return np.asarray(s.params["token_embedder"]["embedding"])

  np.testing.assert_array_equal(leaf(restored), 2 * leaf(state))
  axes = state.as_logical_axes()
  assert axes.step is None
  assert tuple(axes.params["token_embedder"]["embedding"]) == ("vocab", "embed")
  mesh = partitioning.PjitPartitioner(num_partitions=1).get_mesh_axes(state)
  assert tuple(mesh.params["token_embedder"]["embedding"]) == ("model", None)


@runtime_only
def test_axes_are_required_for_a_layout():
  state = tiny_state(tiny_model())
  with pytest.raises(ValueError, match="axes"):
    train_state.InferenceState(step=None, params=state.params).as_logical_axes()
