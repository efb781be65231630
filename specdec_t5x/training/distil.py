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
from specdec_t5x.network.config import T5Config
from specdec_t5x.prepared import Model
from specdec_t5x.t5x_bridge.restore import T5XParameters, check_writable
from specdec_t5x.training import acceptance, batches, outputs
from specdec_t5x.training.batches import TaskData
from specdec_t5x.training.checkpoints import claim
from specdec_t5x.training.jobs import train
from specdec_t5x.training.optimizers import Optimizer
from specdec_t5x.training.outputs import Example, Record
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
  check_writable(output_dir, "OUTPUT_DIR")
  target, end_ids = outputs.open_target(target_checkpoint, data)
  draft = _draft_model(draft_checkpoint)
  decoder, params = assembled(target, draft, policy="auto", gamma=gamma)
  examples = outputs.examples_of(data, data.split, limit)
  settings = {
    "inputs": _identity(examples),
    "target_checkpoint": target_checkpoint,
    "draft_checkpoint": draft_checkpoint,
    "feature_lengths": dict(data.feature_lengths),
    "validation_share": validation_share,
  }
  claim(output_dir, settings)

  console.stage(f"Decoding {len(examples)} inputs with the target.")
  records = outputs.decode_to(
    os.path.join(output_dir, "outputs.jsonl"),
    target.network,
    target.params,
    examples,
    dataclasses.replace(data, batch_size=decoding_batch_size),
    end_ids,
  )
  parts = _parts(outputs.finished(records, data.task), validation_share)
  files = {name: os.path.join(output_dir, f"{name}.jsonl") for name in parts}
  for name, part in parts.items():
    outputs.write_records(files[name], part)
  task = tasks.from_records(
    f"{data.task}_outputs",
    files,
    vocabulary=batches.target_vocabulary(data.task),
  )

  data = dataclasses.replace(
    data, task=task, split="train", validation_split="validation"
  )
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

  lengths = data.feature_lengths
  job = tuning.Job(decoder, 1, lengths["inputs"], GREEDY, lengths["targets"])
  params |= target.derived(decoder.derive(GREEDY))
  policy = tuning.tuned(job, params).policy
  held_out = list(batches.validation_batches(data, loop.validation_batches))
  report = {}
  for when, of_draft in (("before", draft.params.unfreeze()), ("after", best.params)):
    hits = acceptance.hits_of(draft.network, of_draft, held_out)
    report[when] = acceptance.gain(hits, gamma, policy, lengths_of(decoder.drafter))
  labels = {
    "alpha": "alpha on held-out inputs",
    "tokens_per_call": f"tokens a call with {gamma} drafted tokens",
    "speedup": "expected speedup over plain decoding here, at batch size 1",
  }
  for name, after in report["after"].items():
    before = report["before"][name]
    console.announce(f"{before:.2f} before, {after:.2f} after: {labels[name]}")
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


def _identity(examples: Sequence[Example]) -> str:
  """Returns the number and the checksum of the inputs, after a check of the number."""
  texts = [example["inputs_pretokenized"] for example in examples]
  count = len(set(texts))
  if count < _LEAST_TEXTS:
    raise ValueError(
      f"INPUTS must have at least {_LEAST_TEXTS} different texts, got {count}. Give "
      "more lines like the texts that the pair will decode."
    )
  checksum = zlib.crc32(b"\n".join(texts))
  return f"{len(texts)} texts with checksum {checksum:08x}"


def _parts(records: Sequence[Record], share: float) -> dict[str, list[Record]]:
  """Returns the records for training, and a share of the inputs for validation.

  The inputs' checksums decide, so equal inputs are in one part.
  """
  sums = [zlib.crc32(record["inputs"].encode()) for record in records]
  distinct = sorted(set(sums))
  held_out = set(distinct[: max(1, round(share * len(distinct)))])
  parts = {"train": [], "validation": []}
  for record, checksum in zip(records, sums, strict=True):
    parts["validation" if checksum in held_out else "train"].append(record)
  return parts
