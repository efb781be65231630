"""Datasets, checkpoints and train states of an inference run."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module as import_module
from typing import Any

import flax
import jax
import numpy as np
from absl import logging
from etils import epath, epy

from t5x import checkpoints, plain_tasks, train_state

with epy.lazy_imports():
  import seqio

MODES = ("specific", "latest", "all")
DTYPES = (None, "float32", "bfloat16", "float16")
# The name in decoder_params, and the auxiliary value, of the state from batch to batch.
DECODE_STATE = "decode_state"


@dataclasses.dataclass
class DatasetConfig:
  """The examples of a run."""

  mixture_or_task_name: str | seqio.Task | seqio.Mixture
  task_feature_lengths: Mapping[str, int]  # Maximal lengths, in tokens.
  split: str
  batch_size: int  # Number of examples per batch, over all devices.
  shuffle: bool  # Must be False for inference in order.
  seed: int | None  # Of the task's preprocessors.
  use_cached: bool = False  # Whether to read seqio's offline cache.
  pack: bool = False  # Must be False for inference: one example per row.
  module: str | None = None  # Registers the task; an import in gin is better.
  use_memory_cache: bool = True


@dataclasses.dataclass
class RestoreCheckpointConfig:
  """The checkpoint to restore, and the options."""

  path: str | Sequence[str]  # Of a checkpoint, or of a folder for latest and all.
  mode: str = "latest"  # Mode all is for `t5x.eval`, in the order of steps.
  dtype: str | None = None  # Of restored parameters; None keeps the checkpoint's.
  # These options of upstream must keep the defaults.
  assignment_map: Sequence[tuple[str, str | None]] | None = None
  fallback_to_scratch: bool = False
  state_transformation_fns: Sequence[Callable[..., Any]] = ()
  # The class that restores a train state from a path.
  checkpoint_manager_cls: Callable[..., Any] = (
    checkpoints.OrbaxCheckpointManagerInterface
  )

  def __post_init__(self):
    for name, choices in (("mode", MODES), ("dtype", DTYPES)):
      if (value := getattr(self, name)) not in choices:
        raise ValueError(
          f"RestoreCheckpointConfig.{name} must be one of {choices}, got {value!r}."
        )
    for name in ("assignment_map", "fallback_to_scratch", "state_transformation_fns"):
      if value := getattr(self, name):
        raise ValueError(
          f"RestoreCheckpointConfig.{name} is not in the contract of t5x_runtime "
          f"(docs/t5x_contract.md), got {value!r}. Use upstream T5X, or convert the "
          "checkpoint first."
        )


def get_vocabulary(cfg: DatasetConfig) -> tuple[seqio.Vocabulary, seqio.Vocabulary]:
  """Returns the vocabularies of a dataset's inputs and targets.

  Raises:
    ValueError: if the task lacks the feature inputs or targets.
  """
  if cfg.module:
    import_module(cfg.module)
  name = cfg.mixture_or_task_name
  provider = plain_tasks.find(name) or seqio.maybe_get_mixture_or_task(name)
  features = provider.output_features
  if not {"inputs", "targets"} <= set(features):
    raise ValueError(
      f"Task {provider.name!r} must have the features inputs and targets, got "
      f"{sorted(features)}. Add the missing feature to the task."
    )
  return features["inputs"].vocabulary, features["targets"].vocabulary


def verify_matching_vocabs(cfg: DatasetConfig, model) -> None:
  """Raises a ValueError if the task's vocabularies differ from the model's."""
  task_inputs, task_outputs = get_vocabulary(cfg)
  for name, of_task, of_model in (
    ("input", task_inputs, model.input_vocabulary),
    ("output", task_outputs, model.output_vocabulary),
  ):
    # The model's vocabulary is on the left, because its `__ne__` may support seqio's
    # vocabularies.
    if of_model != of_task:
      raise ValueError(
        f"Model and task have different {name} vocabularies.\n  task "
        f"{cfg.mixture_or_task_name}: {of_task}\n  model: {of_model}\nBind one "
        "vocabulary to the task and the model."
      )


def round_vocab_size_to_multiple(
  vocabulary: seqio.Vocabulary, divisor: int = 128
) -> int:
  """Returns the vocabulary's size, rounded up to a multiple of `divisor`."""
  return -(-vocabulary.vocab_size // divisor) * divisor


class TrainStateInitializer:
  """Computes the shapes of a model's state, and the layout on the devices.

  Args:
    optimizer_def: unused, because inference has no optimizer.
    init_fn: the model's get_initial_variables.
    input_shapes: shapes of a batch's features.
    partitioner: maps logical axes to the mesh.
    input_types: dtypes of a batch's features.
  """

  def __init__(
    self,
    optimizer_def: Any,
    init_fn: Callable[..., Mapping[str, Any]],
    input_shapes: Mapping[str, Sequence[int]],
    partitioner,
    input_types: Mapping[str, Any] | None = None,
  ):
    del optimizer_def

    def initialise(rng):
      variables = init_fn(rng=rng, input_shapes=input_shapes, input_types=input_types)
      return train_state.InferenceState.create(flax.core.freeze(variables))

    # The state with abstract arrays, and with PartitionSpecs instead of arrays.
    self.global_train_state_shape = jax.eval_shape(initialise, jax.random.PRNGKey(0))
    self.train_state_axes = partitioner.get_mesh_axes(self.global_train_state_shape)


def create_checkpoint_manager_and_restore(
  train_state_initializer: TrainStateInitializer,
  partitioner,
  restore_checkpoint_cfg: RestoreCheckpointConfig,
  restore_path: str,
  fallback_init_rng: None = None,
) -> tuple[train_state.InferenceState, Any]:
  """Returns the restored state, and the manager that restored the state.

  Args:
    train_state_initializer: shapes of the train state.
    partitioner: the layout of arrays on the devices.
    restore_checkpoint_cfg: the options, with the class of the manager.
    restore_path: path of the checkpoint.
    fallback_init_rng: unused, because every parameter is restored.

  Raises:
    ValueError: if the checkpoint is missing, or does not match the train state.
  """
  del fallback_init_rng
  cfg = restore_checkpoint_cfg
  path = restore_path
  if cfg.mode == "latest":
    path = str(checkpoints.resolve_checkpoint(path))
  manager = cfg.checkpoint_manager_cls(
    directory=path,
    train_state=train_state_initializer.global_train_state_shape,
    partitioner=partitioner,
    restore_dtype=cfg.dtype,
  )
  return manager.restore(path=path), manager


def get_infer_fn(
  infer_step: Callable[..., Any],
  batch_size: int,
  train_state_axes: train_state.InferenceState,
  partitioner,
  first_state: Callable[[int], Any] | None = None,
) -> Callable[..., Any]:
  """Returns a function that runs `infer_step` over a numbered dataset.

  Args:
    infer_step: maps (params, batch) or (params, batch, rng) to predictions, or to
      (predictions, dict of auxiliary values).
    batch_size: number of examples per batch, over all devices.
    train_state_axes: layout of the parameters on the devices.
    partitioner: compiles the step.
    first_state: maps a number of examples to the state before the first batch. The
      step gets the state as `DECODE_STATE` in decoder_params, and returns the new
      state, for the next batch, as the auxiliary value of this name. None means no
      state.

  Returns:
    (dataset, train_state, rng, report) -> [(number, prediction)] by increasing number,
    with auxiliary values, if any, as a second element. The function calls `report` for
    each finished batch, with the number of examples and the auxiliary values.
  """
  takes_rng = "rng" in inspect.signature(infer_step).parameters

  def step(params, batch, rng, numbers, state):
    """Returns numbers, the step's result, and the new state."""
    # The program returns the numbers too, because devices may return rows in another
    # order.
    settings = {"rng": rng} if takes_rng else {}
    if state is None:
      return numbers, infer_step(params, batch, **settings), None
    settings["decoder_params"] = {DECODE_STATE: state}
    predictions, aux = infer_step(params, batch, **settings)
    aux = dict(aux)
    state = aux.pop(DECODE_STATE)
    return numbers, (predictions, aux), state

  spec = partitioner.data_partition_spec
  run = partitioner.partition(
    step,
    in_axis_resources=(train_state_axes.params, spec, None, spec, spec),
    out_axis_resources=(None, None, spec),
  )
  layout = partitioner.get_data_layout(batch_size)
  sharding = jax.sharding.NamedSharding(partitioner.mesh, spec)
  place = functools.partial(jax.make_array_from_process_local_data, sharding)
  to_global = functools.partial(jax.tree.map, place)

  def infer_fn(ds, train_state, rng=None, report=lambda count, aux: None):
    """Runs the step over all batches."""
    numbered = []
    columns = []
    placed = map(to_global, _batches(ds, layout))
    following = next(placed, None)
    count = layout.batch_size // layout.num_shards
    state = to_global(first_state(count)) if first_state else None
    while following is not None:
      step_rng, rng = (None, None) if rng is None else jax.random.split(rng)
      numbers, batch = following
      *running, state = run(train_state.params, batch, step_rng, numbers, state)
      # The next batch is prepared while the devices compute.
      following = next(placed, None)
      numbers, result = jax.device_get(running)
      predictions, aux = result if isinstance(result, tuple) else (result, {})
      real = numbers >= 0
      columns.append(jax.tree.map(lambda x, real=real: x[real], aux))
      numbered += zip(numbers[real].tolist(), predictions[real], strict=True)
      report(int(real.sum()), columns[-1])
    order = np.argsort([number for number, _ in numbered])
    numbered = [numbered[place] for place in order]
    if not (columns and jax.tree.leaves(columns[0])):
      return numbered
    aux = jax.tree.map(lambda *parts: np.concatenate(parts)[order], *columns)
    return numbered, jax.tree.map(plain, aux)

  return infer_fn


def model_fn(
  model: Any,
  method: str,
  batch_size: int,
  initializer: TrainStateInitializer,
  partitioner,
) -> Callable[..., Any]:
  """Returns `get_infer_fn` of a model's method.

  State passes from batch to batch among the auxiliary values, if the model has
  `decode_state`.
  """
  has_aux = method == "predict_batch_with_aux"
  return get_infer_fn(
    getattr(model, method),
    batch_size,
    initializer.train_state_axes,
    partitioner,
    first_state=getattr(model, "decode_state", None) if has_aux else None,
  )


def _batches(ds, layout):
  """Yields this process's rows of each batch.

  Copies of the first example, with the number -1, fill up the last batch.
  """
  rows = ds.as_numpy_iterator()
  filler = None
  while batch := list(itertools.islice(rows, layout.batch_size)):
    filler = filler or (np.int64(-1), batch[0][1])
    batch += [filler] * (layout.batch_size - len(batch))
    process_rows = batch[layout.shard_id :: layout.num_shards]
    yield jax.tree.map(lambda *values: np.stack(values), *process_rows)


def plain(value):
  """Converts a value for json: arrays become lists, and bytes become text."""
  if isinstance(value, bytes):
    return value.decode("utf-8")
  if isinstance(value, np.ndarray | np.generic | jax.Array):
    value = np.asarray(value)
    # json can't write ml_dtypes' scalars (bfloat16).
    value = value.astype(np.float32) if value.dtype == jax.numpy.bfloat16 else value
    return value.tolist()
  return value


def record_run(
  directory: str,
  initializer: TrainStateInitializer,
  partitioner,
  summarize_config_fn: Callable[..., None],
) -> None:
  """Writes config.gin and model-info.txt to the folder of a run's results."""
  summarize_config_fn(model_dir=directory, summary_writer=None, step=0)
  log_file = os.path.join(directory, "model-info.txt")
  log_model_info(log_file, initializer.global_train_state_shape, partitioner)


def log_model_info(log_file: str | None, full_train_state, partitioner) -> None:
  """Logs every parameter's size, shape and partitioning, also to `log_file`."""
  if jax.process_index() != 0:
    return
  arrays, logical_axes, mesh_axes = (
    flax.traverse_util.flatten_dict(state.state_dict(), sep="/")
    for state in (
      full_train_state,
      partitioner.get_logical_axes(full_train_state),
      partitioner.get_mesh_axes(full_train_state),
    )
  )

  def line(name):
    array = arrays[name]
    sizes = [str(size) for size in array.shape]
    axes = logical_axes.get(name)
    if axes and len(axes) == array.ndim:
      sizes = [f"{axis}={size}" for axis, size in zip(axes, sizes, strict=True)]
    spec = mesh_axes.get(name)
    spec = None if spec is None else tuple(spec)
    text = f"Variable {name.split('/', 1)[1]:80} size {array.size:<12} "
    text += f"shape ({', '.join(sizes)})"
    return f"{text:155}partition spec {spec}"

  params = sorted(name for name in arrays if name.startswith("target/"))
  others = sorted(arrays.keys() - params)
  total = f"Total number of parameters: {sum(arrays[name].size for name in params)}"
  text = "\n".join([*map(line, params), total, "", *map(line, others)])
  if log_file is not None:
    epath.Path(log_file).write_text(text + "\n")
  logging.info("%s", text)
