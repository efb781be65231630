"""Checkpoints with stacked layers, as written by flax's scan over layers."""

import dataclasses

import chex
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from t5x import checkpoints, train_state

import specdec_t5x
from specdec_t5x.t5x_bridge.restore import one_device
from tests.t5x_bridge import tiny, tiny_gpt

# The decoder has as many layers as heads, so a shape can't distinguish the axes.
LAYERS = {"num_encoder_layers": 3, "num_decoder_layers": 2}
UMT5 = dataclasses.replace(tiny.TARGET, **LAYERS, relpos_per_layer=True)
SHARED = dataclasses.replace(UMT5, relpos_per_layer=False, logits_via_embedding=True)
# 2 decoder layers and 2 heads; 32 encoder layers and 32 buckets of the position bias.
SQUARE = dataclasses.replace(UMT5, num_encoder_layers=32, mlp_dim=16)


def with_heads(name, array, heads):
  """Returns a parameter; a kernel of attention has a separate axis of `heads`."""
  if not heads or "attention/" not in name or not name.endswith("kernel"):
    return array
  width = array.shape[1 if "out" in name else 0]
  return array.reshape((heads, -1, width) if "out" in name else (width, heads, -1))


def stack(params, axis, middle, heads=0, norm_axis=None):
  """Returns the parameters of a network in the layout of a scan over layers, by path.

  Args:
    params: parameters of the network.
    axis: axis of the layers.
    middle: the path between the name of a stack and of a parameter; {} is the stack.
    heads: number of heads in a separate axis; 0 joins the heads.
    norm_axis: axis of the layers in norms; None is `axis`.
  """
  flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")
  layers = {}
  stacked = {}
  for name, array in flat.items():
    array = with_heads(name, np.asarray(array), heads)
    stack, *parts = name.split("/")
    if parts[0].startswith("layers_"):
      number = int(parts[0].removeprefix("layers_"))
      path = "/".join((stack, middle.format(stack), *parts[1:]))
      layers.setdefault(path, {})[number] = array
    elif "relpos_bias" in name:
      stacked["/".join((stack, middle.format(stack), *parts))] = array
    else:
      stacked[name] = array
  for path, found in layers.items():
    is_apart = norm_axis is not None and path.endswith("scale")
    arrays = [found[number] for number in sorted(found)]
    stacked[path] = np.stack(arrays, norm_axis if is_apart else axis)
  return stacked


def write(root, flat, format="t5x", step=7):
  """Writes parameters by path like T5X and returns the checkpoint's path."""
  tree = flax.core.freeze(flax.traverse_util.unflatten_dict(flat, sep="/"))
  state = train_state.InferenceState(jnp.array(step), tree)
  if format == "t5x":
    checkpoints.Checkpointer(state, one_device(), str(root)).save(state)
  else:
    kind = checkpoints.OrbaxCheckpointManagerInterface
    kind(str(root), state, one_device()).save(state)
  return str(root / f"checkpoint_{step}")


# (network, axis of layers, names of layers, separate heads, axis of norms).
WAYS = [
  (UMT5, 1, "{}", 2, None),  # T5X's examples/scalable_t5.
  (UMT5, 1, "layers", 0, None),
  (UMT5, 0, "{}", 2, None),
  (UMT5, -1, "{}/layers", 2, None),
  (UMT5, -2, "{}", 2, None),
  (UMT5, 1, "{}", 0, 0),
  (UMT5, 2, "{}", 0, 1),
  (SHARED, 1, "{}", 2, None),
  (SHARED, 0, "layers", 0, None),
  (SQUARE, 1, "{}", 2, None),
  (SQUARE, 0, "{}", 0, None),
  (tiny_gpt.TARGET, 1, "layers", 2, None),
]


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("format", ["t5x", "orbax"])
def test_stacked_layers_are_read(way, format, tmp_path):
  config, *layout = WAYS[way]
  params = tiny.drawn(config)
  path = write(tmp_path, stack(params, *layout), format)
  loaded = specdec_t5x.load_model(path)
  assert loaded.network.config == config
  chex.assert_trees_all_equal(loaded.params, params)


@pytest.mark.parametrize("format", ["t5x", "orbax"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", None])
def test_stacked_layers_are_restored_under_t5x(format, dtype, vocabulary, tmp_path):
  saved = {"target": tiny.drawn(UMT5), "draft": tiny.drawn(tiny.DRAFT)}
  target = stack(saved["target"], 1, "{}", 2)
  draft = stack(saved["draft"], 1, "{}", 2)
  paths = {
    "target": write(tmp_path / "target", target, format),
    "draft": write(tmp_path / "draft", draft, format, step=9),
  }
  model = tiny.speculative(vocabulary, target=UMT5)
  restored = tiny.restored(model, paths, dtype)
  assert int(restored.step) == 7
  expected = jax.tree.map(lambda x: x.astype(dtype or "float32"), saved)
  chex.assert_trees_all_equal(restored.params, flax.core.freeze(expected))


@pytest.mark.parametrize("config", [UMT5, tiny.TARGET, tiny_gpt.TARGET])
@pytest.mark.parametrize("heads", [0, 2])
@pytest.mark.parametrize("format", ["t5x", "orbax"])
def test_unstacked_layers_are_read(config, heads, format, tmp_path):
  """Our own layout is not mistaken for stacked layers, and split heads are joined."""
  params = tiny.drawn(config)
  flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")
  apart = {name: with_heads(name, np.asarray(x), heads) for name, x in flat.items()}
  loaded = specdec_t5x.load_model(write(tmp_path, apart, format))
  assert loaded.network.config == config
  chex.assert_trees_all_equal(loaded.params, params)
