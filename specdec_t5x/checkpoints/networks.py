"""Networks with kinds and sizes that are read off checkpoints."""

import dataclasses
from typing import Any

from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.core.knobs import is_whole
from specdec_t5x.network import ngram
from specdec_t5x.network.functional import Network, Settings, network_for
from specdec_t5x.network.heads import FeatureDrafter


def _opened(path: str | None) -> Checkpoint:
  """Returns the checkpoint at a path, which gin files may leave out for a draft."""
  if path is None:
    raise ValueError(
      "DRAFT_CHECKPOINT_PATH must be set, got None. Give a checkpoint's folder; python "
      "-m specdec_t5x.train makes heads (--job=heads) and tables of n-grams "
      "(--job=ngrams). Or let the target draft for itself: "
      "--gin_file=configs/drafters/quantized.gin in place of DRAFTER='quantized'."
    )
  return Checkpoint.open(path)


def network_settings(path: str | None, dtype: str, **knobs: Any) -> Settings:
  """Returns the configuration of a checkpoint's network.

  Args:
    path: path of the checkpoint or of a Hugging Face folder.
    dtype: dtype of the activations.
    **knobs: further fields of the configuration: sharding, products, weights, head.

  Raises:
    ValueError: if there is no checkpoint at `path`, or `path` is None.
  """
  return dataclasses.replace(_opened(path).settings(dtype), **knobs)


def network_at(path: str, dtype: str = "float32") -> Network:
  """Returns the lowest network of a cascade: a draft model, or a table of n-grams.

  Args:
    path: path of the checkpoint, DRAFT_2_CHECKPOINT_PATH in gin files.
    dtype: dtype of the activations.

  Raises:
    ValueError: if there is no checkpoint at `path`. The message names the macro.
  """
  try:
    return network_for(Checkpoint.open(path).settings(dtype))
  except ValueError as error:
    raise ValueError(f"DRAFT_2_CHECKPOINT_PATH: {error}") from error


def ngram_table(path: str | None, order: int = 0) -> ngram.NgramTable:
  """Returns the network of a table of n-grams.

  Args:
    path: path of the table's checkpoint, which determines the size.
    order: length of the longest n-gram to use; 0 for the table's longest.

  Raises:
    ValueError: if there is no table at `path`, or `order` is invalid.
  """
  if not is_whole(order, 0):
    raise ValueError(
      f"NGRAM_ORDER must be a whole number of at least 0, got {order!r}. 0 means the "
      "table's order."
    )
  return ngram.NgramTable(ngram.config_from_shapes(_opened(path).shapes, order))


def heads(path: str | None, dtype: str = "float32") -> FeatureDrafter:
  """Returns the network of heads, with kind and size read off the checkpoint.

  Args:
    path: path of the checkpoint.
    dtype: dtype of the activations.

  Raises:
    ValueError: if there are no heads at `path`.
  """
  network = network_for(_opened(path).settings(dtype))
  if not isinstance(network, FeatureDrafter):
    raise ValueError(
      f"DRAFT_CHECKPOINT_PATH={path} must hold heads, got a {type(network).__name__}. "
      "Leave out configs/drafters/heads.gin, or give a checkpoint of heads."
    )
  return network
