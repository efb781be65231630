"""The jobs of `python -m specdec_t5x.train`: training, decoding, counting, trimming."""

import dataclasses
import os
import zlib
from collections.abc import Callable, Sequence

import jax
import numpy as np

from specdec_t5x import api, console
from specdec_t5x.core.knobs import is_whole
from specdec_t5x.drafters.heads import check_width
from specdec_t5x.network import hot
from specdec_t5x.network.functional import Network, lacks_encoder, network_for
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.t5x_bridge.restore import T5XParameters, check_writable
from specdec_t5x.training import batches, losses, ngrams, outputs
from specdec_t5x.training.batches import TaskData
from specdec_t5x.training.checkpoints import Checkpoints, claim, new_checkpoint
from specdec_t5x.training.heads import HeadDistillation, begun
from specdec_t5x.training.objectives import (
  Objective,
  Supervised,
  TokenDistillation,
  check_comparable,
)
from specdec_t5x.training.optimizers import Optimizer
from specdec_t5x.training.state import TrainState, initial_params
from specdec_t5x.training.trainer import Loop, Trainer
from specdec_t5x.vocabularies.frames import end_ids_of

# Modes that need TARGET_CHECKPOINT_PATH.
_OF_TARGETS = ("distill_tokens", "heads")
MODES = ("supervised", *_OF_TARGETS)


def train(
  network: Network,
  data: TaskData,
  optimizer: Optimizer,
  loop: Loop,
  output_dir: str,
  *,
  mode: str = "supervised",
  supervised: Supervised = Supervised(),  # noqa: B008 - frozen
  distill_loss: str = "forward_kl",
  head_decay: float = 0.8,
  target_checkpoint: str | None = None,
  init_checkpoint: str | None = None,
  seed: int = 0,
  keep: int = 0,
) -> TrainState:
  """Trains a network, and resumes from the last complete checkpoint in `output_dir`.

  Returns the state after the last step, or the best state (`Trainer.run`).

  Args:
    network: the network to train.
    data: the examples.
    optimizer: the optimizer.
    loop: the number of steps, and the periods of measurements and checkpoints.
    output_dir: folder for checkpoint_<step>, optimizer_<step>, metrics.jsonl and
      training.json.
    mode: one of `MODES`; 'heads' trains heads on a frozen target.
    supervised: the loss of mode 'supervised'.
    distill_loss: one of `losses.DISTILLATION_LOSSES`, for 'distill_tokens' and 'heads'.
    head_decay: weight of a head relative to the head before.
    target_checkpoint: path of the target, for all modes but 'supervised'.
    init_checkpoint: path of the initial parameters; None means seeded random ones.
    seed: seed of initialisation and dropout.
    keep: number of the latest checkpoints to keep, at least `loop.patience` + 1, which
      include the best; 0 keeps all.

  Raises:
    ValueError: if settings are incompatible; the other jobs also raise this error.
  """
  _check_mode(network, mode, target_checkpoint)
  target = None if mode == "supervised" else api.load_model(target_checkpoint)
  objective: Objective = supervised
  distance = losses.get_distillation_loss(distill_loss)
  if isinstance(network, FeatureDrafter):
    check_width(target.network, network)
    objective = HeadDistillation(target.network, head_decay, distance)
  elif target is not None:
    check_comparable(target.network, network)
    objective = TokenDistillation(target.network, distance)
  frozen = None if target is None else target.params
  trainer = Trainer(network, objective, optimizer, data, loop, seed, frozen)
  trainer.check(network if target is None else target.network)
  settings = {
    "network": dataclasses.asdict(network.config),
    "data": dataclasses.asdict(data),
    "optimizer": dataclasses.asdict(optimizer),
    "mode": mode,
    "supervised": dataclasses.asdict(supervised),
    "distill_loss": distill_loss,
    "head_decay": head_decay,
    "target_checkpoint": target_checkpoint,
    "init_checkpoint": init_checkpoint,
    "seed": seed,
  }
  store = T5XParameters(network, output_dir)
  if init_checkpoint is not None:
    params = store.read(init_checkpoint, "INIT_CHECKPOINT_PATH")
  else:
    params = initial_params(network, seed)
    if mode == "heads":
      params = begun(network, params, target.params)
  keep = max(keep, loop.patience + 1) if keep > 0 else keep
  checkpoints = Checkpoints(output_dir, store, keep)
  claim(output_dir, settings)
  return trainer.run(params, output_dir, checkpoints)


def train_heads(
  kinds: str | Sequence[str],
  make: Callable[..., Network],
  train_network: Callable[..., TrainState],
  output_dir: str,
) -> None:
  """Trains each kind of draft that reads a target.

  `train_network` returns at once for a kind whose training is complete, so a killed run
  can be resumed.

  Args:
    kinds: one or several kinds of `heads.new_heads`.
    make: returns the network of a kind.
    train_network: `train`, as a function of network and output_dir.
    output_dir: folder for one folder per kind, named by the kind.
  """
  kinds = [kinds] if isinstance(kinds, str) else list(kinds)
  # All networks come first, so that an invalid kind raises an error before training.
  networks = {kind: make(kind=kind) for kind in kinds}
  for kind, network in networks.items():
    directory = os.path.join(output_dir, kind)
    console.stage(f"Heads of kind {kind!r}: {directory}.")
    train_network(network=network, output_dir=directory)


def decode_task(
  data: TaskData,
  target_checkpoint: str,
  output_file: str,
  split: str = "train",
  limit: int | None = None,
) -> dict[str, int]:
  """Decodes a task's inputs greedily, as data for sequence-level distillation.

  Returns {'written': ..., 'unfinished': ...}, numbers of examples.

  Args:
    data: the task, the task's lengths and the batch size.
    target_checkpoint: path of the target; the shapes of the parameters determine the
      network.
    output_file: path of a .jsonl file of 'inputs' (with the task's prefix) and
      'targets'.
    split: the split of the inputs.
    limit: maximal number of inputs; None means all.
  """
  if not output_file.endswith(".jsonl"):
    raise ValueError(f"OUTPUT_FILE must end in .jsonl, got {output_file!r}.")
  target, end_ids = outputs.open_target(target_checkpoint, data)
  examples = outputs.examples_of(data, split, limit)
  folder = os.path.dirname(os.path.abspath(output_file))
  check_writable(folder, "The folder of OUTPUT_FILE")
  os.makedirs(folder, exist_ok=True)
  settings = repr((data, target_checkpoint, split, limit, end_ids))
  kept = f"{output_file}.{zlib.crc32(settings.encode()):08x}.partial"
  decoding = outputs.Decoding(target.network, target.params, data, end_ids)
  records = decoding.to_file(kept, examples)
  os.remove(kept)
  ended = outputs.finished(records, data.task)
  outputs.write_records(output_file, ended)
  console.announce(f"{output_file}: {len(ended)} examples")
  return {"written": len(ended), "unfinished": len(records) - len(ended)}


def count_ngrams(
  task: str,
  vocab_size: int,
  output_dir: str,
  order: int,
  width: int,
  max_contexts: int,
  split: str = "train",
) -> str:
  """Counts the n-grams of a task's targets into a checkpoint, and returns the path.

  Args:
    task: name of a registered task.
    vocab_size: vocabulary size of the target model, including padding rows.
    output_dir: folder for checkpoint_0.
    order: length of the longest n-grams: 1 for unigrams, 2 for bigrams, and so on.
    width: number of successors to keep per context.
    max_contexts: number of contexts to keep per length.
    split: the split of the targets.
  """
  path = new_checkpoint(output_dir)
  targets = batches.targets_of(task, split)
  table, params = ngrams.estimate(targets, vocab_size, order, width, max_contexts)
  T5XParameters(table, output_dir).save(0, params)
  print(f"{path}: contexts of 1 token, 2, ...: {table.config.contexts}")
  return path


def trim_draft(
  task: str,
  draft_checkpoint: str,
  output_dir: str,
  size: int,
  target_checkpoint: str | None = None,
  split: str = "train",
) -> str:
  """Trims a draft to a task's most frequent tokens, and returns the checkpoint's path.

  Args:
    task: name of a registered task, best of the target's outputs (`decode_task`).
    draft_checkpoint: path of a draft model, or of heads.
    output_dir: folder for checkpoint_0.
    size: number of tokens to keep (K).
    target_checkpoint: path of the target, for heads, which use the target's projection.
    split: the split of the targets to count.
  """
  path = new_checkpoint(output_dir)
  draft = api.load_model(draft_checkpoint)
  network = draft.network
  params = jax.tree.map(np.asarray, draft.params.unfreeze())
  is_heads = isinstance(network, FeatureDrafter)
  if getattr(network.config, "hot", 1):
    raise ValueError(
      "DRAFT_CHECKPOINT_PATH must be a draft model or heads with the whole vocabulary, "
      f"got a {type(network).__name__} at {draft_checkpoint}. Trim the trained draft."
    )
  if is_heads != (target_checkpoint is not None):
    raise ValueError(
      "TARGET_CHECKPOINT_PATH must be left out for a draft model, and must be the "
      "target's checkpoint for heads, which draft with the target's projection, got "
      f"{target_checkpoint!r} for a {type(network).__name__} at {draft_checkpoint}."
    )
  owner = api.load_model(target_checkpoint) if is_heads else draft
  if owner.network.config.is_gemma:
    raise ValueError(
      "Trimming needs a T5's draft, because a T5Gemma's projection is the unscaled "
      f"embedding and can't be trimmed, got {target_checkpoint or draft_checkpoint}."
    )
  head = hot.projection(owner.params)
  counts = np.zeros(head.shape[1], np.int64)
  for tokens in batches.targets_of(task, split):
    np.add.at(counts, tokens, 1)
  if not is_whole(size, 1) or size >= counts.size:
    raise ValueError(
      "DRAFT_VOCABULARY must be a whole number of at least 1, below the vocabulary's "
      f"{counts.size} tokens, got {size!r}. DRAFT_VOCABULARY is the number of tokens "
      "that a draft may propose."
    )
  # End tokens come first. Of tokens with equal counts the lower id is preferred.
  ranked = counts.copy()
  end_ids = end_ids_of(batches.target_vocabulary(task))
  ranked[np.atleast_1d(end_ids)] = counts.sum() + 1
  tokens = sorted(np.argsort(-ranked, kind="stable")[:size].tolist())
  config, params = hot.trimmed(network.config, params, tokens, head)
  T5XParameters(network_for(config), output_dir).save(0, params)
  share = counts[tokens].sum() / max(counts.sum(), 1)
  print(f"{path}: {size} of {counts.size} tokens, {share:.1%} of the targets'")
  return path


def _check_mode(network, mode, target_checkpoint) -> None:
  """Raises a ValueError if mode, network and target do not fit."""
  if mode not in MODES:
    raise ValueError(f"Unknown MODE {mode!r}; expected one of {MODES}.")
  if (mode != "supervised") != bool(target_checkpoint):
    raise ValueError(
      f"A MODE among {_OF_TARGETS} needs TARGET_CHECKPOINT_PATH, and MODE = "
      f"'supervised' takes no target, got MODE = {mode!r} and TARGET_CHECKPOINT_PATH = "
      f"{target_checkpoint!r}. Change one of them. To start from a checkpoint, set "
      "INIT_CHECKPOINT_PATH."
    )
  needs_target = isinstance(network, FeatureDrafter) or lacks_encoder(network)
  if needs_target != (mode == "heads"):
    raise ValueError(
      "MODE must be 'heads' for heads and for a draft on the target's encoder, and "
      f"another mode for other drafts, got MODE = {mode!r} for a "
      f"{type(network).__name__}. Train heads with --job=heads and "
      "configs/train/heads.gin."
    )
