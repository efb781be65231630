"""Checkpoints in the layouts of Orbax's writers, without T5X."""

import pathlib

import chex
import flax
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import specdec_t5x
from tests.t5x_bridge import test_scanned, tiny, tiny_gpt


def standard(folder, tree):
  """Writes the folder of a StandardCheckpointer."""
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder.absolute(), tree)
  return folder


def pytree(folder, tree):
  """Writes the folder of a PyTreeCheckpointer, with a folder per array."""
  handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
  with ocp.Checkpointer(handler) as checkpointer:
    checkpointer.save(folder.absolute(), args=ocp.args.PyTreeSave(tree))
  return folder


def managed(step=3, prefix=None, **items):
  """Returns a writer of a CheckpointManager's step folder.

  An item with the value None holds the saved tree.
  """

  def write(folder, tree):
    options = ocp.CheckpointManagerOptions(
      step_prefix=prefix, enable_async_checkpointing=False
    )
    save = ocp.args.StandardSave
    args = {name: save(tree if of is None else of) for name, of in items.items()}
    args = ocp.args.Composite(**args) if items else save(tree)
    with ocp.CheckpointManager(folder.absolute(), options=options) as manager:
      manager.save(step, args=args)
    return folder / (f"{prefix}_{step}" if prefix else str(step))

  return write


OPTIMIZER = {"mu": {"decoder": {"decoder_norm": {"scale": np.ones(16)}}}}


def bare(params):
  return params


LAYOUTS = {
  "standard": (standard, bare, 0),
  "of a step": (standard, lambda x: {"params": x, "step": np.array(5)}, 5),
  "under params": (standard, lambda x: {"params": x}, 0),
  "variables": (pytree, lambda x: {"params": {"params": x}}, 0),
  "an array a folder": (pytree, bare, 0),
  "default": (managed(), bare, 3),
  "items": (managed(items=None), lambda x: {"params": x}, 3),
  "prefix": (managed(4, "checkpoint"), bare, 4),
  "two items": (managed(state=None, extra={"a": np.ones(2)}), bare, 3),
  "train state": (
    managed(12, "checkpoint", state=None),
    lambda x: {"params": x, "opt_state": OPTIMIZER, "step": jnp.array(11)},
    11,
  ),
  "model": (standard, lambda x: {"model": x, "optimizer": OPTIMIZER, "step": 6}, 6),
  "T5X's in another folder": (
    lambda folder, tree: standard(folder / "state", tree).parent,
    lambda x: {"target": x, "state": {"step": 8}},
    8,
  ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_orbax_are_read(name, vocabulary, tmp_path):
  write, tree, step = LAYOUTS[name]
  params = tiny.drawn(tiny.TARGET)
  path = str(write(tmp_path / "saved", tree(flax.core.unfreeze(params))))
  loaded = specdec_t5x.load_model(path)
  assert loaded.network.config == tiny.TARGET
  chex.assert_trees_all_equal(loaded.params, params)
  paths = {"target": path, "draft": tiny.save_t5x(tmp_path / "draft", tiny.DRAFT)}
  restored = tiny.restored(tiny.speculative(vocabulary), paths)
  assert int(restored.step) == step
  chex.assert_trees_all_equal(restored.params["target"], params)
  for item in pathlib.Path(path).glob("*/_METADATA"):  # An item can be read, too.
    if item.parent.name != "extra":
      loaded = specdec_t5x.load_model(str(item.parent))
      chex.assert_trees_all_equal(loaded.params, params)


@pytest.mark.parametrize("config", [tiny_gpt.TARGET, test_scanned.UMT5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_networks_in_orbax_s_layout_are_read(config, dtype, tmp_path):
  """Decoder-only networks and stacked layers are read, also in bfloat16."""
  params = jax.tree.map(lambda x: x.astype(dtype), tiny.drawn(config))
  flat = test_scanned.stack(params, 1, "{}", 2)
  tree = flax.traverse_util.unflatten_dict(flat, sep="/")
  loaded = specdec_t5x.load_model(str(standard(tmp_path / "saved", tree)))
  assert loaded.network.config == config
  wide = jax.tree.map(lambda x: x.astype("float32"), params)
  chex.assert_trees_all_equal(loaded.params, wide)


@pytest.mark.parametrize("others", [{}, {"a": None}])
def test_items_of_unusual_names_are_refused_unless_an_item_is_named(others, tmp_path):
  params = flax.core.unfreeze(tiny.drawn(tiny.TARGET))
  path = managed(b=None, **others)(tmp_path / "saved", params)
  message = r"with the items \[.*'b'\], expected an item .*StandardCheckpointer\(\)"
  with pytest.raises(ValueError, match=message):
    specdec_t5x.load_model(str(path))
  assert specdec_t5x.load_model(str(path / "b")).network.config == tiny.TARGET
  with pytest.raises(ValueError, match="Give the folder of one step"):
    specdec_t5x.load_model(str(path.parent))
