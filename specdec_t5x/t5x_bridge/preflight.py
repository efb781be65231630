"""Checks of a run before any model work: what is wrong is said in seconds."""

from __future__ import annotations

import dataclasses
import difflib
import json
import operator
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import jax
import t5x
from absl import flags
from etils import epath, epy
from t5x import utils

import specdec_t5x
from specdec_t5x import console
from specdec_t5x.checkpoints.checkpoint import Checkpoint, HuggingFace, flat_shapes
from specdec_t5x.checkpoints.readers import abstract_state
from specdec_t5x.core.checks import is_whole
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import Network
from specdec_t5x.network.gemma import UNTOLD
from specdec_t5x.t5x_bridge import learned, pace
from specdec_t5x.t5x_bridge.examples import (
  provider_of,
  shard_of_command,
  task_names,
  tasks_of,
)
from specdec_t5x.t5x_bridge.layout import check_layout
from specdec_t5x.t5x_bridge.writer import SUMMARY, configuration, what_decodes

with epy.lazy_imports():
  import seqio


_WHOLE_RUN = re.compile(
  r"^include ['\"](\S*/)?runs/(speculative|baseline)\.gin['\"]", re.MULTILINE
)


def check_run(
  dataset_cfg: utils.DatasetConfig,
  model,
  output_dir: str,
  paths: Mapping[str, str | None],
  partitioner: Any = None,
  quiet: bool = False,
) -> None:
  """Checks task, vocabularies, output directory and checkpoints of a run.

  T5X calls it through `infer.verify_matching_vocabs_fn`, before it touches the model,
  which learns here which examples it will be given.

  Args:
    dataset_cfg: names the task.
    model: one of this project's models.
    output_dir: where results will go.
    paths: of the networks' checkpoints, by their names.
    partitioner: the run's; None where the layout on devices is not to be checked.
    quiet: whether the run prints errors and results alone.

  Raises:
    ValueError: naming what was expected, what came, and what to do.
  """
  check_macros()
  if "gin_file" in flags.FLAGS and flags.FLAGS.is_parsed():
    check_one_job(flags.FLAGS.gin_file or ())
  console.set_quiet(quiet)
  guarantee = model.decoder.guarantee
  if not guarantee.keeps_distribution:
    print(f"{guarantee.name}: this run keeps {guarantee.value}.", flush=True)
  if rounded.of_weights(model.decoder.target.config):
    print(f"The target is {what_decodes(model.decoder.target)}.", flush=True)
  check_task(dataset_cfg)
  provider = provider_of(dataset_cfg.mixture_or_task_name)
  model.number_examples(provider.name, shard_of_command())
  lengths = dataset_cfg.task_feature_lengths
  model.check_max_length(lengths["targets"])
  shards = 1 if partitioner is None else partitioner.mesh.shape["data"]
  model.check_batch(dataset_cfg.batch_size, lengths, shards)
  utils.verify_matching_vocabs(dataset_cfg, model)
  check_writable(output_dir)
  check_same_run(output_dir)
  variables = abstract_variables(model, lengths)
  if partitioner is not None:
    check_layout(variables, partitioner, _rows(model.decoder, dataset_cfg))
  for name in model.decoder.networks:
    macro = f"{name.upper()}_CHECKPOINT_PATH"
    if name not in paths:
      raise ValueError(
        f"CHECKPOINT_PATHS has {sorted(paths)}, and no path of the network {name!r}, "
        f"which {type(model.decoder).__name__} needs. Bind it in your gin file."
      )
    shapes = flat_shapes(abstract_state(model.decoder.networks[name]).params)
    found = Checkpoint.of_network(paths[name], macro, shapes)
    check_activations(macro, found, model.decoder.networks[name])
    if name == "target":
      follow_generation(model, found)
    check_new_draws(macro, paths[name], learned.Draws.of_run(model, provider))
  examples = count_examples(provider, dataset_cfg.split)
  pace.start(_job(dataset_cfg, model, paths), model.decoder, examples)
  console.stage(describe_run(dataset_cfg, model, variables["params"]))


def describe_run(dataset_cfg: utils.DatasetConfig, model, params) -> str:
  """Returns in a line which job a run is.

  Args:
    dataset_cfg: the task, and the lengths.
    model: one of this project's models.
    params: shapes of the networks' parameters.
  """
  decoder, sampling = model.decoder, model.sampling
  sizes = {
    name: sum(leaf.size for leaf in jax.tree.leaves(params[name])) / 1e6
    for name in decoder.networks
  }
  rows = _rows(decoder, dataset_cfg)
  target = decoder.target.config
  words = [
    f"{dataset_cfg.mixture_or_task_name} ({dataset_cfg.split})",
    f"a target of {sizes['target']:.1f}M parameters",
  ]
  if drafter := decoder.drafter:
    drafts = [f"{size:.1f}M" for name, size in sizes.items() if name != "target"]
    size = f" of {' and '.join(drafts)} parameters" if drafts else ""
    words.append(f"{_spaced(type(drafter).__name__)}{size}")
    words.append(f"rule '{_spaced(type(decoder.rule).__name__)}'")
  words += [
    f"temperature {sampling.temperature:g}",
    f"batch size {rows}",
    f"{jnp_name(target.dtype)} on {jax.devices()[0].platform}",
  ]
  kind = "Speculative" if drafter else "Plain"
  return f"{kind} decoding: {', '.join(words)}."


def jnp_name(dtype: Any) -> str:
  """Returns a dtype's name."""
  return jax.numpy.dtype(dtype).name


def _spaced(name: str) -> str:
  """Returns a class's name as words.

  >>> _spaced("DraftModel")
  'draft model'
  """
  return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def count_examples(provider, split: str) -> int | None:
  """Returns how many examples a task's split has; None where the task can't tell."""
  try:
    counts = [task.num_input_examples(split) for task in tasks_of(provider)]
  except (KeyError, ValueError, NotImplementedError):
    return None
  return None if None in counts else sum(counts)


def _rows(decoder, dataset_cfg) -> int:
  """Returns how many rows decode at once; a beam's have no turns."""
  return decoder.slots or dataset_cfg.batch_size


def _job(dataset_cfg, model, paths) -> dict[str, Any]:
  """Returns what a plain and a speculative run of the same job have in common."""
  decoder = model.decoder
  return {
    "provider": getattr(t5x, "PROVIDER", "upstream"),
    "task": dataset_cfg.mixture_or_task_name,
    "split": dataset_cfg.split,
    "lengths": sorted(dataset_cfg.task_feature_lengths.items()),
    "rows": _rows(decoder, dataset_cfg),
    "examples a call": dataset_cfg.batch_size,
    "sampling": dataclasses.replace(model.sampling, coupled=False),
    "target": (decoder.target.config, str(paths["target"])),
  }


def check_macros() -> None:
  """Raises a ValueError where the command line sets a macro that nothing reads or sets.

  A macro that a gin file sets is known, whether or not this run reads it: the same
  bindings serve several runs. `t5x_runtime` says so when it parses gin; upstream T5X
  accepts any name.
  """
  if hasattr(t5x, "PROVIDER") or "gin_bindings" not in flags.FLAGS:
    return
  if not flags.FLAGS.is_parsed():
    return
  names = [text.partition("=")[0].strip() for text in flags.FLAGS.gin_bindings or ()]
  read = set(re.findall(r"%([\w/]+)", gin.config_str()))
  read |= macros_of_files(flags.FLAGS.gin_file or ())
  unknown = [x for x in names if re.fullmatch(r"[\w/]+", x) and x not in read]
  if unknown:
    close = difflib.get_close_matches(unknown[0].upper(), sorted(read), cutoff=0.5)
    raise ValueError(
      f"--gin.{unknown[0]} sets a macro that nothing reads. Closest are: "
      f"{', '.join(close) or 'none'}."
    )


def check_task(dataset_cfg: utils.DatasetConfig) -> None:
  """Raises a ValueError where the task or its split does not exist."""
  name = dataset_cfg.mixture_or_task_name
  known = task_names()
  if isinstance(name, str) and name not in known:
    close = difflib.get_close_matches(name, known) or known
    raise ValueError(
      f"Unknown task {name!r} in MIXTURE_OR_TASK_NAME. Registered, and closest, are: "
      f"{', '.join(close)}. For your own files bind a function of "
      "specdec_t5x.data.tasks, or import the module that registers the task in gin."
    )
  lengths = dataset_cfg.task_feature_lengths
  if not (
    isinstance(lengths, Mapping)
    and set(lengths) >= {"inputs", "targets"}
    and all(is_whole(length, 1) for length in lengths.values())
  ):
    raise ValueError(
      "TASK_FEATURE_LENGTHS must give 'inputs' and 'targets' a length of at least 1, "
      f"got {lengths!r}."
    )
  for task in tasks_of(provider_of(name)):
    check_split(task, dataset_cfg.split)


def macros_of_files(gin_files: Sequence[str]) -> set[str]:
  """Returns the macros that gin files, or files that they include, set."""
  found, names, seen = set(), list(gin_files), set()
  while names:
    name = names.pop()
    if name in seen:
      continue
    seen.add(name)
    text = _gin_text(name)
    found.update(re.findall(r"^([\w/]+)\s*=", text, re.MULTILINE))
    names += re.findall(r"^include\s+['\"](.+?)['\"]", text, re.MULTILINE)
  return found


def _gin_text(name: str) -> str:
  """Returns the text of a gin file; none of one that only gin finds."""
  places = (epath.Path(name), epath.Path(specdec_t5x.config_path()) / name)
  file = next((place for place in places if place.exists()), None)
  return file.read_bytes().decode(errors="replace") if file else ""


def check_one_job(gin_files: Sequence[str]) -> None:
  """Raises a ValueError where two gin files each describe a whole run.

  The last one would win, and nothing would say so. A file that describes a run includes
  configs/runs/speculative.gin or baseline.gin.
  """
  jobs = [
    name for name in dict.fromkeys(gin_files) if _WHOLE_RUN.search(_gin_text(name))
  ]
  if len(jobs) > 1:
    raise ValueError(
      f"Expected one gin file that describes a run, got {' and '.join(jobs)}: the last "
      "one would replace the others. Give one of them, and run the others by commands "
      "of their own."
    )


def check_split(task: Any, split: str) -> None:
  """Raises a ValueError where the task's data or this split of it is not there."""
  try:
    splits = sorted(task.splits)
  except Exception as error:  # TFDS raises a dozen types where data is not prepared.
    raise ValueError(
      f"The data of task {task.name!r} can't be found ({type(error).__name__}: "
      f"{error}). Give --tfds_data_dir, a directory of TFDS that holds it; "
      "scripts/prepare_tfds.py makes one from files."
    ) from error
  if split in splits:
    return
  fix, cause = "Set it to one of them", None
  if _has_parts(task):
    fix += " or parts, as 'test[:100]', which hold an example"
    try:
      if isinstance(split, str) and task.num_input_examples(split):
        return
    except (KeyError, ValueError, NotImplementedError) as error:
      fix, cause = f"{fix} ({error.args[0]})", error
  raise ValueError(
    f"SPLIT={split!r} is no split of task {task.name!r}, which has {splits}. {fix}."
  ) from cause


def _has_parts(task) -> bool:
  """Returns whether a task's split may be a part of one, as 'test[:100]'."""
  if not hasattr(task, "source"):  # A task of texts, of `t5x_runtime`'s own.
    return True
  has_parts = getattr(task.source, "has_parts", False)
  return has_parts or isinstance(task.source, seqio.TfdsDataSource)


def check_writable(directory: str) -> None:
  """Raises a ValueError where no file can be made in `directory`; makes no folder."""
  folder = epath.Path(directory)
  if "://" not in str(directory):
    folder = next(p for p in (folder, *folder.absolute().parents) if p.exists())
  probe = folder / f".writable-{os.getpid()}"
  try:
    probe.write_text("")
    probe.unlink()
  except OSError as error:
    raise ValueError(
      f"INFER_OUTPUT_DIR={directory} can't be written to ({error}). Choose a directory "
      "that you may create files in."
    ) from error


def check_same_run(output_dir: str) -> None:
  """Raises a ValueError where the directory holds a finished run with other settings.

  T5X keeps what is finished, so the new run would silently be the old one. Settings are
  all that gin binds; what stands in files (inputs, weights) is not compared.
  """
  summary = epath.Path(output_dir) / SUMMARY
  if not summary.exists():
    return
  try:
    contents = json.loads(summary.read_text())
  except (ValueError, RecursionError):
    contents = None
  found = contents.get("configuration") if isinstance(contents, dict) else None
  if not isinstance(found, dict):
    raise ValueError(
      f"{summary} is damaged: expected the configuration of a finished run. Choose "
      "another INFER_OUTPUT_DIR, or remove this one to run again."
    )
  wanted = configuration()
  names = [n for n in {**found, **wanted} if found.get(n) != wanted.get(n)]
  if names:
    changes = ", ".join(f"{n}: {found.get(n)} -> {wanted.get(n)}" for n in names)
    raise ValueError(
      f"INFER_OUTPUT_DIR={output_dir} holds a finished run with other settings "
      f"({changes}). Choose another directory, or remove this one to run again."
    )


def check_new_draws(macro: str, path: str, draws: learned.Draws) -> None:
  """Raises a ValueError where a network has learned from what this run would draw."""
  if known := draws.among(learned.read(path) or ()):
    raise ValueError(
      f"{macro}={path} has learned from {known[0].name}, drawn with SEED={draws.seed}: "
      "this run would draw by the same random numbers, and outputs would not have the "
      "target's distribution. Set another SEED."
    )


def abstract_variables(model, lengths: Mapping[str, int]) -> Mapping[str, Any]:
  """Returns `params` and `params_axes` of `model`, with shapes for arrays."""
  input_shapes = {
    "encoder_input_tokens": (1, lengths["inputs"]),
    "decoder_input_tokens": (1, lengths["targets"]),
  }
  input_types = dict.fromkeys(input_shapes, jax.numpy.int32)
  return jax.eval_shape(
    lambda rng: model.get_initial_variables(rng, input_shapes, input_types),
    jax.random.PRNGKey(0),
  )


def follow_generation(model, target: Checkpoint) -> None:
  """Ends outputs as the target's folder says, and prints what is not applied.

  Raises:
    ValueError: where the folder asks for another distribution than the target's.
  """
  model.follow(target.generation)
  if note := target.generation.note():
    print(note, flush=True)


def check_activations(macro: str, checkpoint: Checkpoint, network: Network) -> None:
  """Raises a ValueError where a Hugging Face folder has another feed-forward layer.

  Or what else of a network no shape tells. Of other checkpoints nobody can tell: GELU
  and SiLU have parameters of one shape.
  """
  if not isinstance(checkpoint, HuggingFace):
    return
  theirs, own = checkpoint.settings(), network.config
  for side in ("", "encoder_side.") if theirs.is_gemma and own.is_gemma else ():
    told = operator.attrgetter(*(side + name for name in UNTOLD))
    for name, found, wanted in zip(UNTOLD, told(theirs), told(own), strict=True):
      if found != wanted:
        raise ValueError(
          f"{macro}={checkpoint.path} has {side}{name}={found!r}, and the gin file "
          f"says {wanted!r}. Set it to the folder's."
        )
  found, wanted = theirs.mlp_activations, own.mlp_activations
  if found != wanted:
    raise ValueError(
      f"{macro}={checkpoint.path} has the feed-forward layer {found}, and the gin file "
      f"says {wanted}. Set mlp_activations to the folder's."
    )
  found, wanted = theirs.start_token, own.start_token
  if found != wanted:
    raise ValueError(
      f"{macro}={checkpoint.path} starts decoding from token {found}, and the gin file "
      f"says {wanted}. Set start_token to the folder's."
    )
