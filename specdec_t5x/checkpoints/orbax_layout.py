"""Where a network's parameters are in a checkpoint of Orbax's.

T5X writes an item 'state' with the parameters under 'target'. Orbax's own writers have
the parameters at the top (StandardCheckpointer) or in an item of any name
(CheckpointManager), with or without a step and the state of an optimizer beside them.
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
_TARGET = "target"  # T5X's place of the parameters in it.
# An item's folder holds one of these.
_MARKS = ("_METADATA", "manifest.ocdbt")
# Items' names that are preferred where there are several.
_ITEMS = (STATE, "default", "items", "params", "model", "train_state")
# Names above a network's parameters; the first name in a tree counts.
_ABOVE = (_TARGET, "params", "model", "train_state", "state", "optimizer")
HOW_TO_SAVE = (
  "Save the parameters alone, under T5X's names: "
  "orbax.checkpoint.StandardCheckpointer().save(DIR, params)."
)


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where the parameters are; `find` makes one.

  Attributes:
    item: the folder that holds the arrays.
    above: names above the parameters in its tree.
    stored: shapes of the parameters, by their paths below these.
    contents: what stands at the top of the tree, for messages.
    step: the name of the step in the tree; None where there is none.
    is_t5x: whether the layout is the one that T5X writes.
  """

  item: epath.Path
  above: tuple[str, ...]
  stored: Shapes
  contents: str
  step: str | None
  is_t5x: bool


def item_of(directory: epath.Path) -> epath.Path | None:
  """Returns the folder of a checkpoint's arrays; None if there is no such folder.

  Raises:
    ValueError: where there are several, and none has a usual name.
  """
  if _is_item(directory):
    return directory
  found = {path.name: path for path in directory.iterdir() if _is_item(path)}
  usual = next((name for name in _ITEMS if name in found), None)
  if len(found) > 1 and usual is None:
    raise ValueError(
      f"{directory} is an Orbax checkpoint with the items {sorted(found)}, expected "
      f"one, or one called {' or '.join(map(repr, _ITEMS[:3]))}. Give the path of the "
      "item that has the parameters."
    )
  return found.get(usual) or next(iter(found.values()), None)


def _is_item(path: epath.Path) -> bool:
  return any((path / mark).is_file() for mark in _MARKS)


def find(directory: epath.Path, item: epath.Path) -> Layout:
  """Reads the metadata of an item and finds the parameters in it.

  Args:
    directory: the checkpoint.
    item: as `item_of` gives it.
  """
  # Here alone: who decodes without checkpoints needs no Orbax.
  import orbax.checkpoint as ocp

  with ocp.PyTreeCheckpointer() as checkpointer:
    tree = checkpointer.metadata(item.resolve()).item_metadata.tree
  if isinstance(tree, Mapping):
    contents = ", ".join(map(repr, tree)) or "no arrays"
  else:
    contents, tree = f"a {type(tree).__name__}", {}
  above = ()
  step = None
  while name := next((x for x in _ABOVE if isinstance(tree.get(x), Mapping)), None):
    step = _step_in(tree, above) or step
    above, tree = (*above, name), tree[name]
  flat = flax.traverse_util.flatten_dict(dict(tree), sep="/")
  stored = {name: tuple(x.shape) for name, x in flat.items() if hasattr(x, "shape")}
  is_t5x = (
    above == (_TARGET,)
    and item == directory / STATE
    and bool(re.fullmatch(r"checkpoint_\d+", directory.name))
  )
  return Layout(item, above, stored, contents, step, is_t5x)


def check_is_network(path: str, layout: Layout, shapes: Shapes) -> None:
  """Raises a ValueError where the parameters are no network's of this project.

  Args:
    path: of the checkpoint.
    layout: of its parameters.
    shapes: of its parameters, by our names.
  """
  if config.GEMMA_NORM in shapes:
    return  # Its configuration comes from elsewhere.
  try:
    network_config(shapes)
  except (ValueError, KeyError, IndexError) as error:
    raise ValueError(
      f"{path} is an Orbax checkpoint of {layout.contents:.200}, and its "
      f"{len(shapes)} arrays are no network's under T5X's names ({error}). "
      f"{HOW_TO_SAVE}"
    ) from error


def _step_in(tree: Mapping[str, Any], above: tuple[str, ...]) -> str | None:
  """Returns the path of a step that stands beside or above the parameters."""
  for path in (("step",), ("state", "step")):
    leaf = tree
    for name in path:
      leaf = leaf.get(name) if isinstance(leaf, Mapping) else None
    if leaf is not None:
      return "/".join((*above, *path))
  return None


def step(layout: Layout, directory: epath.Path) -> int:
  """Returns the step of a checkpoint: of its tree, else of its name, else 0."""
  if layout.step:
    found = arrays.read_orbax(layout.item, [layout.step], None)
    return int(np.asarray(found[layout.step]))
  number = re.fullmatch(r"(?:.*_)?(\d+)", directory.name)
  return int(number[1]) if number else 0
