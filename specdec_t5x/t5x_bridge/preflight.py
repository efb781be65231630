"""Checks of a run before any model work, so that errors appear in seconds."""

from __future__ import annotations

import difflib
import json
import operator
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
from specdec_t5x.checkpoints.checkpoint import Checkpoint, HuggingFace
from specdec_t5x.checkpoints.checks import flat_shapes
from specdec_t5x.core.knobs import is_whole
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
from specdec_t5x.t5x_bridge.restore import abstract_state, check_writable
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
  """Checks the task, vocabularies, output directory and checkpoints of a run.

  T5X calls this function through `infer.verify_matching_vocabs_fn`, before T5X uses the
  model. This function also passes the task and the shard to the model
  (`number_examples`).

  Args:
    dataset_cfg: the dataset's configuration, with the task's name.
    model: a model of this project.
    output_dir: directory for results.
    paths: paths of the networks' checkpoints by the networks' names.
    partitioner: the run's partitioner; None skips the check of the layout on devices.
    quiet: whether the run prints only errors and results.

  Raises:
    ValueError: if a check fails; the message has the expectation, the value and the
      fix.
  """
  check_macros()
  if "gin_file" in flags.FLAGS and flags.FLAGS.is_parsed():
    check_one_job(flags.FLAGS.gin_file or ())
  console.set_quiet(quiet)
  guarantee = model.decoder.rule.guarantee
  if not guarantee.keeps_distribution:
    console.announce(f"{guarantee.name}: this run keeps {guarantee.value}.")
  if rounded.of_weights(model.decoder.target.config):
    console.announce(f"The target is {what_decodes(model.decoder.target)}.")
  check_task(dataset_cfg)
  provider = provider_of(dataset_cfg.mixture_or_task_name)
  model.number_examples(provider.name, shard_of_command())
  lengths = dataset_cfg.task_feature_lengths
  model.check_max_length(lengths["targets"])
  shards = 1 if partitioner is None else partitioner.mesh.shape["data"]
  model.check_batch(dataset_cfg.batch_size, lengths, shards)
  utils.verify_matching_vocabs(dataset_cfg, model)
  check_writable(output_dir, "INFER_OUTPUT_DIR")
  check_same_run(output_dir)
  model.is_restored = True
  variables = abstract_variables(model, lengths)
  if partitioner is not None:
    check_layout(variables, partitioner, _rows(model.decoder, dataset_cfg))
  for name in model.decoder.networks:
    macro = f"{name.upper()}_CHECKPOINT_PATH"
    if name not in paths:
      raise ValueError(
        f"CHECKPOINT_PATHS has {sorted(paths)}, but {type(model.decoder).__name__} "
        f"needs a path of the network {name!r}. Bind the path in your gin file."
      )
    shapes = flat_shapes(abstract_state(model.decoder.networks[name]).params)
    checkpoint = Checkpoint.of_network(paths[name], macro, shapes)
    check_activations(macro, checkpoint, model.decoder.networks[name])
    if name == "target":
      follow_generation(model, checkpoint)
    check_new_draws(macro, paths[name], learned.Draws.of_run(model, provider))
  examples = count_examples(provider, dataset_cfg.split)
  pace.start(examples)
  console.stage(describe_run(dataset_cfg, model, variables["params"]))


def describe_run(dataset_cfg: utils.DatasetConfig, model, params) -> str:
  """Returns a one-line description of a run.

  Args:
    dataset_cfg: the dataset's configuration, with the task and the lengths.
    model: a model of this project.
    params: shapes of the networks' parameters.
  """
  decoder = model.decoder
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
    f"temperature {model.sampling.temperature:g}",
    f"batch size {rows}",
    f"{jax.numpy.dtype(target.dtype).name} on {jax.devices()[0].platform}",
  ]
  kind = "Speculative" if drafter else "Plain"
  return f"{kind} decoding: {', '.join(words)}."


def _spaced(name: str) -> str:
  """Returns a class's name in words.

  >>> _spaced("DraftModel")
  'draft model'
  """
  return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def count_examples(provider, split: str) -> int | None:
  """Returns the number of examples in a task's split; None if the number is unknown."""
  try:
    counts = [task.num_input_examples(split) for task in tasks_of(provider)]
  except (KeyError, ValueError, NotImplementedError):
    return None
  return None if None in counts else sum(counts)


def _rows(decoder, dataset_cfg) -> int:
  """Returns the number of rows that decode at once: SLOTS, or the whole batch."""
  return decoder.slots or dataset_cfg.batch_size


def check_macros() -> None:
  """Raises a ValueError if the command line sets a macro that is unknown to gin files.

  A macro is known if a binding reads the macro or a gin file sets the macro: the same
  bindings serve several runs. `t5x_runtime` checks macros in the gin parser. Upstream
  T5X accepts every name.
  """
  if hasattr(t5x, "PROVIDER") or "gin_bindings" not in flags.FLAGS:
    return
  if not flags.FLAGS.is_parsed():
    return
  names = [text.partition("=")[0].strip() for text in flags.FLAGS.gin_bindings or ()]
  macros = set(re.findall(r"%([\w/]+)", gin.config_str()))
  macros |= macros_of_files(flags.FLAGS.gin_file or ())
  unknown = [x for x in names if re.fullmatch(r"[\w/]+", x) and x not in macros]
  if unknown:
    close = difflib.get_close_matches(unknown[0].upper(), sorted(macros), cutoff=0.5)
    raise ValueError(
      f"--gin.{unknown[0]} sets a macro that nothing reads. The closest macros are: "
      f"{', '.join(close) or 'none'}."
    )


def check_task(dataset_cfg: utils.DatasetConfig) -> None:
  """Raises a ValueError if the task or the task's split does not exist."""
  name = dataset_cfg.mixture_or_task_name
  names = task_names()
  if isinstance(name, str) and name not in names:
    close = difflib.get_close_matches(name, names) or names
    raise ValueError(
      f"Unknown task {name!r} in MIXTURE_OR_TASK_NAME. The closest registered tasks "
      f"are: {', '.join(close)}. For your own files bind a function of "
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
  """Returns the macros that gin files and included files set."""
  macros = set()
  seen = set()
  names = list(gin_files)
  while names:
    name = names.pop()
    if name in seen:
      continue
    seen.add(name)
    text = _gin_text(name)
    macros.update(re.findall(r"^([\w/]+)\s*=", text, re.MULTILINE))
    names += re.findall(r"^include\s+['\"](.+?)['\"]", text, re.MULTILINE)
  return macros


def _gin_text(name: str) -> str:
  """Returns the text of a gin file, "" if only gin's own search finds the file."""
  places = (epath.Path(name).expanduser(), epath.Path(specdec_t5x.config_path()) / name)
  # A pipe has been read by gin, and can't be read again.
  file = next((place for place in places if place.is_file()), None)
  return file.read_bytes().decode(errors="replace") if file else ""


def check_one_job(gin_files: Sequence[str]) -> None:
  """Raises a ValueError if two gin files each describe a run.

  Without this check, the last file would silently win. A file that describes a run
  includes configs/runs/speculative.gin or baseline.gin.
  """
  jobs = [
    name for name in dict.fromkeys(gin_files) if _WHOLE_RUN.search(_gin_text(name))
  ]
  if len(jobs) > 1:
    raise ValueError(
      f"Expected one gin file that describes a run, got {' and '.join(jobs)}: the last "
      "file would replace the earlier files. Give one file per command."
    )


def check_split(task: Any, split: str) -> None:
  """Raises a ValueError if the task's data or the split is missing."""
  try:
    splits = sorted(task.splits)
  except Exception as error:  # TFDS raises a dozen types if data is not prepared.
    raise ValueError(
      f"The data of task {task.name!r} can't be found ({type(error).__name__}: "
      f"{error}). Give --tfds_data_dir, a directory with the data, prepared by "
      "TFDS; or read your own files by tasks.translation_from_files."
    ) from error
  if split in splits:
    return
  fix = "Set SPLIT to an existing split"
  cause = None
  if _has_parts(task):
    fix += " or to a part with examples, as 'test[:100]'"
    try:
      if isinstance(split, str) and task.num_input_examples(split):
        return
    except (KeyError, ValueError, NotImplementedError) as error:
      fix += f" ({error.args[0]})"
      cause = error
  raise ValueError(
    f"SPLIT={split!r} is not a split of task {task.name!r}; the splits are {splits}. "
    f"{fix}."
  ) from cause


def _has_parts(task) -> bool:
  """Returns whether SPLIT may be a part of a task's split, such as 'test[:100]'."""
  if not hasattr(task, "source"):  # One of `t5x_runtime`'s own tasks of texts.
    return True
  has_parts = getattr(task.source, "has_parts", False)
  return has_parts or isinstance(task.source, seqio.TfdsDataSource)


def check_same_run(output_dir: str) -> None:
  """Raises a ValueError if the directory holds a finished run with other settings.

  T5X keeps finished results, so the new run would silently return the old results. The
  settings are all of gin's bindings. The contents of files (inputs, weights) are not
  compared.
  """
  summary = epath.Path(output_dir) / SUMMARY
  if not summary.exists():
    return
  try:
    contents = json.loads(summary.read_text())
  except (ValueError, RecursionError):
    contents = None
  old = contents.get("configuration") if isinstance(contents, dict) else None
  if not isinstance(old, dict):
    raise ValueError(
      f"{summary} is damaged: expected the configuration of a finished run. Choose "
      "another INFER_OUTPUT_DIR, or remove the directory to run again."
    )
  new = configuration()
  names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
  if names:
    changes = ", ".join(f"{n}: {old.get(n)} -> {new.get(n)}" for n in names)
    raise ValueError(
      f"INFER_OUTPUT_DIR={output_dir} holds a finished run with other settings "
      f"({changes}). Choose another directory, or remove the directory to run again."
    )


def check_new_draws(macro: str, path: str, draws: learned.Draws) -> None:
  """Raises a ValueError if a network has learned from the samples of this run."""
  if chunks := draws.among(learned.read(path) or ()):
    raise ValueError(
      f"{macro}={path} has learned from {chunks[0].name}, drawn with "
      f"SEED={draws.seed}. With equal random numbers, outputs would not have the "
      "target's distribution. Set another SEED."
    )


def abstract_variables(model, lengths: Mapping[str, int]) -> Mapping[str, Any]:
  """Returns `params` and `params_axes` of `model`, with abstract arrays."""
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
  """Sets the end tokens from the target's folder, and prints settings not applied.

  Raises:
    ValueError: if the folder's settings change the target's distribution.
  """
  model.follow(target.generation)
  if note := target.generation.note():
    console.announce(note)


def check_activations(macro: str, checkpoint: Checkpoint, network: Network) -> None:
  """Raises a ValueError if a Hugging Face folder has another feed-forward layer.

  Also checks the other settings that the shapes of parameters do not show. Checkpoints
  in T5X's or Orbax's format do not record these settings: GELU and SiLU have parameters
  of the same shape.
  """
  if not isinstance(checkpoint, HuggingFace):
    return
  folder = checkpoint.settings()
  config = network.config
  for side in ("", "encoder_side.") if folder.is_gemma and config.is_gemma else ():
    for name in UNTOLD:
      setting = operator.attrgetter(side + name)
      if setting(folder) != setting(config):
        raise ValueError(
          f"{macro}={checkpoint.path} has {side}{name}={setting(folder)!r}, but the "
          f"gin file has {setting(config)!r}. Set {side}{name} to the folder's value."
        )
  if folder.mlp_activations != config.mlp_activations:
    raise ValueError(
      f"{macro}={checkpoint.path} has the feed-forward layer {folder.mlp_activations}, "
      f"but the gin file has {config.mlp_activations}. Set mlp_activations to the "
      "folder's value."
    )
  if folder.start_token != config.start_token:
    raise ValueError(
      f"{macro}={checkpoint.path} starts decoding from token {folder.start_token}, but "
      f"the gin file has {config.start_token}. Set start_token to the folder's value."
    )
