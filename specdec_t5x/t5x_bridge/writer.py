"""What a run leaves: T5X's JSONL, and `speculation.json`, its statistics."""

import dataclasses
import fnmatch
import importlib.metadata
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import jax
import jax.numpy as jnp
import numpy as np
import t5x
from etils import epath
from t5x import infer

import specdec_t5x
from specdec_t5x import console, same_bits, tuning
from specdec_t5x.analysis.acceptance import ratio
from specdec_t5x.core.describe import describe
from specdec_t5x.data.spec_bench import CATEGORY
from specdec_t5x.decoding.checked import check_decoded
from specdec_t5x.native import library
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import Network
from specdec_t5x.t5x_bridge import pace

SUMMARY = "speculation.json"
WHOLE = "-00000-of-00001"
COUNTS = (
  "tokens",
  "target_calls",
  "drafted",
  "accepted",
  "acceptance_mass",
  "acceptance_positions",
)
# What another job in the directory may set otherwise: each mode and shard has files of
# its own.
_FREE = (
  "INFER_OUTPUT_DIR",
  *(f"infer.{name}" for name in ("output_dir", "mode", "shard_id", "num_shards")),
)
PACKAGES = ("jax", "jaxlib", "flax", "seqio", "orbax-checkpoint")


def write_decoded(
  path: str, inferences, task_ds, mode: str, *args, write_fn: Callable[..., None]
) -> None:
  """Writes a chunk as `write_fn` does, where its logits were numbers.

  T5X calls it as `infer.write_fn`. Mode predict has no scores to tell by.

  Args:
    path: of the chunk.
    inferences: predictions and auxiliary values, an entry an example.
    task_ds: the examples.
    mode: of the run.
    *args: further ones of `write_fn`.
    write_fn: T5X's.

  Raises:
    ValueError: naming the first example whose score, or acceptance, is NaN.
  """
  predictions, aux = inferences
  if mode != "predict":
    scores = jnp.asarray(predictions if mode == "score" else aux["scores"], float)
    mass = jnp.asarray(aux.get("acceptance_mass", jnp.zeros(len(scores))), float)
    check_decoded(scores, mass, lambda row: _name(path, task_ds, row))
    pace.decoded(int(np.sum(aux.get("tokens", 0))))
  write_fn(path, inferences, task_ds, mode, *args)


def _name(path: str, task_ds, row: int) -> str:
  """Returns what the example in a row of a chunk is called: its place and texts."""
  (example,) = itertools.islice(task_ds.as_numpy_iterator(), row, row + 1)
  texts = {k: v.decode() for k, v in example.items() if k.endswith("_pretokenized")}
  return f"Example {row} of {path.rsplit('-', 1)[1]}, {texts}"


def merge_and_summarize(
  output_dir: str,
  output_fname: str,
  tmp_dir: str,
  step: int | None,
  model: Any,
) -> None:
  """Merges the chunks as T5X does, then writes the summary of the whole run.

  T5X calls it through `infer.merge_fn` when a task is done. The summary covers every
  finished file of the mode in the directory, so the last of several shards or tasks
  writes the complete one, even of two that end at once.

  Args:
    output_dir: INFER_OUTPUT_DIR.
    output_fname: the merged file's name, `task-mode.jsonl-shard-of-shards`.
    tmp_dir: where the chunks are.
    step: the target checkpoint's.
    model: what decoded, one of this project's T5X models.
  """
  infer.merge_chunks_to_file(output_dir, output_fname, tmp_dir, step)
  mode = output_fname.split(".jsonl")[0].rsplit("-", 1)[1]
  guarantee = model.decoder.guarantee
  files, found = None, result_files(output_dir, mode)
  # Files never go, so who writes last has seen all that were there before.
  while files != found:
    files = found
    summary = {
      "guarantee": guarantee.name,
      "guarantee_means": guarantee.value,
      "target": what_decodes(model.decoder.target),
      "statistics": summarize(files, model.decoder.alpha_is_mass),
      "decoder": describe(model.decoder),
      **_counted(model.decoder),
      "sampling": describe(model.sampling),
      "iteration_seconds": tuning.asked_for(),
      "same_bits_as_plain": [dataclasses.asdict(x) for x in same_bits.answers()],
      "derived": tuning.sizes(
        name
        for network in model.decoder.networks
        for name in model.decoder.derived(model.sampling, network)
      ),
      "configuration": configuration(),
      "mode": mode,
      "checkpoint_step": step,
      "files": [file.name for file in files],
      **environment(),
    }
    path = epath.Path(output_dir) / SUMMARY
    write_atomically(path, json.dumps(summary, indent=2), output_fname)
    found = result_files(output_dir, mode)
  pace.keep()
  for line in closing(summary["statistics"], tuning.outlooks()):
    console.say(line)
  is_exact = model.sampling.greedy and guarantee.keeps_distribution
  if is_exact and (summary["statistics"] or {}).get("drafted"):
    for answer in same_bits.answers():
      console.say(answer.line())


def what_decodes(target: Network) -> str:
  """Returns which model a target is, whose outputs a guarantee is about."""
  if rounding := rounded.of_weights(target.config):
    return (
      f"the checkpoint's network rounded to {rounding.bits} bits "
      f"(WEIGHTS={target.config.weights!r}), another model than the checkpoint's"
    )
  return "the checkpoint's network"


def closing(statistics: Mapping[str, Any] | None, outlooks: Sequence[str]) -> list[str]:
  """Returns the run's last lines: tokens per call, accepted share, time per token.

  Args:
    statistics: of `summarize`.
    outlooks: what drafting promised (`tuning.outlooks`).
  """
  if statistics is None or statistics["tokens_per_target_call"]["value"] is None:
    return []
  examples, tokens = statistics["examples"], statistics["tokens"]
  seconds = pace.seconds_per_token()
  time = "" if seconds is None else f"{1e3 * seconds:.2f} ms per token"
  if not statistics["drafted"]:
    lines = [f"{examples} examples, {tokens} tokens{time and ', ' + time}."]
    if outlooks:
      lines = ["Nothing was drafted.", *outlooks, *lines]
      lines.append("--gin.GAMMA=5 drafts 5 tokens per target call all the same.")
    return lines
  rate = statistics["tokens_per_target_call"]["value"]
  share = statistics["accepted"] / statistics["drafted"]
  lines = [
    f"{rate:.2f} tokens per target call ({examples} examples, {tokens} tokens).",
    f"{share:.0%} of the drafted tokens were accepted.",
  ]
  found = pace.plain_seconds_per_token(statistics)
  if seconds is not None and found is not None:
    plain, was_run = found
    takes = f"{1e3 * plain:.2f} ms on this machine"
    if not was_run:
      takes = f"about {takes}, by what its iterations take"
    lines.append(
      f"{time}; plain decoding takes {takes}: {plain / seconds:.2f} times as fast."
    )
  elif time:
    lines.append(f"{time}. A baseline_*.gin run measures plain decoding's time.")
  return lines


def _counted(decoder) -> dict[str, Any]:
  """Returns what a drafter counted outside of programs, in this process."""
  counted = {} if decoder.drafter is None else decoder.drafter.counted()
  return {"counted": dict(counted)} if counted else {}


def result_files(output_dir: str, mode: str) -> list[epath.Path]:
  """Returns the finished files of a mode, each example once.

  Args:
    output_dir: INFER_OUTPUT_DIR.
    mode: of the run.
  """
  # Not `glob`, for which brackets in the folder's own name are a pattern.
  pattern = f"*-{mode}.jsonl-?????-of-?????"
  files = epath.Path(output_dir).iterdir()
  files = sorted(file for file in files if fnmatch.fnmatchcase(file.name, pattern))
  stem = lambda file: file.name.rsplit("-", 3)[0]
  in_parts = {stem(file) for file in files if not file.name.endswith(WHOLE)}
  # Shards that specdec_t5x.merge_shards has joined are there twice.
  return [f for f in files if not (f.name.endswith(WHOLE) and stem(f) in in_parts)]


def summarize(
  files: Sequence[epath.Path], alpha_is_mass: bool
) -> dict[str, Any] | None:
  """Returns totals and rates over the examples of JSONL files.

  Args:
    files: outputs of mode predict_with_aux.
    alpha_is_mass: whether sum min(p, q) estimates alpha.

  Returns:
    alpha by counts (accepted / tried) and by mass (sum of min(p, q) / tried; None under
    rules whose acceptance that is not), tokens per target call, each with a 95%
    interval, and the totals; of a task whose examples have categories, of each one,
    too; None where the files carry no statistics (modes predict and score).
  """
  rows, categories = [], {}
  for file in files:
    with file.open() as lines:
      for found in map(json.loads, lines):
        rows.append(found.get("aux", {}))
        category = found.get("inputs", {}).get(CATEGORY)
        categories.setdefault(category, []).append(rows[-1])
  if not rows or any(set(COUNTS) - set(row) for row in rows):
    return None
  categories.pop(None, None)
  of_rows = lambda rows: rates({n: [x[n] for x in rows] for n in COUNTS}, alpha_is_mass)
  of_each = {name: of_rows(some) for name, some in categories.items()}
  return of_rows(rows) | ({"categories": of_each} if of_each else {})


def rates(aux: Mapping[str, Sequence[float]], alpha_is_mass: bool) -> dict[str, Any]:
  """Returns totals and rates as `summarize`, of auxiliary values of examples."""
  column = {name: np.array(aux[name]) for name in COUNTS}
  tried = column["acceptance_positions"]
  found = {
    "alpha_by_counts": ratio(column["accepted"], tried),
    "alpha_by_mass": ratio(column["acceptance_mass"], tried) if alpha_is_mass else None,
    "tokens_per_target_call": ratio(column["tokens"], column["target_calls"]),
  }
  return {
    "examples": len(tried),
    **{name: values.sum().item() for name, values in column.items()},
    **{name: rate and dataclasses.asdict(rate) for name, rate in found.items()},
  }


def configuration() -> dict[str, str]:
  """Returns gin's bindings by name, all that make a run what it is."""
  lines = gin.config_str(max_line_length=10**5).splitlines()  # A binding a line.
  found = (line.split(" = ", maxsplit=1) for line in lines if not line.startswith("#"))
  bindings = dict(binding for binding in found if len(binding) == 2)
  return {name: text for name, text in bindings.items() if not name.endswith(_FREE)}


def environment() -> dict[str, Any]:
  """Returns what the run ran on: versions, the T5X provider, the device, products.

  The products are those that PRODUCTS = 'auto' has here: 'native', or why they are not.
  """
  device = jax.devices()[0]
  return {
    "t5x": getattr(t5x, "PROVIDER", "upstream"),
    "versions": {
      "specdec_t5x": specdec_t5x.__version__,
      **{name: importlib.metadata.version(name) for name in PACKAGES},
    },
    "device": {
      "platform": device.platform,
      "kind": device.device_kind,
      "count": jax.device_count(),
    },
    "products": library.problem() or "native",
  }


def write_atomically(path: epath.Path, text: str, writer: str) -> None:
  """Writes a file that is either whole or not there.

  Args:
    path: of the file.
    text: its content.
    writer: no one else writes under this name at the same time.
  """
  partial = path.with_name(f"{path.name}.{writer}.tmp")
  try:
    partial.write_text(text + "\n")
    partial.replace(path)
  finally:
    partial.unlink(missing_ok=True)  # After an error, such as a full disk.
