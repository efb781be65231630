"""Checks of a run before any model work: what is wrong is said in seconds."""

import difflib
import json
import operator
import os
import re
from collections.abc import Mapping
from typing import Any

import gin
import jax
import seqio
import t5x
from absl import flags
from etils import epath
from t5x import utils

from specdec_t5x.checkpoints.checkpoint import Checkpoint, HuggingFace, flat_shapes
from specdec_t5x.checkpoints.readers import abstract_state
from specdec_t5x.core.checks import is_whole
from specdec_t5x.data.from_texts import SlicedSource
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import Network
from specdec_t5x.network.gemma import UNTOLD
from specdec_t5x.t5x_bridge import learned
from specdec_t5x.t5x_bridge.examples import shard_of_command
from specdec_t5x.t5x_bridge.layout import check_layout
from specdec_t5x.t5x_bridge.writer import SUMMARY, configuration, what_decodes


def check_run(
  dataset_cfg: utils.DatasetConfig,
  model,
  output_dir: str,
  paths: Mapping[str, str | None],
  partitioner: Any = None,
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

  Raises:
    ValueError: naming what was expected, what came, and what to do.
  """
  check_macros()
  guarantee = model.decoder.guarantee
  if not guarantee.keeps_distribution:
    print(f"{guarantee.name}: this run keeps {guarantee.value}.", flush=True)
  if rounded.of_weights(model.decoder.target.config):
    print(f"The target is {what_decodes(model.decoder.target)}.", flush=True)
  check_task(dataset_cfg)
  provider = seqio.maybe_get_mixture_or_task(dataset_cfg.mixture_or_task_name)
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
    slots = getattr(model.decoder, "slots", 0)
    check_layout(variables, partitioner, slots or dataset_cfg.batch_size)
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
    check_new_draws(macro, paths[name], learned.Draws.of_run(model, provider))


def check_macros() -> None:
  """Raises a ValueError where the command line sets a macro that nothing reads.

  `t5x_runtime` says so when it parses gin; upstream T5X accepts any name.
  """
  if hasattr(t5x, "PROVIDER") or "gin_bindings" not in flags.FLAGS:
    return
  if not flags.FLAGS.is_parsed():
    return
  names = [text.partition("=")[0].strip() for text in flags.FLAGS.gin_bindings or ()]
  read = set(re.findall(r"%([\w/]+)", gin.config_str()))
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
  known = sorted([*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()])
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
  for task in seqio.get_subtasks(seqio.maybe_get_mixture_or_task(name)):
    check_split(task, dataset_cfg.split)


def check_split(task: seqio.Task, split: str) -> None:
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
  if isinstance(task.source, seqio.TfdsDataSource | SlicedSource):
    fix += " or parts, as 'test[:100]', which hold an example"
    try:
      if isinstance(split, str) and task.num_input_examples(split):
        return
    except (KeyError, ValueError, NotImplementedError) as error:
      fix, cause = f"{fix} ({error.args[0]})", error
  raise ValueError(
    f"SPLIT={split!r} is no split of task {task.name!r}, which has {splits}. {fix}."
  ) from cause


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
