"""Reads the arrays of a folder's files, safetensors or Flax's, one at a time."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import ml_dtypes  # noqa: F401, registers NumPy's 'bfloat16', which safetensors uses.
import numpy as np

from specdec_t5x.hugging_face import flax_file, lfs

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLAX, FLAX_INDEX = "flax_model.msgpack", "flax_model.msgpack.index.json"
_DTYPES = ("F32", "BF16", "F16", "F64")
# Prefixes of torch.compile's and DataParallel's modules.
_WRAPPERS = ("_orig_mod.", "module.")
ADAPTER = "adapter_config.json"  # PEFT's, for example of LoRA.
_ROWS = 4096  # Rows that are compared at once.


def read_json(path: pathlib.Path) -> Mapping[str, Any]:
  """Returns the object in a JSON file.

  Raises:
    ValueError: if the file can't be read or holds no JSON object.
  """
  try:
    contents = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError) as error:
    lfs.check(path)
    raise ValueError(f"{path} can't be read ({error}). Copy the file again.") from error
  if not isinstance(contents, dict):
    raise ValueError(f"{path} must hold a JSON object. Copy the file again.")
  return contents


@dataclasses.dataclass(frozen=True)
class Tensors:
  """The locations of a folder's arrays, by name. `open` checks all files' headers."""

  files: Mapping[str, pathlib.Path]
  shapes: Mapping[str, tuple[int, ...]]
  # The names of renamed arrays in the file.
  inner: Mapping[str, str] = dataclasses.field(default_factory=dict)
  # The files of arrays in the index that no file holds.
  lost: Mapping[str, pathlib.Path] = dataclasses.field(default_factory=dict)

  @classmethod
  def open(cls, folder: pathlib.Path) -> "Tensors":
    """Reads the headers of all files without reading arrays.

    An index may name arrays that no file holds, for example copies of a tied embedding.
    The caller checks such arrays (`check_lost`).

    Raises:
      ValueError: if a file is missing, damaged or of another format.
    """
    paths = [folder / name for name in (SINGLE, INDEX, FLAX, FLAX_INDEX)]
    weights = next((path for path in paths if path.is_file()), None)
    if weights is None:
      raise ValueError(_without_weights(folder))
    if weights.name in (SINGLE, FLAX):
      shapes = _header(weights)
      return cls(dict.fromkeys(shapes, weights), shapes)._unwrapped()
    listed = _listed(weights)
    files = {}
    shapes = {}
    for path in sorted(set(listed.values())):
      for name, shape in _header(path).items():
        if listed.get(name, path) == path:
          files[name] = path
          shapes[name] = shape
    lost = {name: path for name, path in listed.items() if name not in files}
    return cls(files, shapes, lost=lost)._unwrapped()

  def _unwrapped(self) -> "Tensors":
    """Returns the arrays without a wrapper's prefix, if all names have the prefix."""
    for prefix in _WRAPPERS:
      if self.files and all(name.startswith(prefix) for name in self.files):
        unwrapped = self.renamed(lambda name, prefix=prefix: name.removeprefix(prefix))
        return unwrapped._unwrapped()
    return self

  def check_lost(self, spare: Collection[str]) -> None:
    """Raises a ValueError if no file holds an array that the index names.

    Args:
      spare: names of arrays that the network does not need.
    """
    lost = sorted(set(self.lost) - set(spare))
    if lost:
      path = self.lost[lost[0]]
      index = path.with_name(FLAX_INDEX if _is_flax(path) else INDEX)
      raise ValueError(
        f"{path} lacks {lost[0]}, but {index} lists the array. The files belong to "
        "different models. Copy the whole folder again."
      )

  def read(self, name: str) -> np.ndarray:
    """Returns a copy of an array in the file's dtype and axes."""
    path = self.files[name]
    inner = self.inner.get(name, name)
    if _is_flax(path):
      return flax_file.read(path, inner)
    with _opened(path) as file:
      return file.get_tensor(inner)

  def renamed(self, new_name: Callable[[str], str | None]) -> "Tensors":
    """Returns the arrays by new names, without the arrays with the new name None."""
    old_names = {new_name(name): name for name in self.files}
    old_names.pop(None, None)
    lost = {new_name(name): path for name, path in self.lost.items()}
    lost.pop(None, None)
    return Tensors(
      files={name: self.files[old] for name, old in old_names.items()},
      shapes={name: self.shapes[old] for name, old in old_names.items()},
      inner={name: self.inner.get(old, old) for name, old in old_names.items()},
      lost=lost,
    )

  def are_equal(self, first: str, second: str) -> bool:
    """Returns whether two matrices are equal, reading a few rows at a time."""
    if self.shapes[first] != self.shapes[second]:
      return False
    blocks = zip(self._blocks(first), self._blocks(second), strict=True)
    return all(np.array_equal(*pair) for pair in blocks)

  def _blocks(self, name: str) -> Iterator[np.ndarray]:
    """Yields a matrix in blocks of rows. Flax's files are read as a whole."""
    path = self.files[name]
    count = self.shapes[name][0]
    blocks = [slice(at, min(at + _ROWS, count)) for at in range(0, count, _ROWS)]
    if _is_flax(path):
      array = self.read(name)
      for block in blocks:
        yield array[block]
      return
    with _opened(path) as file:
      array = file.get_slice(self.inner.get(name, name))
      for block in blocks:
        yield array[block]


def _is_flax(path: pathlib.Path) -> bool:
  return path.suffix == ".msgpack"


def _opened(path: pathlib.Path) -> Any:
  """Returns an open safetensors file, a context manager."""
  # Machines that measure random networks have no safetensors (`make gpu`).
  import safetensors

  # Pages of a memory-mapped file would count as memory of this process.
  return safetensors.safe_open(path, framework="np", backend="pread")


def _header(path: pathlib.Path) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of a file's arrays, by name."""
  import safetensors

  try:
    if _is_flax(path):
      leaves = flax_file.headers(path)
      kinds = {name: leaf.dtype for name, leaf in leaves.items()}
      shapes = {name: leaf.shape for name, leaf in leaves.items()}
    else:
      with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        kinds = {name: x.get_dtype() for name, x in slices.items()}
        shapes = {name: tuple(x.get_shape()) for name, x in slices.items()}
  except (safetensors.SafetensorError, OSError, ValueError) as error:
    lfs.check(path)
    kind = "msgpack file of Flax's" if _is_flax(path) else "safetensors file"
    raise ValueError(
      f"{path} is not a complete {kind} ({error}). Copy the file again."
    ) from error
  for name, kind in kinds.items():
    if kind not in _DTYPES:
      raise ValueError(
        f"{path}: {name} is {kind}, expected one of {_DTYPES}. Quantised weights can't "
        "be read. Take the original weights."
      )
  return shapes


def _listed(index: pathlib.Path) -> dict[str, pathlib.Path]:
  """Returns the file of each array in an index."""
  folder = index.parent
  files = read_json(index).get("weight_map")
  if not isinstance(files, dict) or not files:
    raise ValueError(
      f"{index} has no 'weight_map' from arrays to files. Copy the file again."
    )
  for name in files.values():
    # A link may lead out of the folder, as in Hugging Face's cache. A name must not.
    plain = isinstance(name, str) and "\\" not in name and "\0" not in name
    if not plain or pathlib.PurePath(name).name != name:
      raise ValueError(
        f"{index} names the file {name!r}, expected a file in the index's folder. Do "
        "not use the folder."
      )
    if not (folder / name).is_file():
      raise ValueError(
        f"{folder} lacks {name}, one of the {len(set(files.values()))} files in the "
        f"index. Copy {name}, too."
      )
  their_name = flax_file.their_name if index.name == FLAX_INDEX else str
  return {their_name(name): folder / file for name, file in files.items()}


def about_adapter(folder: pathlib.Path) -> str:
  """Returns a sentence for the folder of an adapter; '' for another folder."""
  if not (folder / ADAPTER).is_file():
    return ""
  return (
    f" {ADAPTER} says that {folder} is an adapter without the base model. Merge both "
    "with peft, and give the new folder: model.merge_and_unload().save_pretrained(DIR)."
  )


def _without_weights(folder: pathlib.Path) -> str:
  if adapter := about_adapter(folder):
    return f"{folder} lacks the weights of a model.{adapter}"
  kinds = ("*.bin", "*.h5", "*.pt", "*.ckpt")
  others = sorted(path.name for kind in kinds for path in folder.glob(kind))
  if not others:
    return (
      f"{folder} has a config.json, but lacks weights ({SINGLE}, {INDEX}, {FLAX} or "
      f"{FLAX_INDEX}). Copy the weights, too."
    )
  lfs.check(folder / others[0])
  return (
    f"{folder} has {others[0]} and no {SINGLE}: pickles run code when loaded, and are "
    f"not read. If you trust {others[0]}, load the model with transformers and write "
    "the model again: model.save_pretrained(DIR)."
  )
