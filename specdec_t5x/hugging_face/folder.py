"""Reads a folder of transformers' save_pretrained as a network and T5X's parameters.

No code in the folder runs. config.json is data, and arrays are safetensors or msgpack.
"""

import dataclasses
import functools
import math
import pathlib
import re
import warnings
from collections.abc import Mapping

import flax
import jax
import numpy as np

from specdec_t5x import console
from specdec_t5x.hugging_face import gemma, generation, names, settings
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.hugging_face.tensors import Tensors, read_json
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.functional import blank_variables, network_for

CONFIG = "config.json"


def their_name(path: str, config: T5Config) -> str:
  """Returns Hugging Face's name of a parameter, for T5 and T5Gemma."""
  return gemma.their_name(path, config) if config.is_gemma else names.their_name(path)


def _embeddings(config: T5Config) -> tuple[str, ...]:
  """Returns all names of the embedding; a file holds one array, or copies.

  The first name is the usual name, and the last name is the output projection's.
  """
  first = their_name(names.EMBEDDING, config)
  aliases = () if config.has_encoder_table else names.ALIASES
  head = their_name(names.LOGITS, config)
  return tuple(dict.fromkeys((first, *aliases, head)))


@dataclasses.dataclass(frozen=True)
class Folder:
  """A Hugging Face folder of a T5 or a T5Gemma, read by `open`."""

  path: str
  # The network, in float32. A T5's embedding projects to the logits if the embedding is
  # the file's output projection and features are scaled, as in T5 1.0. Otherwise a
  # separate matrix, with any scale multiplied in, projects to the logits.
  config: T5Config
  is_scaled: bool  # Whether features are scaled by emb_dim^-0.5 before the logits.
  tensors: Tensors
  embedding: str  # Names of the embedding and the output projection in `tensors`.
  head: str
  generation: Generation

  @classmethod
  def open(cls, path: str) -> "Folder":
    """Reads a folder without the arrays, and checks that all files match.

    Raises:
      ValueError: if the folder is damaged, or the network is not supported.
    """
    folder = pathlib.Path(path)
    raw_config = read_json(folder / CONFIG)
    config = settings.from_theirs(raw_config, str(folder / CONFIG))
    generates = generation.read(folder, config.vocab_size)
    if generates.start_id is not None:
      config = dataclasses.replace(config, start_token=generates.start_id)
    tensors = Tensors.open(folder)
    if config.is_gemma:
      tensors = tensors.renamed(gemma.text_name)
    tensors = _without_leftovers(path, tensors)
    _check_layers(path, config, tensors)
    embeddings = _embeddings(config)
    last = embeddings[-1]
    is_tied = raw_config.get("tie_word_embeddings", True)
    copies = embeddings if is_tied else embeddings[:-1]
    is_stored = any(name in tensors.arrays for name in copies)
    tensors.check_lost({names.UNUSED, *(copies if is_stored else ())})
    _check_arrays(path, config, tensors)
    embedding = next((x for x in embeddings if x in tensors.arrays), embeddings[0])
    head = last if last in tensors.arrays else embedding
    is_scaled = not config.is_gemma and settings.has_scaled_logits(raw_config)
    tied = (is_scaled or config.is_gemma) and (
      head == embedding or np.array_equal(tensors.read(head), tensors.read(embedding))
    )
    config = dataclasses.replace(config, logits_via_embedding=tied)
    if last not in tensors.arrays and not is_tied:
      warnings.warn(
        f"{folder / CONFIG} says that embeddings are not tied, but {last} is missing: "
        f"logits come from {embedding}, as in transformers 5. (4 would draw a matrix "
        f"at random.) If a file with {last} is missing, copy it, too.",
        stacklevel=2,
      )
    return cls(str(path), config, is_scaled, tensors, embedding, head, generates)

  @property
  def shapes(self) -> Mapping[str, tuple[int, ...]]:
    """The shape of each parameter, by T5X's names."""
    return _shapes(self.config)

  def read(self, name: str) -> np.ndarray:
    """Returns a parameter by T5X's name, in the file's dtype.

    Raises:
      ValueError: if the file has two different embeddings.
    """
    if name == names.LOGITS:
      matrix = self.tensors.read(self.head).T
      if not self.is_scaled:
        return matrix
      # The scale is multiplied in once, in float32 for any dtype, not for each token.
      return matrix.astype(np.float32) * np.float32(1 / math.sqrt(self.config.emb_dim))
    if name != names.EMBEDDING:
      array = self.tensors.read(their_name(name, self.config))
      return array.T if names.is_transposed(name) else array
    embedding = self.tensors.read(self.embedding)
    for alias in _embeddings(self.config)[1:-1]:
      is_stored = alias in self.tensors.arrays
      if is_stored and not np.array_equal(self.tensors.read(alias), embedding):
        raise ValueError(
          f"{self.path}: {alias} is not {self.embedding}. Expected one embedding for "
          "encoder and decoder, as in T5. A model with two embeddings can't be read."
        )
    return embedding


def _without_leftovers(path, tensors: Tensors) -> Tensors:
  """Returns the arrays without zeros from old conversions, and prints a message.

  A bias of zeros has no effect. Nonzero arrays of the same names are kept, and a later
  check refuses the arrays, because a T5 has no parameters of these names.
  """
  candidates = [name for name in tensors.arrays if name.endswith(names.LEFTOVERS)]
  zeros = {name for name in candidates if not tensors.read(name).any()}
  if zeros:
    _say_once(
      f"{path}: left out {len(zeros)} arrays of zeros from an old conversion; the "
      f"first is {min(zeros)}. A T5 lacks the parameters."
    )
  return tensors.renamed(lambda name: None if name in zeros else name)


# Several parts of a run open the same folder, and the message is printed once.
_say_once = functools.cache(console.say)


def _check_layers(path, config, tensors):
  """Raises a ValueError if config.json and the files differ in the number of layers.

  The check precedes building a network, because a damaged number may be huge.
  """
  for stack in ("encoder", "decoder"):
    layer = rf"{stack}\.(?:block|layers)\.(\d+)\."
    matches = [re.match(layer, name) for name in tensors.arrays]
    count = len({match[1] for match in matches if match})
    wanted = getattr(config, f"num_{stack}_layers")
    if count != wanted:
      raise ValueError(
        f"{path}: {CONFIG} says {wanted} {stack} layers, but the files hold {count}. "
        "The files belong to different models, or files are missing. Copy the whole "
        "folder again."
      )


def _check_arrays(path, config, tensors):
  """Raises a ValueError if an array is missing, surplus or of another shape."""
  wanted = {}
  for name, shape in _shapes(config).items():
    shape = shape[::-1] if names.is_transposed(name) else shape
    wanted[their_name(name, config)] = shape
  embeddings = _embeddings(config)
  copies = dict.fromkeys(embeddings, wanted[embeddings[0]])
  missing = sorted(set(wanted) - set(copies) - set(tensors.arrays))
  if not set(copies) & set(tensors.arrays):
    missing.append(embeddings[0])
  if missing:
    raise ValueError(
      f"{path} lacks {len(missing)} of a T5's {len(wanted)} arrays; the first is "
      f"{missing[0]}. Expected a T5 with encoder, decoder and output projection."
    )
  wanted |= copies
  surplus = sorted(set(tensors.arrays) - set(wanted) - {names.UNUSED})
  if surplus:
    raise ValueError(
      f"{path} holds {len(surplus)} arrays that a T5 lacks; the first is {surplus[0]}. "
      f"{CONFIG} belongs to another network."
    )
  for name, array in tensors.arrays.items():
    if array.shape != wanted.get(name, array.shape):
      raise ValueError(
        f"{path}: {name} has shape {array.shape}, but {CONFIG} gives {wanted[name]}. "
        f"The files belong to different models. Copy the weights and {CONFIG} again."
      )


@functools.lru_cache(maxsize=8)
def _shapes(config: T5Config) -> dict[str, tuple[int, ...]]:
  variables = jax.eval_shape(lambda: blank_variables(network_for(config)))
  flat = flax.traverse_util.flatten_dict(variables["params"], sep="/")
  return {name: tuple(leaf.shape) for name, leaf in flat.items()}
