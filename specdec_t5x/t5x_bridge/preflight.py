"""Checks of a run before any model work, so that errors appear in seconds."""

from __future__ import annotations

import difflib
import json
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax
import gin
import jax
import numpy as np
import t5x
from absl import flags
from etils import epath, epy
from t5x import utils
from t5x.train_state import InferenceState

import specdec_t5x
from specdec_t5x.checkpoints.checkpoint import Checkpoint, HuggingFace
from specdec_t5x.checkpoints.checks import flat_shapes
from specdec_t5x.core.knobs import is_whole
from specdec_t5x.network.config import NetworkConfig
from specdec_t5x.network.gemma import UNTOLD
from specdec_t5x.t5x_bridge import learned
from specdec_t5x.t5x_bridge.examples import provider_of, tasks_of
from specdec_t5x.t5x_bridge.macros import macro_names
from specdec_t5x.t5x_bridge.restore import abstract_state, check_writable
from specdec_t5x.t5x_bridge.writer import SUMMARY, configuration

with epy.lazy_imports():
  import seqio


_WHOLE_RUN = re.compile(
  r"^include ['\"](\S*/)?runs/(speculative|baseline)\.gin['\"]", re.MULTILINE
)


@macro_names()
def check_run(
  dataset_cfg: utils.DatasetConfig,
  model,
  output_dir: str,
  paths: Mapping[str, str | None],
  partitioner: Any = None,
  output_macro: str = "INFER_OUTPUT_DIR",
) -> None:
  """Checks the task, vocabularies, output directory and checkpoints of a run.

  The function prints nothing and changes nothing.

  Args:
    dataset_cfg: the dataset's configuration, with the task's name.
    model: a model of this project.
    output_dir: directory for results.
    paths: paths of the networks' checkpoints by the networks' names.
    partitioner: the run's partitioner; None skips the check of the layout on devices.
    output_macro: the macro with `output_dir`, for messages.

  Raises:
    ValueError: if a check fails.
  """
  if "gin_file" in flags.FLAGS and flags.FLAGS.is_parsed():
    check_macros()
    check_one_job(flags.FLAGS.gin_file or ())
  lengths = dataset_cfg.task_feature_lengths
  is_mapping = isinstance(lengths, Mapping) and set(lengths) >= {"inputs", "targets"}
  if not is_mapping or not all(is_whole(length, 1) for length in lengths.values()):
    raise ValueError(
      "TASK_FEATURE_LENGTHS must give 'inputs' and 'targets' a length of at least 1, "
      f"got {lengths!r}."
    )
  provider = provider_of(dataset_cfg.mixture_or_task_name)
  for task in tasks_of(provider):
    check_split(task, dataset_cfg.split)
  shards = 1 if partitioner is None else partitioner.mesh.shape["data"]
  model.check(lengths, dataset_cfg.batch_size, shards)
  utils.verify_matching_vocabs(dataset_cfg, model)
  check_writable(output_dir, output_macro)
  check_same_run(output_dir)
  if partitioner is not None:
    rows = model.decoder.slots or dataset_cfg.batch_size
    check_layout(model.abstract_variables, partitioner, rows)
  for name, network in model.decoder.networks.items():
    macro = f"{name.upper()}_CHECKPOINT_PATH"
    if name not in paths:
      raise ValueError(
        f"CHECKPOINT_PATHS has {sorted(paths)}, but {type(model.decoder).__name__} "
        f"needs a path of the network {name!r}. Bind the path in your gin file."
      )
    shapes = flat_shapes(abstract_state(network).params)
    checkpoint = Checkpoint.of_network(paths[name], macro, shapes)
    if isinstance(checkpoint, HuggingFace):
      check_settings(macro, checkpoint, network.config)
    if name == "target":
      checkpoint.generation.check()
    chunks = learned.read(paths[name]) or ()
    if chunks := learned.repeated(chunks, model, provider):
      first, last, _ = chunks[0].places
      raise ValueError(
        f"{macro}={paths[name]} has learned from examples {first} to {last} of this "
        f"task, drawn with SEED={model.seed}. With equal random numbers, outputs would "
        "not have the target's distribution. Set another SEED."
      )


def check_macros() -> None:
  """Raises a ValueError if the command line sets a macro that is unknown to gin files.

  A macro is known if a binding reads the macro or a gin file sets the macro: the same
  bindings serve several runs. `t5x_runtime` checks macros in the gin parser. Upstream
  T5X accepts every name.
  """
  if hasattr(t5x, "PROVIDER"):
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


def macros_of_files(gin_files: Sequence[str]) -> set[str]:
  """Returns the macros that gin files and included files set."""
  texts = {}
  names = list(gin_files)
  while names:
    name = names.pop()
    if name not in texts:
      texts[name] = _gin_text(name)
      names += re.findall(r"^include\s+['\"](.+?)['\"]", texts[name], re.MULTILINE)
  setting = re.compile(r"^([\w/]+)\s*=", re.MULTILINE)
  return {macro for text in texts.values() for macro in setting.findall(text)}


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
  jobs = [x for x in dict.fromkeys(gin_files) if _WHOLE_RUN.search(_gin_text(x))]
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
  fix, cause = "Set SPLIT to an existing split", None
  source = getattr(task, "source", None)  # `t5x_runtime`'s tasks of texts have none.
  has_parts = source is None or getattr(source, "has_parts", False)
  if has_parts or isinstance(source, seqio.TfdsDataSource):
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


def check_same_run(output_dir: str) -> None:
  """Raises a ValueError if the directory holds a finished run with other settings.

  T5X keeps finished results, so the new run would silently return the old results. The
  settings are all of gin's bindings. `t5x_runtime` also compares the texts.
  """
  summary = epath.Path(output_dir) / SUMMARY
  if not summary.exists():
    return
  try:
    old = dict(json.loads(summary.read_text())["configuration"])
  except (ValueError, TypeError, KeyError, RecursionError) as error:
    raise ValueError(
      f"{summary} is damaged: expected the configuration of a finished run. Choose "
      "another INFER_OUTPUT_DIR, or remove the directory to run again."
    ) from error
  new = configuration()
  names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
  if names:
    changes = ", ".join(f"{n}: {old.get(n)} -> {new.get(n)}" for n in names)
    raise ValueError(
      f"INFER_OUTPUT_DIR={output_dir} holds a finished run with other settings "
      f"({changes}). Choose another directory, or remove the directory to run again."
    )


def check_settings(macro: str, checkpoint: HuggingFace, config: NetworkConfig) -> None:
  """Raises a ValueError if a folder has settings that differ from a network's.

  The settings are those that the shapes of parameters do not show: GELU and SiLU have
  parameters of the same shape. T5X's and Orbax's formats do not record these settings.
  """
  folder = checkpoint.settings()
  names = ["mlp_activations", "start_token"]
  if folder.is_gemma and config.is_gemma:
    names += [side + name for side in ("", "encoder_side.") for name in UNTOLD]
  for name in names:
    setting = operator.attrgetter(name)
    if setting(folder) != setting(config):
      raise ValueError(
        f"{macro}={checkpoint.path} has {name}={setting(folder)!r}, but the gin file "
        f"has {setting(config)!r}. Set {name} to the folder's value."
      )


def check_layout(variables, partitioner, rows: int) -> None:
  """Raises a ValueError if the mesh does not divide the batch or a parameter.

  Args:
    variables: shapes and logical axes of a model's parameters.
    partitioner: maps logical axes to the mesh.
    rows: number of rows that decode at once, over all devices.
  """
  mesh = dict(partitioner.mesh.shape)
  if rows % mesh["data"]:
    raise ValueError(
      f"BATCH_SIZE must be divisible by the mesh's 'data' axis of {mesh['data']} "
      f"devices, got {rows}. Change BATCH_SIZE or PjitPartitioner.num_partitions "
      f"(num_partitions times the 'data' axis is {jax.device_count()}, the number of "
      "devices)."
    )
  state = jax.eval_shape(lambda: InferenceState.create(variables))
  state = state.replace(params_axes=variables["params_axes"])
  axes = flax.core.unfreeze(partitioner.get_mesh_axes(state).params)
  flat = flax.traverse_util.flatten_dict(axes, sep="/")
  for name, shape in flat_shapes(variables["params"]).items():
    for size, names in zip(shape, flat[name] or (), strict=False):
      names = (names,) if isinstance(names, str) else names or ()
      devices = int(np.prod([mesh[axis] for axis in names]))
      if size % devices:
        macro = f"{name.partition('/')[0].upper()}_SHARDING"
        raise ValueError(
          f"{name} {shape} can't be divided over {devices} devices: {size} is not "
          f"divisible by {devices}. Set {macro}='no_heads' (heads are not divided) or "
          "'replicated' (every device holds the whole network), or change "
          "PjitPartitioner.num_partitions."
        )
