"""Trains and compares all kinds of drafts that read a target, in one command."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from specdec_t5x import api, build, console, tables
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.network.functional import Network
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.training import batches, outputs
from specdec_t5x.training.batches import TaskData
from specdec_t5x.vocabularies.frames import end_ids_of

_ROWS = 16


def train_heads(
  kinds: str | Sequence[str],
  make: Callable[..., Network],
  train: Callable[..., Any],
  data: TaskData,
  target_checkpoint: str,
  output_dir: str,
  gamma: int,
  *,
  lines: int = 100,
) -> list[dict[str, Any]]:
  """Trains each kind of draft that reads a target, and prints and returns a table.

  `train` returns at once for a kind whose training is complete, so a killed run can be
  resumed.

  Args:
    kinds: one or several kinds of `new_heads.new_heads`.
    make: returns the network of a kind.
    train: `jobs.train`, as a function of network and output_dir.
    data: the training examples; the drafts are compared on the validation split.
    target_checkpoint: path of the target's checkpoint.
    output_dir: folder for one folder per kind, named by the kind.
    gamma: draft length in the comparison.
    lines: number of inputs to decode.
  """
  kinds = [kinds] if isinstance(kinds, str) else list(kinds)
  # All networks come first, so that an invalid kind raises an error before training.
  networks = {kind: make(kind=kind) for kind in kinds}
  rows = []
  for kind, network in networks.items():
    directory = os.path.join(output_dir, kind)
    console.stage(f"Heads of kind {kind!r}: {directory}.")
    state = train(network=network, output_dir=directory)
    checkpoint = f"checkpoint_{int(state.step)}"
    target_path = target_checkpoint
    draft_path = os.path.join(directory, checkpoint)
    heads_path = os.path.join(directory, "heads", checkpoint)
    if os.path.isdir(heads_path):  # The target was trained together with the heads.
      target_path = draft_path
      draft_path = heads_path
    console.stage(f"Decoding {lines} validation inputs with the heads.")
    row = _measured(target_path, draft_path, data, gamma, lines)
    rows.append({"kind": kind, **row, "checkpoint": draft_path})
  # In texts without inputs, the start of an output is unknown.
  if not data.is_decoder_only:
    print(f"Tokens per target call, drafts of {gamma}, {lines} validation inputs:")
  print(tables.aligned([list(rows[0]), *(list(row.values()) for row in rows)]))
  return rows


def _measured(target_path, draft_path, data, gamma, lines) -> dict[str, Any]:
  """Returns a draft's size, tokens per target call, and gin file for decoding."""
  target = api.load_model(target_path)
  draft = api.load_model(draft_path)
  size = sum(leaf.size for leaf in jax.tree.leaves(draft.params))
  row = {"parameters": f"{size / 1e6:.2f}M"}
  if not data.is_decoder_only:
    decoder, params = build.together(target, draft, gamma=gamma)
    data = dataclasses.replace(data, split=data.validation_split, batch_size=_ROWS)
    for sampling in (GREEDY, Sampling(1.0)):
      count = _counting(decoder, sampling, data)
      decoded = outputs.decode_split(data, count, params, lines)
      emitted, calls = sum(counts for _, counts in decoded)
      row[f"T = {sampling.temperature:g}"] = f"{emitted / calls:.2f}"
  gin_file = "heads" if isinstance(draft.network, FeatureDrafter) else "shared_encoder"
  return {**row, "gin_file": f"configs/drafters/{gin_file}.gin"}


def _counting(decoder, sampling, data) -> outputs.DecodeFn:
  """Returns a decode that counts the tokens and the target calls of each output."""
  end_ids = end_ids_of(batches.target_vocabulary(data.task))
  run = api.compiled(decoder, sampling, data.feature_lengths["targets"], end_ids)

  def count(params, inputs, number):
    keys = row_keys(jax.random.key(0), len(inputs), number * len(inputs))
    statistics = run(params, inputs, keys).statistics
    return np.stack([statistics.emitted, statistics.target_calls], axis=1)

  return count
