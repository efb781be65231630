"""Distillation on the target's own outputs: a better draft for a pair and some texts.

At T = 0 a drafted token is accepted if it is the target's token. So a draft learns from
the target's greedy outputs, with cross-entropy, and training calls no target.
"""

import dataclasses
import os
import shutil
import zlib
from collections.abc import Mapping, Sequence

from specdec_t5x import api, console, tuning
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.knobs import is_finite
from specdec_t5x.data import tasks
from specdec_t5x.decoding.contracts import lengths_of
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.network.config import T5Config
from specdec_t5x.prepared import Model
from specdec_t5x.t5x_bridge.restore import T5XParameters
from specdec_t5x.training import acceptance, batches, outputs
from specdec_t5x.training.batches import TaskData
from specdec_t5x.training.checkpoints import claim
from specdec_t5x.training.jobs import train
from specdec_t5x.training.objectives import Params
from specdec_t5x.training.optimizers import Optimizer
from specdec_t5x.training.outputs import Record
from specdec_t5x.training.trainer import Loop
from specdec_t5x.ways import assembled

# With fewer texts, alpha on the held-out texts is noise.
_LEAST_TEXTS = 100


def distil(
  data: TaskData,
  target_checkpoint: str,
  draft_checkpoint: str,
  optimizer: Optimizer,
  loop: Loop,
  output_dir: str,
  *,
  decoding_batch_size: int = 64,
  validation_share: float = 0.05,
  limit: int | None = None,
  gamma: int = 3,
) -> dict[str, Mapping[str, float]]:
  """Trains a draft on the target's greedy outputs, and reports the gain.

  The result is <output_dir>/checkpoint_0, the draft with the best alpha on a share of
  the inputs that is never trained on. A killed run continues where it stopped.

  Returns {'before': ..., 'after': ...}, the draft's `acceptance.gain` on held-out
  inputs.

  Args:
    data: the task with the inputs in `data.split`, and the lengths, the batch size and
      the seed of the training.
    target_checkpoint: path of the target.
    draft_checkpoint: path of the draft model, the first parameters of the training.
    optimizer: the optimizer.
    loop: the number of steps, the periods, and the patience that ends the training.
    output_dir: folder for checkpoint_0, the outputs (outputs.jsonl, and the parts
      train.jsonl and validation.jsonl) and the training run (training).
    decoding_batch_size: rows of the target that decode at once.
    validation_share: the held-out share of the inputs.
    limit: maximal number of inputs; None means all.
    gamma: draft length of the reported tokens per call, and the longest draft of the
      reported speedup.

  Raises:
    ValueError: if settings are incompatible.
  """
  if not (is_finite(validation_share) and 0 < validation_share < 1):
    raise ValueError(
      f"VALIDATION_SHARE must be above 0 and below 1, got {validation_share!r}. 0.05 "
      "holds out a twentieth of the inputs."
    )
  target, end_ids = outputs.open_target(target_checkpoint, data)
  draft = _draft_model(draft_checkpoint)
  decoder, params = assembled(target, draft, policy="auto", gamma=gamma)
  examples = outputs.examples_of(data, data.split, limit)
  texts = [example["inputs_pretokenized"] for example in examples]
  if (count := len(set(texts))) < _LEAST_TEXTS:
    raise ValueError(
      f"INPUTS must have at least {_LEAST_TEXTS} different texts, got {count}. Give "
      "more lines like the texts that the pair will decode."
    )
  checksum = zlib.crc32(b"\n".join(texts))
  settings = {
    "inputs": f"{len(texts)} texts with checksum {checksum:08x}",
    "target_checkpoint": target_checkpoint,
    "draft_checkpoint": draft_checkpoint,
    "feature_lengths": dict(data.feature_lengths),
    "validation_share": validation_share,
  }
  claim(output_dir, settings)

  console.stage(f"Decoding {len(texts)} inputs with the target.")
  rows = dataclasses.replace(data, batch_size=decoding_batch_size)
  decoding = outputs.Decoding(target.network, target.params, rows, end_ids)
  records = decoding.to_file(os.path.join(output_dir, "outputs.jsonl"), examples)
  records = outputs.finished(records, data.task)
  data = _split(records, data, output_dir, validation_share)

  best = train(
    draft.network,
    data,
    optimizer,
    loop,
    os.path.join(output_dir, "training"),
    init_checkpoint=draft_checkpoint,
    seed=data.seed,
    keep=1,
  )
  path = os.path.join(output_dir, "checkpoint_0")
  shutil.rmtree(path, ignore_errors=True)
  T5XParameters(draft.network, output_dir).save(0, best.params)

  params |= target.derived(decoder.derive(GREEDY))
  held_out = list(batches.validation_batches(data, loop.validation_batches))
  report = _gains(decoder, params, best.params, held_out, data.feature_lengths)
  console.announce(f"DRAFT_CHECKPOINT_PATH = {path!r}")
  return report


def _draft_model(checkpoint: str) -> Model:
  """Returns the draft model, which `train` can train and T5X's format can hold."""
  draft = api.load_model(checkpoint)
  config = draft.network.config
  is_t5 = isinstance(config, T5Config) and not config.is_gemma
  if not is_t5 or not config.num_encoder_layers or config.hot:
    raise ValueError(
      "DRAFT_CHECKPOINT_PATH must be a T5 with an encoder and the whole vocabulary, "
      f"got a {type(config).__name__} at {checkpoint}. Train drafts that read the "
      "target with --job=heads, and trim a draft after the training."
    )
  return draft


def _split(
  records: Sequence[Record], data: TaskData, folder: str, share: float
) -> TaskData:
  """Returns the task of records, with a share of the inputs for validation.

  The inputs' checksums decide, so equal inputs are in one part.
  """
  sums = [zlib.crc32(record["inputs"].encode()) for record in records]
  distinct = sorted(set(sums))
  held_out = set(distinct[: max(1, round(share * len(distinct)))])
  parts = {"train": [], "validation": []}
  for record, checksum in zip(records, sums, strict=True):
    parts["validation" if checksum in held_out else "train"].append(record)
  files = {name: os.path.join(folder, f"{name}.jsonl") for name in parts}
  for name, part in parts.items():
    outputs.write_records(files[name], part)
  task = tasks.from_records(
    f"{data.task}_outputs",
    files,
    vocabulary=batches.target_vocabulary(data.task),
  )
  splits = {"split": "train", "validation_split": "validation"}
  return dataclasses.replace(data, task=task, **splits)


def _gains(
  decoder: Decoder,
  params: Params,
  trained: Params,
  held_out: Sequence[batches.Batch],
  lengths: Mapping[str, int],
) -> dict[str, Mapping[str, float]]:
  """Returns and announces the draft's gain on held-out outputs, before and after."""
  job = tuning.Job(decoder, 1, lengths["inputs"], GREEDY, lengths["targets"])
  policy = tuning.tuned(job, params).policy
  gamma = decoder.drafter.depth
  choices = lengths_of(decoder.drafter)
  report = {}
  for when, of_draft in (("before", params["draft"].unfreeze()), ("after", trained)):
    hits = acceptance.hits_of(decoder.networks["draft"], of_draft, held_out)
    report[when] = acceptance.gain(hits, gamma, policy, choices)
  labels = {
    "alpha": "alpha on held-out inputs",
    "tokens_per_call": f"tokens a call with {gamma} drafted tokens",
    "speedup": "expected speedup over plain decoding here, at batch size 1",
  }
  for name, after in report["after"].items():
    before = report["before"][name]
    console.announce(f"{before:.2f} before, {after:.2f} after: {labels[name]}")
  return report
