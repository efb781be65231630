"""Datasets, checkpoints and batches of an inference run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module as import_module
from typing import Any

import flax
import jax
import jax.numpy as jnp
from absl import logging
from etils import epath, epy

from t5x import checkpoint_paths, checkpoints, plain_tasks, train_state
from t5x.infer_batches import get_infer_fn as get_infer_fn

with epy.lazy_imports():
  import seqio

MODES = ("specific", "latest", "all")
DTYPES = (None, "float32", "bfloat16", "float16")


@dataclasses.dataclass
class DatasetConfig:
  """Which examples to run on.

  Attributes:
    mixture_or_task_name: of a registered seqio task or mixture, or one itself.
    task_feature_lengths: features are cut to these lengths.
    split: of the task.
    batch_size: examples a batch, over all devices.
    shuffle: must be False to infer in order.
    seed: of the task's preprocessors.
    use_cached: whether seqio's offline cache is read.
    pack: whether several examples share a row; not for inference.
    use_custom_packing_ops: as in seqio.
    module: imported to register the task; rather import it in gin.
    use_memory_cache: as in seqio.
    trim_output_features: whether features are cut at all.
  """

  mixture_or_task_name: str | seqio.Task | seqio.Mixture
  task_feature_lengths: Mapping[str, int]
  split: str
  batch_size: int
  shuffle: bool
  seed: int | None
  use_cached: bool = False
  pack: bool = False
  use_custom_packing_ops: bool = False
  module: str | None = None
  use_memory_cache: bool = True
  trim_output_features: bool = True


@dataclasses.dataclass
class RestoreCheckpointConfig:
  """Which checkpoint to restore, and how.

  Attributes:
    path: a checkpoint (mode specific) or the folder of several (latest, all).
    mode: specific, latest, or all of a folder, one after the other (`t5x.eval`).
    assignment_map: not supported.
    strict: whether optimizer state must be there too.
    fallback_to_scratch: whether lacking parameters are initialised at random.
    dtype: of restored parameters; None keeps the checkpoint's.
    restore_dataset: not supported.
    checkpointer_cls: reads and writes T5X's format.
    state_transformation_fns: applied in order to what was read.
    checkpoint_manager_cls: restores a train state from a path.
  """

  path: str | Sequence[str]
  mode: str = "latest"
  assignment_map: Sequence[tuple[str, str | None]] | None = None
  strict: bool = True
  fallback_to_scratch: bool = False
  dtype: str | None = None
  restore_dataset: bool = False
  checkpointer_cls: Callable[..., Any] = checkpoints.Checkpointer
  state_transformation_fns: Sequence[Callable[..., Any]] = ()
  checkpoint_manager_cls: Callable[..., Any] = (
    checkpoints.OrbaxCheckpointManagerInterface
  )

  def __post_init__(self):
    for name, known in (("mode", MODES), ("dtype", DTYPES)):
      if (value := getattr(self, name)) not in known:
        raise ValueError(
          f"RestoreCheckpointConfig.{name} must be one of {known}, got {value!r}."
        )
    unsupported = {
      "assignment_map": self.assignment_map is not None,
      "restore_dataset": self.restore_dataset,
    }
    for name, used in unsupported.items():
      if used:
        raise ValueError(
          f"RestoreCheckpointConfig: {name} is not part of this t5x's contract (see "
          "docs/t5x_contract.md). Use upstream T5X, or convert the checkpoint first."
        )


def get_vocabulary(cfg: DatasetConfig) -> tuple[seqio.Vocabulary, seqio.Vocabulary]:
  """Returns the vocabularies of a dataset's inputs and targets.

  Raises:
    ValueError: where the task lacks one of the two features.
  """
  if cfg.module:
    import_module(cfg.module)
  name = cfg.mixture_or_task_name
  provider = plain_tasks.find(name) or seqio.maybe_get_mixture_or_task(name)
  features = provider.output_features
  if not {"inputs", "targets"} <= set(features):
    raise ValueError(
      f"Task {provider.name!r} must have the features inputs and targets, has "
      f"{sorted(features)}."
    )
  return features["inputs"].vocabulary, features["targets"].vocabulary


def verify_matching_vocabs(cfg: DatasetConfig, model) -> None:
  """Raises a ValueError where the task's vocabularies are not the model's."""
  task = get_vocabulary(cfg)
  own = (model.input_vocabulary, model.output_vocabulary)
  for name, theirs, ours in zip(("input", "output"), task, own, strict=True):
    # The model's own comparison first: it may know seqio's vocabularies.
    if ours != theirs:
      raise ValueError(
        f"Model and task have different {name} vocabularies.\n"
        f"  task {cfg.mixture_or_task_name}: {theirs}\n  model: {ours}\n"
        "Bind the same vocabulary to both."
      )


def get_dataset(
  cfg: DatasetConfig,
  shard_id: int,
  num_shards: int,
  feature_converter_cls: Callable[..., seqio.FeatureConverter],
  num_epochs: int | None = None,
):
  """Returns the batches of one shard, as the model's features.

  Args:
    cfg: which examples.
    shard_id: of this shard.
    num_shards: over which the batch is divided.
    feature_converter_cls: makes the model's features.
    num_epochs: how often to repeat; None repeats for ever.

  Raises:
    ValueError: where the batch can't be divided evenly.
  """
  if cfg.batch_size % num_shards:
    raise ValueError(
      f"batch_size ({cfg.batch_size}) must be a multiple of the number of shards "
      f"({num_shards})."
    )
  if cfg.module:
    import_module(cfg.module)
  return seqio.get_dataset(
    mixture_or_task_name=cfg.mixture_or_task_name,
    task_feature_lengths=cfg.task_feature_lengths,
    dataset_split=cfg.split,
    shuffle=cfg.shuffle,
    num_epochs=num_epochs,
    feature_converter=feature_converter_cls(
      pack=cfg.pack, use_custom_packing_ops=cfg.use_custom_packing_ops
    ),
    shard_info=seqio.ShardInfo(index=shard_id, num_shards=num_shards),
    use_cached=cfg.use_cached,
    seed=cfg.seed,
    trim_output_features=cfg.trim_output_features,
    batch_size=cfg.batch_size // num_shards,
  )


def round_vocab_size_to_multiple(
  vocabulary: seqio.Vocabulary, divisor: int = 128
) -> int:
  """Returns the vocabulary's size, rounded up to a multiple of `divisor`."""
  return -(-vocabulary.vocab_size // divisor) * divisor


class TrainStateInitializer:
  """Knows the shapes of a model's state, and can make it from scratch.

  Args:
    optimizer_def: must be None.
    init_fn: the model's get_initial_variables.
    input_shapes: of a batch.
    partitioner: maps logical axes to the mesh.
    input_types: of a batch.

  Attributes:
    global_train_state_shape: the state with shapes in place of arrays.
    train_state_axes: the state with each array's PartitionSpec in its place.
  """

  def __init__(
    self,
    optimizer_def: None,
    init_fn: Callable[..., Mapping[str, Any]],
    input_shapes: Mapping[str, Sequence[int]],
    partitioner,
    input_types: Mapping[str, Any] | None = None,
  ):
    if optimizer_def is not None:
      raise ValueError("optimizer_def must be None: this t5x only runs inference.")

    def initialise(rng):
      variables = init_fn(rng=rng, input_shapes=input_shapes, input_types=input_types)
      return train_state.InferenceState.create(flax.core.freeze(variables))

    self._initialise, self._partitioner = initialise, partitioner
    self.global_train_state_shape = jax.eval_shape(initialise, jax.random.PRNGKey(0))
    self.train_state_axes = partitioner.get_mesh_axes(self.global_train_state_shape)

  def from_scratch(self, init_rng: jax.Array) -> train_state.InferenceState:
    """Returns a random state, made in its place on the devices."""
    make = self._partitioner.partition(
      self._initialise, in_axis_resources=None, out_axis_resources=self.train_state_axes
    )
    return make(init_rng)


def create_checkpoint_manager_and_restore(
  train_state_initializer: TrainStateInitializer,
  partitioner,
  restore_checkpoint_cfg: RestoreCheckpointConfig,
  restore_path: str | None,
  fallback_init_rng: jax.Array | None,
  *,
  use_orbax: bool = True,
) -> tuple[train_state.InferenceState, Any]:
  """Returns the restored state and the manager that restored it.

  Args:
    train_state_initializer: shapes to restore into.
    partitioner: where each array goes.
    restore_checkpoint_cfg: what to restore; its checkpoint_manager_cls does it.
    restore_path: of the checkpoint.
    fallback_init_rng: for parameters that the checkpoint lacks.
    use_orbax: False restores by restore_checkpoint_cfg.checkpointer_cls instead.

  Raises:
    ValueError: where there is nothing to restore or it does not fit.
  """
  cfg, path = restore_checkpoint_cfg, restore_path
  if cfg.mode == "latest":
    path = str(checkpoint_paths.resolve_checkpoint(path))
  shape = train_state_initializer.global_train_state_shape
  if use_orbax:
    manager = cfg.checkpoint_manager_cls(
      directory=path,
      train_state=shape,
      partitioner=partitioner,
      dataset_iterator=None,
      save_dtype=None,
      restore_dtype=cfg.dtype,
      keep=None,
      period=None,
    )
  else:
    dtype = None if cfg.dtype is None else jnp.dtype(cfg.dtype)
    manager = cfg.checkpointer_cls(shape, partitioner, "", restore_dtype=dtype)
  fallback = None
  if cfg.fallback_to_scratch:
    if fallback_init_rng is None:
      raise ValueError("fallback_to_scratch needs infer.fallback_init_rng: a seed.")
    fallback = train_state_initializer.from_scratch(fallback_init_rng).state_dict()
  restored = manager.restore(
    path=path,
    state_transformation_fns=cfg.state_transformation_fns,
    fallback_state=fallback,
  )
  return restored, manager


def log_model_info(log_file: str | None, full_train_state, partitioner) -> None:
  """Logs, and writes to `log_file`, every parameter's size, shape and partitioning."""
  if jax.process_index() != 0:
    return
  flatten = lambda state: flax.traverse_util.flatten_dict(state.state_dict(), sep="/")
  arrays = flatten(full_train_state)
  logical = flatten(partitioner.get_logical_axes(full_train_state))
  mesh = flatten(partitioner.get_mesh_axes(full_train_state))

  def describe(name):
    array, axes, spec = arrays[name], logical.get(name), mesh.get(name)
    sizes = [str(size) for size in array.shape]
    if axes and len(axes) == array.ndim:
      sizes = [f"{axis}={size}" for axis, size in zip(axes, sizes, strict=True)]
    spec = None if spec is None else tuple(spec)
    return (
      f"Variable {name.split('/', 1)[1]:80} size {array.size:<12} "
      f"shape ({', '.join(sizes)})".ljust(155)
      + f"partition spec {spec}"
    )

  params = sorted(name for name in arrays if name.startswith("target/"))
  lines = [describe(name) for name in params]
  total = sum(arrays[name].size for name in params)
  lines += [f"Total number of parameters: {total}", ""]
  lines += [describe(name) for name in sorted(set(arrays) - set(params))]
  text = "\n".join(lines)
  if log_file is not None:
    epath.Path(log_file).write_text(text + "\n")
  logging.info("%s", text)
