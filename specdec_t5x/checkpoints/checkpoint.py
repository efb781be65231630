"""A checkpoint on disk: kind, shapes, configuration and parameters.

`Checkpoint.load` reads parameters onto one device and needs no T5X.
`Checkpoint.restore` fills a T5X state in a partitioner's layout, by T5X's readers
(`readers`).
"""

import abc
import contextlib
import dataclasses
import functools
import math
import os
import pathlib
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
from specdec_t5x.data.hints import about_hub, is_address
from specdec_t5x.hugging_face import lfs
from specdec_t5x.hugging_face.folder import CONFIG, Folder, is_folder, lacking
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.network.functional import (
  Network,
  Settings,
  blank_variables,
  network_config,
  network_for,
)

# Numbers that Orbax reads concurrently: 256 MB in float32.
_GROUP = 2**26


class Checkpoint(abc.ABC):
  """A network's parameters on disk. `open` detects the format.

  Attributes:
    path: path of the folder.
    vocabulary_folder: the folder if it may hold the model's vocabulary, or None.
  """

  vocabulary_folder: str | None = None

  def __init__(self, path: str):
    self.path = str(path)

  @staticmethod
  def open(path: str) -> "Checkpoint":
    """Returns the checkpoint of a folder, without reading parameters.

    A path may begin with ~, the user's home.

    Raises:
      ValueError: if there is no checkpoint, or a Hugging Face folder is not a T5's.
    """
    if isinstance(path, str | os.PathLike):
      path = os.path.expanduser(path)
      if os.path.isdir(path):  # Parameters may be read after a change of directory.
        path = str(pathlib.Path(path).absolute())
    if is_folder(path):
      return HuggingFace(path)
    if not isinstance(path, str | os.PathLike) or not str(path):
      raise ValueError(
        f"Expected the path of a checkpoint's folder, got {path!r}. Give a path, in "
        "quotes."
      )
    directory = None if is_address(os.fspath(path)) else epath.Path(path)
    if directory is None or not directory.is_dir():
      raise ValueError(
        f"{path} is not a directory. Expected a T5X checkpoint (a folder with an index "
        f"file {INDEX!r}), an Orbax checkpoint (with a folder {STATE!r}) or a Hugging "
        f"Face folder (with {CONFIG}).{about_hub(path)}"
      )
    if (directory / INDEX).is_file():
      return T5X(path)
    if orbax_layout.item_of(directory) is None:
      raise ValueError(
        f"{path} holds no checkpoint: the folder has neither a file {INDEX!r} (T5X) "
        f"nor a folder {STATE!r} (Orbax). Give the folder of one step, as "
        f".../checkpoint_1000.{lacking(path)}"
      )
    return Orbax(path)

  @classmethod
  def of_network(cls, path: str, macro: str, expected: Shapes) -> "Checkpoint":
    """Returns the checkpoint of a folder after a check of the parameters' shapes.

    Args:
      path: path of the folder.
      macro: name of the setting with the value `path`, for messages.
      expected: shapes of the network's parameters.

    Raises:
      ValueError: if there is no checkpoint of the network. The message names `macro`.
    """
    try:
      checkpoint = cls.open(path)
      shapes = checkpoint.shapes
    except ValueError as error:
      raise ValueError(f"{macro}: {error}") from error
    try:
      check_shapes(shapes, expected, f"{macro}={path}")
    except ValueError as error:
      if not isinstance(checkpoint, HuggingFace):
        raise
      raise ValueError(
        f"{error} The path is a Hugging Face folder: "
        "--gin_file=configs/pairs/hugging_face.gin takes the sizes from the folder."
      ) from error
    return checkpoint

  @functools.cached_property
  def shapes(self) -> Shapes:
    """The shape of each parameter, read from the index alone.

    Raises:
      ValueError: if the index can't be read or describes no known network.
    """
    return {name: place.shape for name, place in self._places.items()}

  @functools.cached_property
  def _places(self) -> Mapping[str, scanned.Place]:
    """The location of each parameter."""
    stored = self._stored
    try:
      places = scanned.places(stored)
    except ValueError as error:
      raise ValueError(f"Checkpoint {self.path}: {error}") from error
    self._check_kind({name: place.shape for name, place in places.items()})
    return places

  def _check_kind(self, shapes: Shapes) -> None:
    """Raises a ValueError if no network has parameters of these shapes."""
    del shapes  # By default a configuration or gin determines the network.

  @functools.cached_property
  def _stored(self) -> Shapes:
    """The shapes of the stored arrays."""
    try:
      return self._read_shapes(epath.Path(self.path))
    except Exception as error:  # msgpack, Orbax and tensorstore raise different types.
      self._check_pointers()
      raise ValueError(
        f"The index of checkpoint {self.path} can't be read ({type(error).__name__}: "
        f"{error}). The checkpoint is damaged or incomplete. Copy the checkpoint again."
      ) from error

  def settings(self, dtype: str = "float32") -> Settings:
    """Returns the configuration of the network.

    The configuration of a Hugging Face folder comes from config.json. The configuration
    of other checkpoints is read off the shapes. A gated feed-forward layer has T5 1.1's
    gated GELU, another layer T5 1.0's ReLU.

    Args:
      dtype: dtype of the activations.

    Raises:
      ValueError: if `shapes` raises, or no network of this project has the shapes.
    """
    return network_config(self.shapes, dtype)

  @property
  def generation(self) -> Generation:
    """The generation settings of a Hugging Face folder; empty for other checkpoints."""
    return Generation()

  def network(self, dtype: str = "float32") -> Network:
    """Returns the network with the checkpoint's `settings`."""
    return network_for(self.settings(dtype))

  def restore(self, state: Any, partitioner: Any, dtype: str | None) -> Any:
    """Returns `state` with the checkpoint's parameters, in the partitioner's layout.

    Args:
      state: T5X's `InferenceState`: shapes and logical axes of the parameters.
      partitioner: partitioner that places parameters on devices.
      dtype: 'float32', 'bfloat16' or 'float16'. None keeps the checkpoint's dtypes. A
        table of n-grams always keeps the dtypes, because the table has token ids.

    Raises:
      ValueError: if the checkpoint can't be restored.
    """
    if not _is_float(state.params):
      dtype = None
    with self._named_errors():
      restored = self._restore(state, partitioner, dtype)
    check_finite(self.path, restored.params)
    return restored

  def load(self, network: Network, dtype: str | None = "float32") -> Any:
    """Returns the network's parameters on the default device, without T5X.

    Args:
      network: network of the checkpoint.
      dtype: as in `restore`.

    Raises:
      ValueError: if the checkpoint can't be restored.
    """
    variables = jax.eval_shape(lambda: blank_variables(network))
    expected = flat_shapes(variables["params"])
    if not _is_float(variables["params"]):
      dtype = None
    with self._named_errors():
      self._check_expected(expected)
      named_arrays = self._read_arrays(list(expected), dtype)
      flat = {name: jnp.asarray(array) for name, array in named_arrays}
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
        f"{error}). If files are damaged, copy the checkpoint again from the original."
      ) from error

  def _check_pointers(self) -> None:
    """Raises a ValueError if files are pointers of Git LFS. Called after an error."""
    lfs.check_folder(self.path)

  @property
  def _is_rearranged(self) -> bool:
    """Whether T5X's readers can't read the stored arrays as parameters."""
    return not scanned.is_identity(self._places, self._stored)

  @abc.abstractmethod
  def _read_shapes(self, directory: epath.Path) -> Shapes:
    """Returns the shapes of the stored arrays, from the index."""

  @abc.abstractmethod
  def _read_stored(self, name: str, dtype: str | None) -> np.ndarray:
    """Returns a stored array in host memory."""

  def _read_step(self) -> int:
    """Returns the stored step, or 0."""
    return 0

  def _restore(self, state: Any, partitioner: Any, dtype: str | None) -> Any:
    """Restores one stored array at a time, directly to the devices."""
    axes = flax.core.unfreeze(partitioner.get_mesh_axes(state).params)
    axes = flax.traverse_util.flatten_dict(axes, sep="/")
    flat = {}
    shapes = flat_shapes(state.params)
    self._check_expected(shapes)
    # Large arrays need the largest copies, so they are read first, into empty memory.
    largest_first = sorted(shapes, key=lambda name: -math.prod(shapes[name]))
    for name, array in self._read_arrays(largest_first, dtype):
      layout = jax.sharding.NamedSharding(partitioner.mesh, axes[name])
      flat[name] = jax.make_array_from_callback(shapes[name], layout, array.__getitem__)
    params = flax.core.freeze(flax.traverse_util.unflatten_dict(flat, sep="/"))
    step = jnp.asarray(self._read_step(), jnp.int32)
    return state.replace_params(params).replace_step(step)

  def _check_expected(self, expected: Shapes) -> None:
    shapes = {name: x for name, x in self.shapes.items() if name in expected}
    check_shapes(shapes, expected, f"Checkpoint {self.path}")

  def _read_arrays(
    self, names: Sequence[str], dtype: str | None
  ) -> Iterator[tuple[str, np.ndarray]]:
    """Yields names and parameters, in host memory.

    At most one stored array of stacked layers is in memory beside yielded parameters.
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
      del stored  # Frees the memory before the next array is read.


class T5X(Checkpoint):
  """A checkpoint in T5X's format: an index, and a folder of chunks for each array."""

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

    return readers.restore_t5x(self.path, state, partitioner, dtype)

  def _read_step(self):
    return t5x_index.step(epath.Path(self.path))

  def _read_arrays(self, names, dtype):
    t5x_index.check_whole(epath.Path(self.path), self._leaves)
    yield from super()._read_arrays(names, dtype)

  def _read_stored(self, name, dtype):
    return arrays.read_t5x(epath.Path(self.path), self._leaves[name], dtype)


class Orbax(Checkpoint):
  """A checkpoint in Orbax's format, written by T5X or by Orbax's writers."""

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

    return readers.restore_orbax(self.path, state, partitioner, dtype)

  def _read_step(self):
    return orbax_layout.step(self._layout, epath.Path(self.path))

  def _read_arrays(self, names, dtype):
    if self._is_rearranged:
      yield from super()._read_arrays(names, dtype)
      return
    # Orbax reads the arrays of a group concurrently.
    for group in _groups(names, self._stored):
      paths = [self._path(name) for name in group]
      group_arrays = arrays.read_orbax(self._layout.item, paths, dtype)
      for name, path in zip(group, paths, strict=True):
        yield name, group_arrays.pop(path)

  def _read_stored(self, name, dtype):
    path = self._path(name)
    return arrays.read_orbax(self._layout.item, [path], dtype)[path]

  def _path(self, name: str) -> str:
    return "/".join((*self._layout.above, name))


class HuggingFace(Checkpoint):
  """A folder in the format of transformers, read as T5X's parameters."""

  def __init__(self, path: str):
    super().__init__(path)
    self.folder = Folder.open(path)
    self.vocabulary_folder = self.path

  @property
  def generation(self):
    return self.folder.generation

  def settings(self, dtype="float32"):
    return dataclasses.replace(self.folder.config, dtype=dtype)

  def _check_pointers(self):
    # `Folder.open` has checked all files that are read. Other files may be pointers.
    pass

  def _read_shapes(self, directory):
    return self.folder.shapes

  def _read_arrays(self, names, dtype):
    logging.info("Restoring the Hugging Face folder %s as T5X's parameters.", self.path)
    yield from super()._read_arrays(names, dtype)

  def _read_stored(self, name, dtype):
    with np.errstate(over="ignore"):  # `check_finite` reports overflows.
      return np.asarray(self.folder.read(name), dtype and jnp.dtype(dtype))


def _groups(names: Sequence[str], shapes: Shapes) -> Iterator[list[str]]:
  """Yields names in groups of at most `_GROUP` numbers, or of one array."""
  group = []
  size = 0
  for name in names:
    if group and size + math.prod(shapes[name]) > _GROUP:
      yield group
      group = []
      size = 0
    group.append(name)
    size += math.prod(shapes[name])
  yield group


def _is_float(params: Any) -> bool:
  """Returns whether all parameters are floats. A table of n-grams has token ids."""
  leaves = jax.tree.leaves(params)
  return all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves)


def flat_shapes(tree) -> Shapes:
  """Returns the shapes of nested parameters by path, for example decoder/.../kernel."""
  flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(tree), sep="/")
  return {name: tuple(leaf.shape) for name, leaf in flat.items()}
