"""Reads the arrays of a folder's files, safetensors or Flax's, one at a time."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import ml_dtypes  # noqa: F401, registers NumPy's 'bfloat16', which safetensors uses.
import numpy as np
from etils import epy

from specdec_t5x.hugging_face import flax_file, lfs

with epy.lazy_imports():  # `make gpu` needs no safetensors.
  import safetensors

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLAX, FLAX_INDEX = "flax_model.msgpack", "flax_model.msgpack.index.json"
_DTYPES = ("F32", "BF16", "F16", "F64")
# Prefixes of torch.compile's and DataParallel's modules.
_WRAPPERS = ("_orig_mod.", "module.")
ADAPTER = "adapter_config.json"  # PEFT's, for example of LoRA.


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
class Array:
  """The location of an array."""

  path: pathlib.Path
  name: str  # The name in the file.
  shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Tensors:
  """The locations of a folder's arrays, by name. `open` checks all files' headers."""

  arrays: Mapping[str, Array]
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
      return cls(_header(weights))._unwrapped()
    listed = _listed(weights)
    arrays = {}
    for path in sorted(set(listed.values())):
      header = _header(path)
      arrays |= {
        name: header[name] for name in header if listed.get(name, path) == path
      }
    lost = {name: path for name, path in listed.items() if name not in arrays}
    return cls(arrays, lost)._unwrapped()

  def _unwrapped(self) -> "Tensors":
    """Returns the arrays without a wrapper's prefix, if all names have the prefix."""
    for prefix in _WRAPPERS:
      if self.arrays and all(name.startswith(prefix) for name in self.arrays):
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
    array = self.arrays[name]
    if _is_flax(array.path):
      return flax_file.read(array.path, array.name)
    with _opened(array.path) as file:
      return file.get_tensor(array.name)

  def renamed(self, new_name: Callable[[str], str | None]) -> "Tensors":
    """Returns the arrays by new names, without the arrays with the new name None."""
    arrays = {new_name(name): array for name, array in self.arrays.items()}
    lost = {new_name(name): path for name, path in self.lost.items()}
    arrays.pop(None, None)
    lost.pop(None, None)
    return Tensors(arrays, lost)


def _is_flax(path: pathlib.Path) -> bool:
  return path.suffix == ".msgpack"


def _opened(path: pathlib.Path) -> Any:
  """Returns an open safetensors file, a context manager."""
  # Pages of a memory-mapped file would count as memory of this process.
  return safetensors.safe_open(path, framework="np", backend="pread")


def _header(path: pathlib.Path) -> dict[str, Array]:
  """Returns the arrays of a file, by name."""
  try:
    if _is_flax(path):
      leaves = flax_file.headers(path)
      headers = {name: (leaf.dtype, leaf.shape) for name, leaf in leaves.items()}
    else:
      with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        headers = {x: (y.get_dtype(), tuple(y.get_shape())) for x, y in slices.items()}
  except (safetensors.SafetensorError, OSError, ValueError) as error:
    lfs.check(path)
    kind = "msgpack file of Flax's" if _is_flax(path) else "safetensors file"
    raise ValueError(
      f"{path} is not a complete {kind} ({error}). Copy the file again."
    ) from error
  for name, (dtype, _) in headers.items():
    if dtype not in _DTYPES:
      raise ValueError(
        f"{path}: {name} is {dtype}, expected one of {_DTYPES}. Quantised weights "
        "can't be read. Take the original weights."
      )
  return {name: Array(path, name, shape) for name, (_, shape) in headers.items()}


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


def about_adapter(folder: str | pathlib.Path) -> str:
  """Returns a sentence for the folder of an adapter; '' for another folder."""
  if not pathlib.Path(folder, ADAPTER).is_file():
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
