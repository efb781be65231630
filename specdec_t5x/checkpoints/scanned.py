"""Where a checkpoint stores each of our parameters: alone, or layers stacked.

flax's `nn.scan` over layers, as in T5X's examples/scalable_t5, stacks a parameter of
all layers along one axis. Attention's kernels may have their heads on an axis of their
own, [D, H, K] and [H, K, D], where ours are [D, H*K] and [H*K, D].
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from specdec_t5x.checkpoints.checks import Shapes

_STACKED = re.compile(r"(encoder|decoder)/(?:(?:\1|layers)/)+(.+)")
_SPLIT = re.compile(r".*attention/(query|key|value|out)/kernel")
_EMBEDDINGS = ("token_embedder/embedding", "decoder/token_embedder/embedding")
# Axes that layers may be stacked along; nn.scan has one for all parameters, where a
# negative one counts from the end.
_SCAN_AXES = (1, 0, -1, -2)
# Of norms and of other parameters, where a writer treated them apart.
_AXES_APART = tuple(itertools.product((0, 1), (0, 1, 2, 3)))


@dataclasses.dataclass(frozen=True)
class Place:
  """Where one of our parameters is stored.

  Attributes:
    name: of the stored array.
    shape: of our parameter.
    axis: of the layers in the stored array; None for the array of one layer.
    layer: of our parameter on that axis.
  """

  name: str
  shape: tuple[int, ...]
  axis: int | None = None
  layer: int = 0

  def take(self, stored: np.ndarray) -> np.ndarray:
    """Returns our parameter, of the whole stored array."""
    if self.axis is not None:
      stored = stored.take(self.layer, self.axis)
    return stored.reshape(self.shape)


def places(stored: Shapes) -> dict[str, Place]:
  """Returns where each of our parameters is stored, by our names.

  Args:
    stored: shapes of the stored arrays, by their names.

  Raises:
    ValueError: where arrays look stacked, and no axis or several can be the layers'.
  """
  axes = _layer_axes(stored)
  made = {}
  for name, shape in stored.items():
    axis = axes.get(name)
    match = _STACKED.fullmatch(name)
    if axis is not None:
      stack, part = match.groups()
      alone = _without(shape, axis)
      for layer in range(shape[axis]):
        ours = f"{stack}/layers_{layer}/{part}"
        made[ours] = Place(name, _joined(name, alone), axis, layer)
    elif match and axes:  # All layers share one bias.
      made["/".join(match.groups())] = Place(name, shape)
    else:
      made[name] = Place(name, _joined(name, shape))
  return made


def is_identity(found: Mapping[str, Place], stored: Shapes) -> bool:
  """Returns whether all parameters are stored as ours are."""
  return all(
    name == place.name and place.shape == stored[name] for name, place in found.items()
  )


def by_stored(names: Sequence[str], found: Mapping[str, Place]) -> Iterator[list[str]]:
  """Yields names of our parameters, those of one stored array together."""
  groups = {}
  for name in names:
    groups.setdefault(found[name].name, []).append(name)
  yield from groups.values()


def _joined(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Returns the shape of a kernel of attention with its heads on one axis."""
  if len(shape) != 3 or not _SPLIT.fullmatch(name):
    return shape
  if name.endswith("out/kernel"):
    return (shape[0] * shape[1], shape[2])
  return (shape[0], shape[1] * shape[2])


def _layer_axes(stored: Shapes) -> dict[str, int]:
  """Returns the axis of the layers of each stacked array."""
  stacks = {"encoder": {}, "decoder": {}}
  for name, shape in stored.items():
    match = _STACKED.fullmatch(name)
    # All layers share a bias of two axes.
    if match and not (_is_bias(name) and len(shape) == 2):
      stacks[match[1]][name] = shape
  embedding = next((stored[x] for x in _EMBEDDINGS if x in stored), ())
  if not any(stacks.values()) or len(embedding) != 2:
    return {}
  tries = ([(axis, axis) for axis in _SCAN_AXES], _AXES_APART)
  for candidates in tries:
    found = (_solved(stacks.values(), embedding[1], *axes) for axes in candidates)
    different = {tuple(sorted(axes.items())) for axes in found if axes}
    if different:
      break
  if len(different) != 1:
    name = next(iter(stacks["decoder"] or stacks["encoder"]))
    raise ValueError(
      f"{name} of shape {stored[name]} and its like look like parameters of stacked "
      f"layers, as of T5X's scalable_t5, and {len(different)} ways to stack them fit "
      "the shapes, expected one. Save the network with scan_layers=False."
    )
  return dict(*different)


def _solved(stacks, width: int, norm_axis: int, axis: int) -> dict[str, int] | None:
  """Returns the axis of each array; None where the shapes contradict it.

  Args:
    stacks: the arrays of each stack.
    width: of the network.
    norm_axis: of the layers in the scales of norms.
    axis: of the layers in all other arrays.
  """
  solution = {}
  for stack in stacks:
    counts = set()
    for name, shape in stack.items():
      position = norm_axis if name.endswith("scale") else axis
      if not -len(shape) <= position < len(shape):
        return None
      position %= len(shape)
      if not _fits(name, _without(shape, position), width):
        return None
      solution[name] = position
      counts.add(shape[position])
    if len(counts) > 1:
      return None
  return solution


def _fits(name: str, shape: tuple[int, ...], width: int) -> bool:
  """Returns whether a parameter of one layer can have this shape."""
  if name.endswith("scale"):
    return shape == (width,) or "attention/" in name
  if _is_bias(name):
    return len(shape) == 2
  if _SPLIT.fullmatch(name):
    end = -1 if name.endswith("out/kernel") else 0
    return len(shape) in (2, 3) and shape[end] == width
  if name.endswith("kernel"):
    return len(shape) == 2 and shape[-1 if "/wo/" in name else 0] == width
  return math.prod(shape) > 0


def _is_bias(name: str) -> bool:
  return name.endswith("rel_embedding")


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
  return (*shape[:axis], *shape[axis + 1 :])
