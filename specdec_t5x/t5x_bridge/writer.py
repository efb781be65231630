"""The results of a run: T5X's JSONL, and the statistics in `speculation.json`."""

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import jax.numpy as jnp
import numpy as np
from etils import epath
from t5x import infer

from specdec_t5x import console, environment, speed, tuning
from specdec_t5x.core.describe import describe
from specdec_t5x.core.theory import rate, ratio
from specdec_t5x.data.spec_bench import CATEGORY
from specdec_t5x.decoding.checked import check_decoded
from specdec_t5x.decoding.contracts import lengths_of
from specdec_t5x.decoding.decoder import FIXED_WIDTH, Decoder
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.native import library
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import Network

SUMMARY = "speculation.json"
# The auxiliary value with the number of tokens that is left of a cut input.
CUT = "inputs_cut_to"
COUNTS = (
  "tokens",
  "target_calls",
  "drafted",
  "accepted",
  "acceptance_mass",
  "acceptance_positions",
)
# Settings that may differ between jobs in one directory: each mode and shard has
# separate files.
_FREE = (
  "INFER_OUTPUT_DIR",
  *(f"infer.{name}" for name in ("output_dir", "mode", "shard_id", "num_shards")),
)


def write_decoded(
  path: str,
  inferences,
  task_ds,
  mode: str,
  vocabulary: Any,
  *args,
  write_fn: Callable[..., None],
  model: Any,
) -> None:
  """Writes a chunk by `write_fn` if the decode has no NaNs.

  T5X calls this function as `infer.write_fn`, with the examples in `task_ds`, and the
  predictions and auxiliary values of each example in `inferences`. Mode predict has no
  auxiliary values, so NaNs and cut inputs are not reported in this mode. In other
  modes, a chunk with cut inputs has the auxiliary value `CUT`.

  Raises:
    ValueError: if a score or acceptance mass is NaN; the message names the first such
      example.
  """
  predictions, aux = inferences
  if mode != "predict":
    scores = jnp.asarray(predictions if mode == "score" else aux["scores"], float)
    mass = jnp.asarray(aux.get("acceptance_mass", jnp.zeros(len(scores))), float)

    def described(row: int) -> str:
      (example,) = itertools.islice(task_ds.as_numpy_iterator(), row, row + 1)
      texts = {k: v.decode() for k, v in example.items() if k.endswith("_pretokenized")}
      return f"Example {row} of {path.rsplit('-', 1)[1]}, {texts}"

    check_decoded(scores, mass, described)
    if model.clock:
      model.clock.decoded(len(scores), int(np.sum(aux.get("tokens", 0))))
    if any(cut := _cut_lengths(task_ds, vocabulary)):
      inferences = (predictions, {**aux, CUT: cut})
  write_fn(path, inferences, task_ds, mode, vocabulary, *args)


def _cut_lengths(task_ds, vocabulary: Any) -> list[int]:
  """Returns the length to which each input was cut, 0 for a complete input."""
  examples = [x for x in task_ds.as_numpy_iterator() if "inputs_pretokenized" in x]
  longest = max((len(example["inputs"]) for example in examples), default=0)
  cut = []
  for example in examples:
    tokens = example["inputs"].tolist()
    text = []
    if len(tokens) == longest:  # Shorter inputs are complete.
      text = vocabulary.encode(example["inputs_pretokenized"].decode())
    places = range(len(tokens) - len(text) + 1)
    is_whole = any(tokens[place : place + len(text)] == text for place in places)
    cut.append(0 if is_whole else longest)
  return cut


def merge_and_summarize(
  output_dir: str, output_fname: str, tmp_dir: str, step: int | None, model: Any
) -> None:
  """Merges the chunks like T5X, then writes the summary of the run.

  T5X calls this function through `infer.merge_fn` at the end of a task. `output_fname`
  is `task-mode.jsonl-shard-of-shards`, and `step` is of the target's checkpoint. The
  summary covers every finished file of the mode in the directory, so the last of
  several shards or tasks writes the complete summary, even if two end at the same time.
  """
  infer.merge_chunks_to_file(output_dir, output_fname, tmp_dir, step)
  mode = output_fname.split(".jsonl")[0].rsplit("-", 1)[1]
  decoder, guarantee = model.decoder, model.decoder.rule.guarantee
  # The drafter's counts from outside of programs, in this process.
  remote = getattr(decoder.drafter, "remote", None)
  files = None
  new_files = result_files(output_dir, mode)
  # Files are never removed, so the last writer's summary covers all earlier files.
  while files != new_files:
    files = new_files
    statistics = summarize(files, decoder.rule.alpha_is_mass)
    summary = {
      "guarantee": guarantee.name,
      "guarantee_means": guarantee.value,
      "guarantee_condition": condition(decoder),
      "target": what_decodes(decoder.target),
      "statistics": statistics,
      "decoder": describe(decoder),
      **({"counted": dict(remote.counts())} if remote else {}),
      "sampling": describe(model.sampling),
      **(model.clock.pace() if model.clock else {}),
      "speedup_over_plain": speedup(statistics, model),
      "iteration_seconds": [
        {"rows": job.rows_at_once, "drafted": lengths, "seconds": policy.seconds}
        for job, policy, lengths in _timed(model)
      ],
      "same_bits_as_plain": same_bits_as_plain(decoder),
      "derived": model.derived_bytes,
      "configuration": configuration(),
      "mode": mode,
      "checkpoint_step": step,
      "files": [file.name for file in files],
      **environment.of_run(),
    }
    # The file is either complete or absent, also if several jobs write at once.
    partial = epath.Path(output_dir) / f"{SUMMARY}.{output_fname}.tmp"
    try:
      partial.write_text(json.dumps(summary, indent=2) + "\n")
      partial.replace(epath.Path(output_dir) / SUMMARY)
    finally:
      partial.unlink(missing_ok=True)  # After an error, such as a full disk.
    new_files = result_files(output_dir, mode)
  for line in closing(summary, model):
    console.say(line)


def same_bits_as_plain(decoder: Decoder) -> str:
  """Returns whether the logits have plain decoding's bits, as far as settings tell."""
  if decoder.drafter is None:
    return "Yes: decoding is plain."
  if decoder.is_fixed(decoder.slots):
    return (
      f"Yes: every call of the target scores {FIXED_WIDTH} tokens, with and without "
      "drafts."
    )
  return (
    "Not by the settings: blocks of several tokens may be rounded differently from "
    "single tokens. SAME_BITS=True scores blocks of one width."
  )


def condition(decoder: Decoder) -> str | None:
  """Returns the condition of the decoder's guarantee; None if there is no condition."""
  if same_bits_as_plain(decoder).startswith("Yes"):
    return None
  config = decoder.target.config
  is_xla = getattr(config, "products", None) == "xla" or library.problem()
  products = "XLA's" if is_xla else "native"
  return (
    f"In {jnp.dtype(config.dtype).name} with {products} products, blocks of several "
    "tokens may be rounded differently from single tokens. The guarantee holds up to "
    "this rounding: where two tokens nearly tie, a greedy output may differ from plain "
    "decoding's. SAME_BITS=True removes the condition: every call of the target scores "
    f"{FIXED_WIDTH} tokens, which costs time on CPUs and at batch sizes above 1."
  )


def what_decodes(target: Network) -> str:
  """Returns a description of the target, the model behind the guarantee of outputs."""
  if rounding := rounded.of_weights(target.config):
    return (
      f"the checkpoint's network rounded to {rounding.bits} bits "
      f"(WEIGHTS={target.config.weights!r}), another model than the checkpoint's"
    )
  return "the checkpoint's network"


def closing(summary: Mapping[str, Any], model: Any) -> list[str]:
  """Returns the run's last lines: tokens per call, accepted share, time per token."""
  statistics = summary["statistics"]
  if statistics is None or statistics["tokens_per_target_call"]["value"] is None:
    return []
  examples, tokens = statistics["examples"], statistics["tokens"]
  seconds, speedup = summary.get("seconds_per_token"), summary["speedup_over_plain"]
  timed = _timed(model)
  time = f"{1e3 * seconds:.2f} ms per token" if seconds else ""
  lines = []
  if statistics["drafted"]:
    rate = statistics["tokens_per_target_call"]["value"]
    share = statistics["accepted"] / statistics["drafted"]
    lines += [
      f"{rate:.2f} tokens per target call ({examples} examples, {tokens} tokens).",
      f"{share:.0%} of the drafted tokens were accepted.",
    ]
    if (alpha := statistics["alpha_by_counts"]["value"]) is not None:
      lines[-1] = f"{lines[-1][:-1]}, and {alpha:.3f} of the tested tokens (alpha)."
    if speedup and seconds:
      lines.append(
        f"{time}; plain decoding takes about {1e3 * seconds * speedup:.2f} ms on this "
        f"machine, as estimated from its iterations: {speedup:.2f} times as fast."
      )
    elif time:
      lines.append(f"{time}. A baseline_*.gin run measures plain decoding's time.")
  else:
    outlooks = dict.fromkeys(speed.outlook(x, lengths) for _, x, lengths in timed)
    if model.decoder.drafter is not None:
      lines += ["Nothing was drafted.", *outlooks]
    lines.append(f"{examples} examples, {tokens} tokens{time and ', ' + time}.")
  if _may_gain_with_fewer_rows(statistics["drafted"], model):
    lines.append("Drafts gain most if few rows decode at once: --gin.BATCH_SIZE=1.")
  if cut := statistics.get("inputs_cut"):
    was = "was" if cut["examples"] == 1 else "were"
    lines.append(
      f"{cut['examples']} of {examples} inputs {was} cut to {cut['tokens']} tokens. "
      "Raise TASK_FEATURE_LENGTHS['inputs'] to decode whole inputs; "
      f"{CUT!r} in the results marks the cut inputs."
    )
  # In float32 no line of 1,000 differed (docs/results/correctness.md).
  is_coarse = jnp.dtype(model.decoder.target.config.dtype) != jnp.float32
  if statistics["drafted"] and is_coarse and (text := summary["guarantee_condition"]):
    lines.append(f"{summary['guarantee']}: {summary['guarantee_means']}. {text}")
  return lines


def speedup(statistics: Mapping[str, Any] | None, model: Any) -> float | None:
  """Returns the speedup of a run over plain decoding, by iterations of this process.

  The result is None if nothing was drafted, or this process timed no iterations.
  """
  timed = _timed(model)
  # Calls of one size.
  if not statistics or not statistics["drafted"] or len(timed) != 1:
    return None
  ((job, policy, lengths),) = timed
  return speed.speedup_of_run(policy, lengths, statistics, job.output_length)


def _may_gain_with_fewer_rows(drafted: int, model: Any) -> bool:
  """Returns whether drafts of a few rows may gain where these rows' drafts do not.

  Either measured times have ruled drafts out, or several rows have drafts of a fixed
  length, which no measurement supports.
  """
  return model.decoder.drafter is not None and any(
    job.rows_at_once > 1 and tuning.needs_times(job.decoder) == (not drafted)
    for job, _ in model.tuned.values()
  )


def _timed(model: Any) -> list[tuple[tuning.Job, CostAware, tuple[int, ...]]]:
  """Returns the decodes with measured times: jobs, policies and draft lengths."""
  return [
    (job, decoder.policy, lengths_of(job.decoder.drafter))
    for job, decoder in model.tuned.values()
    if tuning.needs_times(job.decoder) and decoder.policy.seconds
  ]


def result_files(output_dir: str, mode: str) -> list[epath.Path]:
  """Returns the finished files of a mode, with each example once."""
  # `glob` would take brackets in the folder's name for a pattern.
  pattern = re.compile(rf"(.*-{mode}\.jsonl)-\d{{5,}}-of-(\d{{5,}})")
  files = sorted(epath.Path(output_dir).iterdir())
  matches = {x: match for x in files if (match := pattern.fullmatch(x.name))}
  sharded = {match[1] for match in matches.values() if int(match[2]) > 1}
  # The folder may have the shards of a run and also their joined file.
  return [x for x, m in matches.items() if int(m[2]) > 1 or m[1] not in sharded]


def summarize(
  files: Sequence[epath.Path], alpha_is_mass: bool
) -> dict[str, Any] | None:
  """Returns totals and rates over the examples of JSONL files.

  Args:
    files: outputs of mode predict_with_aux.
    alpha_is_mass: whether the mean of sum min(p, q) estimates alpha.

  Returns:
    alpha by counts (accepted / tried) and by mass (sum of min(p, q) / tried; None under
    rules whose alpha is not this mean), and tokens per target call, each with a 95%
    interval; and the totals. If examples have categories, the result also has the
    totals and rates of each category. None if the files hold no statistics (modes
    predict and score).
  """
  rows = []
  categories = {}
  for file in files:
    with file.open() as lines:
      for example in map(json.loads, lines):
        rows.append(example.get("aux", {}))
        category = example.get("inputs", {}).get(CATEGORY)
        categories.setdefault(category, []).append(rows[-1])
  if not rows or any(set(COUNTS) - set(row) for row in rows):
    return None
  categories.pop(None, None)
  summary = rates(rows, alpha_is_mass)
  if lengths := [row[CUT] for row in rows if row.get(CUT)]:
    summary["inputs_cut"] = {"examples": len(lengths), "tokens": max(lengths)}
  if categories:
    summary["categories"] = {
      name: rates(x, alpha_is_mass) for name, x in categories.items()
    }
  return summary


def rates(rows: Sequence[Mapping[str, float]], alpha_is_mass: bool) -> dict[str, Any]:
  """Returns totals and rates of examples' auxiliary values, as in `summarize`."""
  column = {name: np.array([row[name] for row in rows]) for name in COUNTS}
  tried = column["acceptance_positions"]
  estimates = {
    "alpha_by_counts": rate(column["accepted"], tried),
    "alpha_by_mass": rate(column["acceptance_mass"], tried) if alpha_is_mass else None,
    "tokens_per_target_call": ratio(column["tokens"], column["target_calls"]),
  }
  return {
    "examples": len(tried),
    **{name: values.sum().item() for name, values in column.items()},
    **{name: rate and dataclasses.asdict(rate) for name, rate in estimates.items()},
  }


def configuration() -> dict[str, str]:
  """Returns gin's bindings by name, without the settings in `_FREE`."""
  lines = gin.config_str(max_line_length=10**5).splitlines()  # One binding per line.
  pairs = (line.split(" = ", maxsplit=1) for line in lines if not line.startswith("#"))
  bindings = dict(pair for pair in pairs if len(pair) == 2)
  return {name: text for name, text in bindings.items() if not name.endswith(_FREE)}
