"""One command for the drafts that read a target: train each kind, and compare them."""

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
  lines: int = 100,
) -> list[dict[str, Any]]:
  """Trains each kind of draft that reads a target, prints and returns what they gave.

  `train` returns at once for a kind that is trained, so a run that was killed goes on.

  Args:
    kinds: of `new_heads.new_heads`, one or several.
    make: from a kind to its network.
    train: `jobs.train`, given network and output_dir.
    data: on which examples; the validation split's are decoded.
    target_checkpoint: of the target.
    output_dir: gets a folder of a kind's name for each.
    gamma: tokens of a draft, where they are compared.
    lines: how many inputs are decoded.
  """
  kinds = [kinds] if isinstance(kinds, str) else list(kinds)
  networks = {kind: make(kind=kind) for kind in kinds}  # What can't be is said at once.
  rows = []
  for kind, network in networks.items():
    directory = os.path.join(output_dir, kind)
    console.stage(f"Heads of kind {kind!r}: {directory}.")
    state = train(network=network, output_dir=directory)
    checkpoint = f"checkpoint_{int(state.step)}"
    target, draft = target_checkpoint, os.path.join(directory, checkpoint)
    of_heads = os.path.join(directory, "heads", checkpoint)
    if os.path.isdir(of_heads):  # The target has learned, too.
      target, draft = draft, of_heads
    console.stage(f"Decoding {lines} validation inputs with them.")
    row = _measured(target, draft, data, gamma, lines)
    rows.append({"kind": kind, **row, "checkpoint": draft})
  # Texts without inputs do not say where an output begins.
  if not data.is_decoder_only:
    print(f"Tokens a call of the target, drafts of {gamma}, {lines} validation inputs:")
  print(tables.aligned([list(rows[0]), *(list(row.values()) for row in rows)]))
  return rows


def _measured(target_path, draft_path, data, gamma, lines) -> dict[str, Any]:
  """Returns a draft's parameters, tokens a call, and what decodes with it."""
  target, draft = api.load_model(target_path), api.load_model(draft_path)
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
  """Returns what counts each output's tokens, and the target's calls for it."""
  end_ids = end_ids_of(batches.target_vocabulary(data.task))
  run = api.compiled(decoder, sampling, data.feature_lengths["targets"], end_ids)

  def count(params, inputs, number):
    keys = row_keys(jax.random.key(0), len(inputs), number * len(inputs))
    statistics = run(params, inputs, keys).statistics
    return np.stack([statistics.emitted, statistics.target_calls], axis=1)

  return count
