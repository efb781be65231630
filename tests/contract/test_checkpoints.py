"""Checkpoints in the formats of T5X and Orbax: round trips, and damage."""

import gzip
import pathlib

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from flax.core import freeze, unfreeze
from flax.linen import partitioning as flax_partitioning
from t5x import checkpoints, partitioning, train_state

from tests.contract.conftest import IS_RUNTIME, runtime_only
from tests.damage import flip_a_bit, halve

if IS_RUNTIME:
  from t5x import checkpoint_arrays

FORMATS = ("t5x", "orbax")
BIG = "target.decoder.layers_0.mlp.wi.kernel"
NAME = BIG.replace(".", "/")


def make_state(step=7, extra=False):
  rng = np.random.default_rng(0)

  def array(*shape):
    return rng.normal(size=shape).astype(np.float32)

  def axes(*names):
    return flax_partitioning.AxisMetadata(names=names)

  params = {
    "decoder": {"layers_0": {"mlp": {"wi": {"kernel": array(16, 32)}}}},
    "norm": {"scale": array(16)},
    "zeros": {"scale": np.zeros(16, np.float32)},
  }
  params_axes = {
    "decoder": {"layers_0": {"mlp": {"wi": {"kernel_axes": axes("embed", "mlp")}}}},
    "norm": {"scale_axes": axes("embed")},
    "zeros": {"scale_axes": axes("embed")},
  }
  if extra:
    params["more"] = {"scale": array(4)}
    params_axes["more"] = {"scale_axes": axes("embed")}
  variables = {"params": jax.tree.map(jnp.asarray, params), "params_axes": params_axes}
  state = train_state.InferenceState.create(freeze(variables))
  return state.replace_step(jnp.asarray(step, jnp.int32))


def partitioner():
  return partitioning.PjitPartitioner(num_partitions=1)


def manager(directory, state, **kwargs):
  directory.mkdir(parents=True, exist_ok=True)
  return checkpoints.OrbaxCheckpointManagerInterface(
    str(directory), state, partitioner(), **kwargs
  )


def save(layout, directory, state, dtype=np.float32):
  """Writes a checkpoint, and returns the checkpoint's folder."""
  if layout == "t5x":
    checkpoints.Checkpointer(
      state, partitioner(), str(directory), save_dtype=dtype
    ).save(state)
  else:
    saver = manager(directory, state, save_dtype=dtype)
    saver.save(state)
    saver.close()
  return directory / f"checkpoint_{int(state.step)}"


def restore(path, state, **kwargs):
  return manager(path.parent, state, **kwargs).restore(path=str(path))


def flat(params):
  return {
    jax.tree_util.keystr(k): np.asarray(v, np.float32)
    for k, v in jax.tree_util.tree_leaves_with_path(unfreeze(params))
  }


def assert_same(a, b, **tolerance):
  a = flat(a)
  b = flat(b)
  assert a.keys() == b.keys()
  for name in a:
    np.testing.assert_allclose(a[name], b[name], err_msg=name, **tolerance)


@pytest.mark.parametrize(
  ("layout", "stored", "wanted"),
  [
    ("t5x", "bfloat16", None),
    ("orbax", "bfloat16", None),
    ("t5x", "float32", "bfloat16"),
    ("orbax", "float32", "float16"),
    ("t5x", "float32", "float32"),
    ("orbax", "float32", None),
  ],
)
def test_round_trip(layout, stored, wanted, tmp_path):
  state = make_state()
  path = save(layout, tmp_path, state, jnp.dtype(stored))

  def cast(tree):
    return jax.tree.map(lambda x: x.astype(stored), tree)

  template = jax.eval_shape(lambda: state.replace_params(cast(state.params)))
  restored = restore(path, template, restore_dtype=wanted and jnp.dtype(wanted))
  assert int(restored.step) == 7
  leaves = jax.tree.leaves(restored.params)
  dtype = jnp.dtype(wanted or stored)
  assert all(isinstance(x, jax.Array) for x in leaves)
  if IS_RUNTIME or layout == "t5x" or wanted:  # Upstream casts Orbax to float32.
    assert {x.dtype for x in leaves} == {dtype}
  assert_same(restored.params, state.params, rtol=0 if dtype == np.float32 else 1e-2)


def test_the_index_of_the_t5x_format(tmp_path):
  path = save("t5x", tmp_path, make_state())
  index = msgpack.unpackb(
    (path / "checkpoint").read_bytes(), raw=False, strict_map_key=False
  )
  assert index["version"] == 3
  spec = index["optimizer"]["target"]["decoder"]["layers_0"]["mlp"]["wi"]["kernel"]
  assert spec["driver"] == "zarr"
  assert spec["kvstore"] == {"driver": "file", "path": f"{BIG}/"}
  assert spec["metadata"]["shape"] == [16, 32]
  chunk = gzip.decompress((path / BIG / "0.0").read_bytes())
  assert len(chunk) == 4 * 16 * 32
  assert isinstance(index["optimizer"]["state"]["step"], msgpack.ExtType)


@pytest.mark.parametrize("layout", FORMATS)
def test_steps(layout, tmp_path):
  state = make_state()
  if layout == "t5x":
    saver = checkpoints.Checkpointer(state, partitioner(), str(tmp_path))
  else:
    saver = manager(tmp_path, state)
  for step in (2, 3):
    saver.save(state.replace_step(jnp.asarray(step, jnp.int32)))
  if layout == "orbax":
    saver.wait_until_finished()
  assert list(saver.all_steps()) == [2, 3]
  assert saver.latest_step() == 3
  assert int(saver.restore(step=3).step) == 3
  assert int(saver.restore(step=2).step) == 2


@pytest.mark.parametrize("layout", FORMATS)
def test_extra_parameters_of_a_checkpoint_are_ignored(layout, tmp_path):
  path = save(layout, tmp_path, make_state(extra=True))
  state = make_state()
  if layout == "orbax" and not IS_RUNTIME:
    pytest.skip("upstream T5X wants the whole tree in Orbax's format")
  assert set(restore(path, state).params) == set(state.params)


@pytest.mark.parametrize("layout", FORMATS)
def test_a_missing_parameter_is_an_error(layout, tmp_path):
  path = save(layout, tmp_path, make_state())
  with pytest.raises(ValueError, match="more"):
    restore(path, make_state(extra=True))


@runtime_only
@pytest.mark.parametrize("layout", FORMATS)
def test_a_wrong_shape_is_named(layout, tmp_path):
  path = save(layout, tmp_path, make_state())
  state = make_state()
  params = unfreeze(state.params)
  params["norm"]["scale"] = jnp.zeros(17)
  with pytest.raises(ValueError, match=r"target/norm/scale.*\(16,\).*\(17,\)"):
    restore(path, state.replace_params(freeze(params)))


def break_frames(folder):
  """Damages every compressed array: which file has which array varies."""
  for file in folder.iterdir():
    file.write_bytes(file.read_bytes().replace(b"\x28\xb5\x2f\xfd", b"\0\0\0\0"))


def arrays_of_orbax(path):
  """Returns the folder of the files with the bytes of the arrays."""
  return path / "state" / "ocdbt.process_0" / "d"


def largest_of_orbax(path):
  """Returns the file with the bytes of the largest array."""
  return max(arrays_of_orbax(path).iterdir(), key=lambda file: file.stat().st_size)


def CHUNK(path):
  return path / BIG / "0.0"


ARRAY = f"{NAME}.*{BIG}"


# Orbax drops the remaining reads of a group, and Python warns about dropped reads.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@runtime_only
@pytest.mark.parametrize(
  ("layout", "file", "damage", "named"),
  [
    ("t5x", lambda path: path / "checkpoint", halve, "index"),
    ("t5x", CHUNK, flip_a_bit, ARRAY),
    ("t5x", CHUNK, pathlib.Path.unlink, ARRAY),
    ("orbax", largest_of_orbax, halve, ARRAY),
    ("orbax", arrays_of_orbax, break_frames, r"target/\S+.*target\.\S+"),
    ("orbax", largest_of_orbax, pathlib.Path.unlink, ARRAY),
    ("orbax", lambda path: path / "state/_METADATA", halve, "index.*_METADATA"),
    ("orbax", lambda path: path / "state/manifest.ocdbt", halve, "index.*manifest"),
  ],
)
def test_damage_is_named(layout, file, damage, named, tmp_path):
  state = make_state()
  path = save(layout, tmp_path, state)
  damage(file(path))
  with pytest.raises(ValueError, match=named) as error:
    restore(path, state)
  assert str(path) in str(error.value)
  assert "copy the checkpoint again" in str(error.value).lower()


@runtime_only
def test_paths_without_a_checkpoint_are_errors(tmp_path):
  state = make_state()
  save("t5x", tmp_path / "many", state)
  for path, named in (("absent", "does not exist"), ("many", r"\[7\]")):
    with pytest.raises(ValueError, match=named):
      manager(tmp_path / "x", state).restore(path=str(tmp_path / path))


# ---- Groups of arrays that are read at once, in both formats. ----

MIB = 2**20


@runtime_only
def test_groups_are_full_largest_first_and_at_least_a_64th():
  sizes = {"a": 1, "b": 40, "c": 20, "d": 11, "e": 12}
  few = {name: (size, MIB // 4) for name, size in sizes.items()}  # In float32.
  assert checkpoint_arrays.groups(few) == [["b"], ["c", "e"], ["d", "a"]]
  many = {str(i): (16, MIB) for i in range(128)}  # 8 GiB in total: 128 MiB at once.
  assert {len(group) for group in checkpoint_arrays.groups(many)} == {2}
