"""The start of a run: checks, the settings that the model adopts, and messages."""

import re
from collections.abc import Mapping
from typing import Any

import jax
from t5x import utils

from specdec_t5x import console
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.network import rounded
from specdec_t5x.t5x_bridge import preflight
from specdec_t5x.t5x_bridge.examples import provider_of, tasks_of
from specdec_t5x.t5x_bridge.pace import Clock
from specdec_t5x.t5x_bridge.writer import what_decodes


def begin(
  dataset_cfg: utils.DatasetConfig,
  model,
  output_dir: str,
  paths: Mapping[str, str | None],
  partitioner: Any = None,
  *,
  quiet: bool = False,
  output_macro: str = "INFER_OUTPUT_DIR",
) -> None:
  """Checks a run, then prepares the model and describes the run.

  T5X calls this function through `infer.verify_matching_vocabs_fn`, before T5X uses the
  model. The arguments are those of `preflight.check_run`, which may raise a ValueError,
  and `quiet`: whether the run prints only errors and results.
  """
  console.set_quiet(quiet)
  preflight.check_run(dataset_cfg, model, output_dir, paths, partitioner, output_macro)
  model.adopt(Checkpoint.open(paths["target"]))
  guarantee = model.decoder.rule.guarantee
  if not guarantee.keeps_distribution:
    console.announce(f"{guarantee.name}: this run keeps {guarantee.value}.")
  if rounded.of_weights(model.decoder.target.config):
    console.announce(f"The target is {what_decodes(model.decoder.target)}.")
  tasks = tasks_of(provider_of(dataset_cfg.mixture_or_task_name))
  try:
    counts = [task.num_input_examples(dataset_cfg.split) for task in tasks]
  except (KeyError, ValueError, NotImplementedError):
    counts = [None]
  model.clock = Clock(None if None in counts else sum(counts))
  console.stage(describe_run(dataset_cfg, model))


def describe_run(dataset_cfg: utils.DatasetConfig, model) -> str:
  """Returns a one-line description of a run.

  Args:
    dataset_cfg: the dataset's configuration, with the task and the lengths.
    model: a model of this project.
  """
  decoder = model.decoder
  params = model.abstract_variables["params"]
  sizes = {
    name: f"{sum(x.size for x in jax.tree.leaves(params[name])) / 1e6:.1f}M"
    for name in decoder.networks
  }
  words = [
    f"{dataset_cfg.mixture_or_task_name} ({dataset_cfg.split})",
    f"a target of {sizes.pop('target')} parameters",
  ]
  if drafter := decoder.drafter:
    size = f" of {' and '.join(sizes.values())} parameters" if sizes else ""
    words.append(f"{_spaced(type(drafter).__name__)}{size}")
    words.append(f"rule '{_spaced(type(decoder.rule).__name__)}'")
  words += [
    f"temperature {model.sampling.temperature:g}",
    f"batch size {decoder.slots or dataset_cfg.batch_size}",
    f"{jax.numpy.dtype(decoder.target.config.dtype)} on {jax.devices()[0].platform}",
  ]
  kind = "Speculative" if drafter else "Plain"
  return f"{kind} decoding: {', '.join(words)}."


def _spaced(name: str) -> str:
  """Returns a class's name in words.

  >>> _spaced("DraftModel")
  'draft model'
  """
  return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
