"""A checkpoint on disk: kind, shapes, configuration and parameters, without T5X.

`Checkpoint.load` reads parameters onto one device. `t5x_bridge.restore` fills a T5X
state in a partitioner's layout.
"""

import abc
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath, epy

from specdec_t5x.checkpoints import scanned
from specdec_t5x.checkpoints.checks import (
  Shapes,
  check_finite,
  check_shapes,
  flat_shapes,
  is_float,
)
from specdec_t5x.hugging_face import lfs
from specdec_t5x.hugging_face.folder import CONFIG, Folder
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.hugging_face.tensors import about_adapter
from specdec_t5x.network import config
from specdec_t5x.network.functional import (
  Network,
  Settings,
  blank_variables,
  network_config,
)

with epy.lazy_imports():  # Decoding without checkpoints needs neither.
  import orbax.checkpoint as ocp
  import tensorstore as ts

INDEX = "checkpoint"  # T5X's index file.
_STATE = "state"  # T5X's Orbax item.
# The items that T5X and Orbax's CheckpointManager write.
_ITEMS = (_STATE, "default", "items")
# Names above a network's parameters. The first name that a tree contains is used.
_ABOVE = ("target", "params", "model", "train_state", "state", "optimizer")
_SAVE = "orbax.checkpoint.StandardCheckpointer().save(DIR, params)."
# Numbers that Orbax reads concurrently: 256 MB in float32.
_GROUP = 2**26


class Checkpoint(abc.ABC):
  """A network's parameters on disk. `open` detects the format."""

  vocabulary_folder: str | None = None  # The folder, if it may hold the vocabulary.
  step: int = 0  # The step of the training.
  generation = Generation()  # The settings of a Hugging Face folder.
  _t5x_reader: str | None = None  # The reader of T5X for this format.

  def __init__(self, path: str):
    self.path = str(path)

  @staticmethod
  def open(path: str) -> "Checkpoint":
    """Returns the checkpoint of a folder, without reading parameters.

    A path may begin with ~, the user's home.

    Raises:
      ValueError: if there is no checkpoint, or a Hugging Face folder is not a T5's.
    """
    if not isinstance(path, str | os.PathLike) or not str(path):
      raise ValueError(
        f"Expected the path of a checkpoint's folder, got {path!r}. Give a path, in "
        "quotes."
      )
    path = os.path.expanduser(path)
    if os.path.isdir(path):  # Parameters may be read after a change of directory.
      path = str(pathlib.Path(path).absolute())
    if (pathlib.Path(path) / CONFIG).is_file():
      return HuggingFace(path)
    if re.match("(https?|hf)://", path) or not epath.Path(path).is_dir():
      raise ValueError(
        f"{path} is not a directory. Expected a T5X checkpoint (a folder with an index "
        f"file {INDEX!r}), an Orbax checkpoint (with a folder {_STATE!r}) or a Hugging "
        f"Face folder (with {CONFIG}). Nothing is downloaded: download a model of a "
        "hub yourself, and give the path of the local folder."
      )
    directory = epath.Path(path)
    if (directory / INDEX).is_file():
      return T5X(path)
    if item := _item_of(directory):
      return Orbax(path, item)
    raise ValueError(
      f"{path} holds no checkpoint: the folder has neither a file {INDEX!r} (T5X) nor "
      f"a folder {_STATE!r} (Orbax) nor {CONFIG} (Hugging Face). Give the folder of "
      f"one step, as .../checkpoint_1000, or copy {CONFIG}, too.{about_adapter(path)}"
    )

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
    check_shapes(shapes, expected, f"{macro}={path}")
    return checkpoint

  @functools.cached_property
  def shapes(self) -> Shapes:
    """The shape of each parameter, read from the index alone."""
    return {name: place.shape for name, place in self._places.items()}

  @functools.cached_property
  def _places(self) -> Mapping[str, scanned.Place]:
    """The location of each parameter."""
    with self.named_errors(f"The index of checkpoint {self.path} can't be read"):
      stored = self._stored
    return scanned.places(stored, f"Checkpoint {self.path}")

  @property
  @abc.abstractmethod
  def _stored(self) -> Shapes:
    """The shapes of the stored arrays, from the index."""

  @property
  def t5x_reader(self) -> str | None:
    """The reader of T5X, 't5x' or 'orbax'; None if arrays are rearranged or unknown."""
    unchanged = {name: scanned.Place(name, x) for name, x in self._stored.items()}
    return self._t5x_reader if self._places == unchanged else None

  def settings(self, dtype: str = "float32") -> Settings:
    """Returns the configuration of the network.

    The configuration of a Hugging Face folder comes from config.json. The configuration
    of other checkpoints is read off the shapes. A gated feed-forward layer has T5 1.1's
    gated GELU, another layer T5 1.0's ReLU.

    Args:
      dtype: dtype of the activations.

    Raises:
      ValueError: if the index can't be read or describes no known network.
    """
    return network_config(self.shapes, dtype)

  def load(self, network: Network, dtype: str | None = "float32") -> Any:
    """Returns the network's parameters on the default device, without T5X.

    Args:
      network: network of the checkpoint.
      dtype: 'float32', 'bfloat16' or 'float16'. None keeps the checkpoint's dtypes. A
        table of n-grams always keeps the dtypes, because the table has token ids.

    Raises:
      ValueError: if the checkpoint can't be restored.
    """
    variables = jax.eval_shape(lambda: blank_variables(network))
    if not is_float(variables["params"]):
      dtype = None
    expected = flat_shapes(variables["params"])
    with self.named_errors(f"Checkpoint {self.path} could not be restored"):
      flat = {name: jnp.asarray(array) for name, array in self.read(expected, dtype)}
    check_finite(self.path, flat)
    return flax.core.freeze(flax.traverse_util.unflatten_dict(flat, sep="/"))

  @contextlib.contextmanager
  def named_errors(self, problem: str) -> Iterator[None]:
    """Turns a reader's exception into a ValueError that begins with `problem`."""
    try:
      yield
    except Exception as error:  # msgpack, Orbax and tensorstore raise different types.
      # `Folder.open` has checked the files of a Hugging Face folder that are read.
      if not isinstance(self, HuggingFace):
        lfs.check(self.path)
      raise ValueError(
        f"{problem} ({type(error).__name__}: {error}). If files are damaged or "
        "missing, copy the checkpoint again from the original."
      ) from error

  def read(
    self, expected: Shapes, dtype: str | None
  ) -> Iterator[tuple[str, np.ndarray]]:
    """Yields names and parameters, in host memory.

    At most one stored array of stacked layers is in memory beside yielded parameters.

    Args:
      expected: shapes of the parameters to read.
      dtype: dtype of the parameters; None keeps the stored dtypes.

    Raises:
      ValueError: if a parameter is missing or has another shape.
    """
    shapes = {name: x for name, x in self.shapes.items() if name in expected}
    check_shapes(shapes, expected, f"Checkpoint {self.path}")
    names_by_stored = {}
    for name in expected:
      names_by_stored.setdefault(self._places[name].name, []).append(name)
    for stored_name, stored in self._read_stored(list(names_by_stored)):
      if stored.shape != self._stored[stored_name]:
        raise ValueError(
          f"{stored_name} has the shape {stored.shape} on disk, but the index has "
          f"{self._stored[stored_name]}"
        )
      with np.errstate(over="ignore"):  # `check_finite` reports overflows.
        stored = np.asarray(stored, dtype and jnp.dtype(dtype))
      for name in names_by_stored[stored_name]:
        yield name, self._places[name].take(stored)
      del stored  # Frees the memory before the next array is read.

  @abc.abstractmethod
  def _read_stored(self, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields names and stored arrays, in host memory."""


class T5X(Checkpoint):
  """A checkpoint in T5X's format: an index, and a folder of chunks for each array."""

  _t5x_reader = "t5x"

  @functools.cached_property
  def _index(self) -> Mapping[str, Any]:
    contents = (epath.Path(self.path) / INDEX).read_bytes()
    return flax.serialization.msgpack_restore(contents)["optimizer"]

  @functools.cached_property
  def _leaves(self) -> Mapping[str, Any]:
    """The index's entry of each parameter: a small array, or the array's location."""
    return flax.traverse_util.flatten_dict(
      self._index["target"],
      sep="/",
      is_leaf=lambda _, leaf: isinstance(leaf, dict) and "driver" in leaf,
    )

  @property
  def step(self):
    return int(self._index["state"]["step"])

  @functools.cached_property
  def _stored(self):
    return {
      name: tuple(leaf["metadata"]["shape"] if isinstance(leaf, dict) else leaf.shape)
      for name, leaf in self._leaves.items()
    }

  def _read_stored(self, names):
    for name in names:
      leaf = self._leaves[name]
      yield name, self._read_chunks(leaf) if isinstance(leaf, dict) else leaf

  def _read_chunks(self, leaf: Mapping[str, Any]) -> np.ndarray:
    # A path may include the bucket from which the checkpoint was copied. The folder of
    # the array is beside the index.
    path = leaf.get("path") or leaf["kvstore"]["path"]
    folder = epath.Path(self.path) / path.strip("/").split("/")[-1]
    address = {"driver": "file", "path": f"{folder.absolute()}/"}
    if "://" in self.path:
      address = f"{folder}/"
    # By default tensorstore reads a missing file as zeros.
    spec = {"driver": "zarr", "kvstore": address, "fill_missing_data_reads": False}
    store = ts.open(spec, read=True).result()
    if name := leaf.get("dtype"):
      # tensorstore trusts the metadata on disk, and would return wrong numbers.
      metadata = store.spec().to_json()["metadata"]
      layout = metadata["dtype"], metadata["order"]
      kind = name if name == "bfloat16" else np.dtype(name).newbyteorder("<").str
      if layout != (kind, "C"):
        raise ValueError(
          f"the array on disk is {layout}, but the index records {(kind, 'C')}"
        )
    return store.read().result()


class Orbax(Checkpoint):
  """A checkpoint in Orbax's format, written by T5X or by Orbax's writers.

  T5X writes an item 'state' with the parameters under 'target'. Orbax's writers put the
  parameters at the top (StandardCheckpointer) or into an item (CheckpointManager), with
  or without a step and an optimizer's state beside the parameters.
  """

  def __init__(self, path: str, item: epath.Path):
    super().__init__(path)
    self._item = item  # The folder of the arrays.

  @functools.cached_property
  def _metadata(self) -> Mapping[str, Any]:
    """The metadata of the item's arrays by path; empty without names."""
    with ocp.PyTreeCheckpointer() as checkpointer:
      tree = checkpointer.metadata(self._item.resolve()).item_metadata.tree
    tree = dict(tree) if isinstance(tree, Mapping) else {}
    return flax.traverse_util.flatten_dict(tree, sep="/")

  @functools.cached_property
  def _above(self) -> str:
    """The names above the parameters in the item's tree, for example 'target/'."""
    above = ""
    while names := [
      name
      for name in _ABOVE
      if any(x.startswith(f"{above}{name}/") for x in self._metadata)
    ]:
      above += f"{names[0]}/"
    return above

  @property
  def _t5x_reader(self):
    directory = epath.Path(self.path)
    is_t5x = (
      self._above == "target/"
      and self._item == directory / _STATE
      and re.fullmatch(r"checkpoint_\d+", directory.name)
    )
    return "orbax" if is_t5x else None

  @property
  def step(self):
    """The step in the tree, else in the folder's name, else 0."""
    if paths := [x for x in self._metadata if x.split("/")[-1] == "step"]:
      path = min(paths, key=len)  # An optimizer's state is deeper in the tree.
      return int(self._read_paths([path])[path])
    number = re.fullmatch(r"(?:.*_)?(\d+)", epath.Path(self.path).name)
    return int(number[1]) if number else 0

  @functools.cached_property
  def _places(self):
    places = super()._places
    if self._t5x_reader or config.GEMMA_NORM in places:
      return places  # A T5Gemma's configuration can't be read off the shapes.
    try:
      network_config({name: place.shape for name, place in places.items()})
    except (ValueError, KeyError, IndexError) as error:
      raise ValueError(
        f"{self.path} is an Orbax checkpoint with the arrays {sorted(places)[:3]}, "
        f"{len(places)} in all: not the parameters of a network under T5X's names "
        f"({error}). Save the parameters alone, under T5X's names: {_SAVE}"
      ) from error
    return places

  @functools.cached_property
  def _stored(self):
    return {
      path.removeprefix(self._above): tuple(leaf.shape)
      for path, leaf in self._metadata.items()
      if path.startswith(self._above) and hasattr(leaf, "shape")
    }

  def _read_stored(self, names):
    ends = itertools.accumulate(math.prod(self._stored[name]) for name in names)
    groups = itertools.groupby(zip(names, ends, strict=True), lambda x: x[1] // _GROUP)
    # Orbax reads the arrays of a group concurrently.
    for _, group in groups:
      paths = [self._above + name for name, _ in group]
      arrays = self._read_paths(paths)
      for path in paths:
        yield path.removeprefix(self._above), arrays.pop(path)

  def _read_paths(self, paths: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns arrays by their paths in the item's tree."""
    flat_args = dict.fromkeys(paths, ocp.RestoreArgs(restore_type=np.ndarray))
    restore_args = flax.traverse_util.unflatten_dict(flat_args, sep="/")
    request = ocp.args.PyTreeRestore(
      item=jax.tree.map(lambda _: 0, restore_args),
      restore_args=restore_args,
      partial_restore=True,
    )
    with ocp.PyTreeCheckpointer() as checkpointer:
      restored = checkpointer.restore(self._item.absolute(), args=request)
    return flax.traverse_util.flatten_dict(restored, sep="/")


def _item_of(directory: epath.Path) -> epath.Path | None:
  """Returns the folder of an Orbax checkpoint's arrays, or None."""

  def is_item(path):
    return (path / "_METADATA").is_file() or (path / "manifest.ocdbt").is_file()

  paths = [directory, *(directory / name for name in _ITEMS)]
  if item := next(filter(is_item, paths), None):
    return item
  if items := sorted(path.name for path in directory.iterdir() if is_item(path)):
    raise ValueError(
      f"{directory} is an Orbax checkpoint with the items {items}, expected an item "
      f"{', '.join(map(repr, _ITEMS[:-1]))} or {_ITEMS[-1]!r}. Give the path of the "
      f"item with the parameters, or save the parameters without an item: {_SAVE}"
    )
  return None


class HuggingFace(Checkpoint):
  """A folder in the format of transformers, read as T5X's parameters."""

  def __init__(self, path: str):
    super().__init__(path)
    self.folder = Folder.open(path)
    self.generation = self.folder.generation
    self.vocabulary_folder = self.path

  def settings(self, dtype="float32"):
    return dataclasses.replace(self.folder.config, dtype=dtype)

  @property
  def _stored(self):
    return self.folder.shapes

  def _read_stored(self, names):
    for name in names:
      yield name, self.folder.read(name)
