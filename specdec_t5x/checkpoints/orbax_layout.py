"""Locates a network's parameters in an Orbax checkpoint.

T5X writes an item 'state' with the parameters under 'target'. Orbax's writers put the
parameters at the top (StandardCheckpointer) or into an item of any name
(CheckpointManager), with or without a step and an optimizer's state beside the
parameters.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import flax
import numpy as np
from etils import epath

from specdec_t5x.checkpoints import arrays
from specdec_t5x.checkpoints.checks import Shapes
from specdec_t5x.network import config
from specdec_t5x.network.functional import network_config

STATE = "state"  # T5X's item.
_TARGET = "target"  # The name of the parameters in T5X's item.
# The folder of an item holds one of these files.
_MARKS = ("_METADATA", "manifest.ocdbt")
# Preferred names if there are several items.
_ITEMS = (STATE, "default", "items", "params", "model", "train_state")
# Names above a network's parameters. The first name that a tree contains is used.
_ABOVE = (_TARGET, "params", "model", "train_state", "state", "optimizer")
HOW_TO_SAVE = (
  "Save the parameters alone, under T5X's names: "
  "orbax.checkpoint.StandardCheckpointer().save(DIR, params)."
)


@dataclasses.dataclass(frozen=True)
class Layout:
  """The location of the parameters, found by `find`.

  Attributes:
    item: folder of the arrays.
    above: names above the parameters in the item's tree.
    stored: shapes of the parameters, by paths below `above`.
    contents: names at the top of the tree, for messages.
    step: path of the step in the tree; None without a step.
    is_t5x: whether T5X writes this layout.
  """

  item: epath.Path
  above: tuple[str, ...]
  stored: Shapes
  contents: str
  step: str | None
  is_t5x: bool


def item_of(directory: epath.Path) -> epath.Path | None:
  """Returns the folder of a checkpoint's arrays, or None.

  Raises:
    ValueError: if there are several items, and none has a preferred name.
  """
  if _is_item(directory):
    return directory
  items = {path.name: path for path in directory.iterdir() if _is_item(path)}
  preferred = next((name for name in _ITEMS if name in items), None)
  if len(items) > 1 and preferred is None:
    raise ValueError(
      f"{directory} is an Orbax checkpoint with the items {sorted(items)}, expected "
      f"one item, or an item {' or '.join(map(repr, _ITEMS[:3]))}. Give the path of "
      "the item with the parameters."
    )
  return items.get(preferred) or next(iter(items.values()), None)


def _is_item(path: epath.Path) -> bool:
  return any((path / mark).is_file() for mark in _MARKS)


def find(directory: epath.Path, item: epath.Path) -> Layout:
  """Finds the parameters in the metadata of an item.

  Args:
    directory: folder of the checkpoint.
    item: folder of the item, from `item_of`.
  """
  # Imported here, because decoding without checkpoints needs no Orbax.
  import orbax.checkpoint as ocp

  with ocp.PyTreeCheckpointer() as checkpointer:
    tree = checkpointer.metadata(item.resolve()).item_metadata.tree
  if isinstance(tree, Mapping):
    contents = ", ".join(map(repr, tree)) or "no arrays"
  else:
    contents = f"a {type(tree).__name__}"
    tree = {}
  above = ()
  step = None
  while name := next((x for x in _ABOVE if isinstance(tree.get(x), Mapping)), None):
    step = _step_in(tree, above) or step
    above = (*above, name)
    tree = tree[name]
  flat = flax.traverse_util.flatten_dict(dict(tree), sep="/")
  stored = {name: tuple(x.shape) for name, x in flat.items() if hasattr(x, "shape")}
  is_t5x = (
    above == (_TARGET,)
    and item == directory / STATE
    and bool(re.fullmatch(r"checkpoint_\d+", directory.name))
  )
  return Layout(item, above, stored, contents, step, is_t5x)


def check_is_network(path: str, layout: Layout, shapes: Shapes) -> None:
  """Raises a ValueError if no network of this project has the parameters.

  Args:
    path: path of the checkpoint.
    layout: location of the parameters.
    shapes: shapes of the parameters, by our names.
  """
  if config.GEMMA_NORM in shapes:
    return  # A T5Gemma's configuration can't be read off the shapes.
  try:
    network_config(shapes)
  except (ValueError, KeyError, IndexError) as error:
    raise ValueError(
      f"{path} is an Orbax checkpoint of {layout.contents:.200}, but the {len(shapes)} "
      f"arrays are not the parameters of a network under T5X's names ({error}). "
      f"{HOW_TO_SAVE}"
    ) from error


def _step_in(tree: Mapping[str, Any], above: tuple[str, ...]) -> str | None:
  """Returns the path of a step in a tree, or None.

  Args:
    tree: tree that contains the parameters.
    above: names above `tree`.
  """
  for path in (("step",), ("state", "step")):
    leaf = tree
    for name in path:
      leaf = leaf.get(name) if isinstance(leaf, Mapping) else None
    if leaf is not None:
      return "/".join((*above, *path))
  return None


def step(layout: Layout, directory: epath.Path) -> int:
  """Returns a checkpoint's step: from the tree, else from the folder's name, else 0."""
  if layout.step:
    step_arrays = arrays.read_orbax(layout.item, [layout.step], None)
    return int(np.asarray(step_arrays[layout.step]))
  number = re.fullmatch(r"(?:.*_)?(\d+)", directory.name)
  return int(number[1]) if number else 0
