"""A checkpoint on disk: its kind, shapes and configuration, and restoring it.

`Checkpoint.load` reads parameters onto one device and needs no T5X.
`Checkpoint.restore` fills a T5X state in a partitioner's layout, by T5X's own readers
(`readers`).
"""

import abc
import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from etils import epath

from specdec_t5x.checkpoints import arrays, orbax_layout, scanned, t5x_index
from specdec_t5x.checkpoints.checks import Shapes, check_finite, check_shapes
from specdec_t5x.checkpoints.orbax_layout import STATE
from specdec_t5x.checkpoints.t5x_index import INDEX
from specdec_t5x.data.hints import how_to_make, is_address
from specdec_t5x.hugging_face import lfs
from specdec_t5x.hugging_face.folder import CONFIG, Folder, is_folder, lacking
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.network import heads
from specdec_t5x.network.functional import (
  Network,
  Settings,
  initial_variables,
  network_config,
  network_for,
)

# Numbers that Orbax reads at once: 256 MB in float32.
_GROUP = 2**26


class Checkpoint(abc.ABC):
  """A network's parameters on disk; `open` finds out their format.

  Attributes:
    path: of the folder.
  """

  def __init__(self, path: str):
    self.path = str(path)

  @staticmethod
  def open(path: str) -> "Checkpoint":
    """Returns the checkpoint of a folder; of parameters nothing is read yet.

    Raises:
      ValueError: where there is none, or a Hugging Face folder is no T5's.
    """
    if is_folder(path):
      return HuggingFace(path)
    if not isinstance(path, str | os.PathLike) or not str(path):
      raise ValueError(
        f"Expected the path of a checkpoint's folder, got {path!r}. Give one, in "
        "quotes."
      )
    directory = None if is_address(os.fspath(path)) else epath.Path(path)
    if directory is None or not directory.is_dir():
      raise ValueError(
        f"{path} is not a directory. Expected a T5X checkpoint (a folder with an index "
        f"file {INDEX!r}), an Orbax one (with a folder {STATE!r}) or a Hugging Face "
        f"folder (with {CONFIG}).{how_to_make(path)}"
      )
    if (directory / INDEX).is_file():
      return T5X(path)
    if orbax_layout.item_of(directory) is None:
      raise ValueError(
        f"{path} holds no checkpoint: neither a file {INDEX!r} (T5X) nor a folder "
        f"{STATE!r} (Orbax). Give the folder of one step, as .../checkpoint_1000."
        f"{lacking(path)}"
      )
    return Orbax(path)

  @classmethod
  def of_network(cls, path: str, macro: str, expected: Shapes) -> "Checkpoint":
    """Returns the checkpoint of a folder, whose parameters have these shapes.

    Args:
      path: of the folder.
      macro: the setting that it is the value of, for messages.
      expected: of the network's parameters.

    Raises:
      ValueError: naming `macro`, where there is none, or it is another network's.
    """
    try:
      found = cls.open(path)
      shapes = found.shapes
    except ValueError as error:
      raise ValueError(f"{macro}: {error}") from error
    check_shapes(shapes, expected, f"{macro}={path}")
    return found

  @functools.cached_property
  def shapes(self) -> Shapes:
    """The shape of each parameter, read from the index alone.

    Raises:
      ValueError: where the index can't be read, or holds no network that can be told.
    """
    shapes = {name: place.shape for name, place in self._places.items()}
    return {name: shape for name, shape in shapes.items() if name != heads.UNREAD}

  @functools.cached_property
  def _places(self) -> Mapping[str, scanned.Place]:
    """Where each parameter is stored."""
    stored = self._stored
    try:
      found = scanned.places(stored)
    except ValueError as error:
      raise ValueError(f"Checkpoint {self.path}: {error}") from error
    self._check_kind({name: place.shape for name, place in found.items()})
    return found

  def _check_kind(self, shapes: Shapes) -> None:
    """Raises a ValueError where parameters of these shapes can't be a network's."""
    del shapes  # A configuration or gin tells.

  @functools.cached_property
  def _stored(self) -> Shapes:
    """The shapes of the stored arrays."""
    try:
      return self._read_shapes(epath.Path(self.path))
    except Exception as error:  # msgpack, Orbax and tensorstore each raise their own.
      self._check_pointers()
      raise ValueError(
        f"The index of checkpoint {self.path} can't be read ({type(error).__name__}: "
        f"{error}). The checkpoint is damaged or incomplete; copy it again."
      ) from error

  def settings(self, dtype: str = "float32") -> Settings:
    """Returns the configuration of the network.

    Of a Hugging Face folder what its config.json says; else read off the shapes, with
    T5 1.1's gated GELU where the feed-forward layer is gated and T5 1.0's ReLU where
    not.

    Args:
      dtype: of the activations.

    Raises:
      ValueError: as `shapes`; or where no network of this project is like it.
    """
    return network_config(self.shapes, dtype)

  @property
  def generation(self) -> Generation:
    """What a Hugging Face folder says of generating; nothing of other checkpoints."""
    return Generation()

  def network(self, dtype: str = "float32") -> Network:
    """Returns the network of these `settings`."""
    return network_for(self.settings(dtype))

  def restore(self, state: Any, partitioner: Any, dtype: str | None) -> Any:
    """Returns `state` with these parameters, in the partitioner's layout.

    Args:
      state: T5X's `InferenceState`: shapes of the parameters, and their logical axes.
      partitioner: says where each parameter lives.
      dtype: 'float32', 'bfloat16' or 'float16'; None keeps the checkpoint's, and so
        does a table of n-grams, part of which are token ids.

    Raises:
      ValueError: where it can't be restored.
    """
    if not _is_float(state.params):
      dtype = None
    with self._named_errors():
      restored = self._restore(state, partitioner, dtype)
    check_finite(self.path, restored.params)
    return restored

  def load(self, network: Network, dtype: str | None = "float32") -> Any:
    """Returns the network's parameters, whole on the default device, without T5X.

    Args:
      network: the network that the checkpoint is of.
      dtype: as in `restore`.

    Raises:
      ValueError: as `restore`.
    """
    variables = jax.eval_shape(
      lambda key: initial_variables(network, key), jax.random.key(0)
    )
    expected = flat_shapes(variables["params"])
    if not _is_float(variables["params"]):
      dtype = None
    with self._named_errors():
      self._check_expected(expected)
      read = self._read_arrays(list(expected), dtype)
      flat = {name: jnp.asarray(array) for name, array in read}
    check_finite(self.path, flat)
    return flax.core.freeze(flax.traverse_util.unflatten_dict(flat, sep="/"))

  @contextlib.contextmanager
  def _named_errors(self) -> Iterator[None]:
    """Turns a reader's exception into a ValueError that names the checkpoint."""
    try:
      yield
    except Exception as error:  # Readers raise many types.
      self._check_pointers()
      raise ValueError(
        f"Checkpoint {self.path} could not be restored ({type(error).__name__}: "
        f"{error}). If its files are damaged, copy it again from where it was written."
      ) from error

  def _check_pointers(self) -> None:
    """Raises a ValueError where files are pointers of Git LFS; asked on errors."""
    lfs.check_folder(self.path)

  @property
  def _is_rearranged(self) -> bool:
    """Whether parameters are stored in another way than T5X's own readers know."""
    return not scanned.is_identity(self._places, self._stored)

  @abc.abstractmethod
  def _read_shapes(self, directory: epath.Path) -> Shapes:
    """Returns the shapes of the stored arrays, from the index."""

  @abc.abstractmethod
  def _read_stored(self, name: str, dtype: str | None) -> np.ndarray:
    """Returns a stored array in host memory."""

  def _read_step(self) -> int:
    """Returns the step; 0 where none is stored."""
    return 0

  def _restore(self, state: Any, partitioner: Any, dtype: str | None) -> Any:
    """Restores one stored array at a time, straight to the devices."""
    axes = flax.core.unfreeze(partitioner.get_mesh_axes(state).params)
    axes = flax.traverse_util.flatten_dict(axes, sep="/")
    flat, shapes = {}, flat_shapes(state.params)
    self._check_expected(shapes)
    # The largest first, whose copies are made when there is least beside them.
    largest_first = sorted(shapes, key=lambda name: -math.prod(shapes[name]))
    for name, array in self._read_arrays(largest_first, dtype):
      layout = jax.sharding.NamedSharding(partitioner.mesh, axes[name])
      some = lambda index, array=array: array[index]
      flat[name] = jax.make_array_from_callback(shapes[name], layout, some)
    params = flax.core.freeze(flax.traverse_util.unflatten_dict(flat, sep="/"))
    step = jnp.asarray(self._read_step(), jnp.int32)
    return state.replace_params(params).replace_step(step)

  def _check_expected(self, expected: Shapes) -> None:
    found = {name: x for name, x in self.shapes.items() if name in expected}
    check_shapes(found, expected, f"Checkpoint {self.path}")

  def _read_arrays(
    self, names: Sequence[str], dtype: str | None
  ) -> Iterator[tuple[str, np.ndarray]]:
    """Yields these parameters in host memory, with their names.

    Of stacked layers one stored array is in memory beside what was yielded.
    """
    places = self._places
    for group in scanned.by_stored(names, places):
      stored_name = places[group[0]].name
      stored = self._read_stored(stored_name, dtype)
      if stored.shape != self._stored[stored_name]:
        raise ValueError(
          f"{stored_name} has the shape {stored.shape} on disk, but the index has "
          f"{self._stored[stored_name]}"
        )
      for name in group:
        yield name, places[name].take(stored)
      del stored  # Before the next one is read.


class T5X(Checkpoint):
  """In T5X's format: an index, and a folder of compressed chunks for each array."""

  @functools.cached_property
  def _leaves(self):
    return t5x_index.read(epath.Path(self.path))

  def _read_shapes(self, directory):
    return {
      name: tuple(leaf["metadata"]["shape"] if isinstance(leaf, dict) else leaf.shape)
      for name, leaf in self._leaves.items()
    }

  def _restore(self, state, partitioner, dtype):
    if self._is_rearranged:
      return super()._restore(state, partitioner, dtype)
    t5x_index.check_whole(epath.Path(self.path), self._leaves)
    from specdec_t5x.checkpoints import readers

    return readers.t5x(self.path, state, partitioner, dtype)

  def _read_step(self):
    return t5x_index.step(epath.Path(self.path))

  def _read_arrays(self, names, dtype):
    t5x_index.check_whole(epath.Path(self.path), self._leaves)
    yield from super()._read_arrays(names, dtype)

  def _read_stored(self, name, dtype):
    return arrays.read_t5x(epath.Path(self.path), self._leaves[name], dtype)


class Orbax(Checkpoint):
  """In Orbax's format, as T5X or Orbax's own writers write it."""

  @functools.cached_property
  def _layout(self):
    directory = epath.Path(self.path)
    return orbax_layout.find(directory, orbax_layout.item_of(directory))

  def _check_kind(self, shapes):
    if not self._layout.is_t5x:
      orbax_layout.check_is_network(self.path, self._layout, shapes)

  def _read_shapes(self, directory):
    return self._layout.stored

  def _restore(self, state, partitioner, dtype):
    if self._is_rearranged or not self._layout.is_t5x:
      return super()._restore(state, partitioner, dtype)
    from specdec_t5x.checkpoints import readers

    return readers.orbax(self.path, state, partitioner, dtype)

  def _read_step(self):
    return orbax_layout.step(self._layout, epath.Path(self.path))

  def _read_arrays(self, names, dtype):
    if self._is_rearranged:
      yield from super()._read_arrays(names, dtype)
      return
    # Some together, which Orbax reads at the same time.
    for group in _groups(names, self._stored):
      paths = [self._path(name) for name in group]
      read = arrays.read_orbax(self._layout.item, paths, dtype)
      for name, path in zip(group, paths, strict=True):
        yield name, read.pop(path)

  def _read_stored(self, name, dtype):
    path = self._path(name)
    return arrays.read_orbax(self._layout.item, [path], dtype)[path]

  def _path(self, name: str) -> str:
    return "/".join((*self._layout.above, name))


class HuggingFace(Checkpoint):
  """A folder of transformers', read as T5X's parameters."""

  def __init__(self, path: str):
    super().__init__(path)
    self.folder = Folder.open(path)

  @property
  def generation(self):
    return self.folder.generation

  def settings(self, dtype="float32"):
    return dataclasses.replace(self.folder.config, dtype=dtype)

  def _check_pointers(self):
    # `Folder.open` has checked the files that are read; others may be pointers.
    pass

  def _read_shapes(self, directory):
    return self.folder.shapes

  def _read_arrays(self, names, dtype):
    logging.info("Restoring the Hugging Face folder %s as T5X's parameters.", self.path)
    yield from super()._read_arrays(names, dtype)

  def _read_stored(self, name, dtype):
    with np.errstate(over="ignore"):  # Infinity, which `check_finite` reports.
      return np.asarray(self.folder.read(name), dtype and jnp.dtype(dtype))


def _groups(names: Sequence[str], shapes: Shapes) -> Iterator[list[str]]:
  """Yields the names in groups whose arrays are small together."""
  group, size = [], 0
  for name in names:
    if group and size + math.prod(shapes[name]) > _GROUP:
      yield group
      group, size = [], 0
    group.append(name)
    size += math.prod(shapes[name])
  yield group


def _is_float(params: Any) -> bool:
  """Returns whether all parameters are floats: of a table of n-grams some are ids."""
  leaves = jax.tree.leaves(params)
  return all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves)


def flat_shapes(tree) -> Shapes:
  """Returns the shapes of nested parameters by their path, as decoder/.../kernel."""
  flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(tree), sep="/")
  return {name: tuple(leaf.shape) for name, leaf in flat.items()}
