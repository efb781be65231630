"""Locates each parameter in a checkpoint with separate or stacked layers.

Flax's `nn.scan` over layers, as in T5X's examples/scalable_t5, stacks a parameter of
all layers along one axis. Attention kernels may have a separate axis of heads, as
[D, H, K] and [H, K, D]. Our kernels are [D, H*K] and [H*K, D].
"""

import dataclasses
import itertools
import math
import re

import numpy as np

from specdec_t5x.checkpoints.checks import Shapes

_STACKED = re.compile(r"(encoder|decoder)/(?:(?:\1|layers)/)+(.+)")
_SPLIT = re.compile(r".*attention/(query|key|value|out)/kernel")
_BIAS = "rel_embedding"
_EMBEDDINGS = ("token_embedder/embedding", "decoder/token_embedder/embedding")
# Possible axes of stacked layers, of norms and of other parameters: in nn.scan one axis
# for both, negative from the end; then two axes, for writers that stack norms apart.
_AXES = (
  ((1, 1), (0, 0), (-1, -1), (-2, -2)),
  tuple(itertools.product((0, 1), (0, 1, 2, 3))),
)


@dataclasses.dataclass(frozen=True)
class Place:
  """The location of a parameter in a checkpoint."""

  name: str  # The stored array.
  shape: tuple[int, ...]  # The parameter's.
  axis: int | None = None  # Of the layers in the stored array; None without layers.
  layer: int = 0  # The parameter's layer on `axis`.

  def take(self, stored: np.ndarray) -> np.ndarray:
    """Returns the parameter, cut out of the stored array."""
    if self.axis is not None:
      stored = stored.take(self.layer, self.axis)
    return stored.reshape(self.shape)


def places(stored: Shapes, where: str) -> dict[str, Place]:
  """Returns the location of each parameter, by our names.

  Args:
    stored: shapes of the stored arrays, by name.
    where: name of the checkpoint, for messages.

  Raises:
    ValueError: if arrays look stacked, and the axis of the layers is not unique.
  """
  axes = _layer_axes(stored, where)
  locations = {}
  for name, shape in stored.items():
    axis = axes.get(name)
    match = _STACKED.fullmatch(name)
    if axis is not None:
      stack, part = match.groups()
      layer_shape = _joined(name, _without(shape, axis))
      for layer in range(shape[axis]):
        parameter = f"{stack}/layers_{layer}/{part}"
        locations[parameter] = Place(name, layer_shape, axis, layer)
    elif match and axes:  # All layers share one bias.
      locations["/".join(match.groups())] = Place(name, shape)
    else:
      locations[name] = Place(name, _joined(name, shape))
  return locations


def _joined(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Returns the shape of an attention kernel with heads and head width on one axis."""
  if len(shape) != 3 or not _SPLIT.fullmatch(name):
    return shape
  if name.endswith("out/kernel"):
    return (shape[0] * shape[1], shape[2])
  return (shape[0], shape[1] * shape[2])


def _layer_axes(stored: Shapes, where: str) -> dict[str, int]:
  """Returns the axis of the layers of each stacked array."""
  stacked = {
    name: shape
    for name, shape in stored.items()
    # All layers share a bias of two axes.
    if _STACKED.fullmatch(name) and not (name.endswith(_BIAS) and len(shape) == 2)
  }
  embedding = next((stored[x] for x in _EMBEDDINGS if x in stored), ())
  if not stacked or len(embedding) != 2:
    return {}
  for candidates in _AXES:
    found = [_solved(stacked, embedding[1], *axes) for axes in candidates]
    if solutions := {tuple(axes.items()) for axes in found if axes}:
      break
  if len(solutions) != 1:
    name = max(stacked, key=lambda name: name.startswith("decoder"))
    raise ValueError(
      f"{where}: {name} of shape {stored[name]} looks like a parameter of stacked "
      "layers, as in T5X's scalable_t5. Expected one way to stack the layers, but "
      f"{len(solutions)} ways fit the shapes. Save the network with scan_layers=False."
    )
  return dict(solutions.pop())


def _solved(
  stacked: Shapes, width: int, norm_axis: int, axis: int
) -> dict[str, int] | None:
  """Returns the axis of the layers of each array; None if a shape contradicts the axes.

  The layers are at `norm_axis` in the scales of norms, and at `axis` in other arrays.
  """
  solution = {}
  layers = {}  # The number of layers of each stack.
  for name, shape in stacked.items():
    position = norm_axis if name.endswith("scale") else axis
    if not -len(shape) <= position < len(shape):
      return None
    position %= len(shape)
    solution[name] = position
    count = layers.setdefault(name.partition("/")[0], shape[position])
    if count != shape[position] or not _fits(name, _without(shape, position), width):
      return None
  return solution


def _fits(name: str, shape: tuple[int, ...], width: int) -> bool:
  """Returns whether a parameter of one layer can have this shape."""
  if name.endswith("scale"):
    return shape == (width,) or "attention/" in name
  if name.endswith(_BIAS):
    return len(shape) == 2
  if _SPLIT.fullmatch(name):
    end = -1 if name.endswith("out/kernel") else 0
    return len(shape) in (2, 3) and shape[end] == width
  if name.endswith("kernel"):
    return len(shape) == 2 and shape[-1 if "/wo/" in name else 0] == width
  return math.prod(shape) > 0


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
  return (*shape[:axis], *shape[axis + 1 :])
