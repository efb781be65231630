"""Evaluation of a seqio task: `python -m t5x.eval --gin_file=...`."""

import functools
from collections.abc import Callable, Sequence
from numbers import Real

if __name__ == "__main__":
  from t5x import messages, quiet_start

  messages.protect("t5x.eval")
  quiet_start.import_seqio()

import jax
import seqio
from etils import epath

from t5x import (
  checkpoints,
  command,
  gin_utils,
  hosts,
  messages,
  models,
  partitioning,
  utils,
)
from t5x.inference_data import check_dataset
from t5x.inference_files import writing

# seqio's names of model functions, and the model's methods.
_STEPS = {
  "predict_fn": "predict_batch",
  "predict_with_aux_fn": "predict_batch_with_aux",
  "score_fn": "score_batch",
}


def evaluate(
  *,
  model: models.BaseTransformerModel,
  dataset_cfg: utils.DatasetConfig,
  restore_checkpoint_cfg: utils.RestoreCheckpointConfig,
  partitioner: partitioning.PjitPartitioner,
  output_dir: str,
  inference_evaluator_cls: Callable[..., seqio.Evaluator] = seqio.Evaluator,
  summarize_config_fn: Callable[..., None] = gin_utils.summarize_gin_config,
  train_state_initializer_cls: type = utils.TrainStateInitializer,
) -> None:
  """Computes the metrics of a task, or of each task of a mixture.

  The evaluator's loggers append the metrics to `output_dir`/inference_eval. The metrics
  are also printed.

  Args:
    model: the model to evaluate.
    dataset_cfg: the dataset to evaluate on.
    restore_checkpoint_cfg: the model's checkpoint; in mode all, every checkpoint of the
      folder `path` that runs in `output_dir` have not evaluated yet.
    partitioner: the layout of parameters and batches on the devices.
    output_dir: directory for results.
    inference_evaluator_cls: class of the evaluator.
    summarize_config_fn: records the configuration in `output_dir`.
    train_state_initializer_cls: class that gives the shapes of the train state.

  Raises:
    ValueError: if the configuration can't be run, or the task has no metrics.
  """
  log_dir = epath.Path(output_dir) / "inference_eval"
  evaluator = _checked(model, dataset_cfg, output_dir, log_dir, inference_evaluator_cls)
  shapes = evaluator.model_feature_shapes
  initializer = train_state_initializer_cls(
    optimizer_def=None,
    init_fn=model.get_initial_variables,
    input_shapes={k: (dataset_cfg.batch_size, *v) for k, v in shapes.items()},
    partitioner=partitioner,
  )
  what = "inference_eval, config.gin or model-info.txt"
  with writing(what, output_dir, macro="EVAL_OUTPUT_DIR"):
    log_dir.mkdir(parents=True, exist_ok=True)  # seqio's JSONLogger creates no folder.
    utils.record_run(output_dir, initializer, partitioner, summarize_config_fn)
  size = dataset_cfg.batch_size
  model_fns = {
    name: utils.model_fn(model, method, size, initializer, partitioner)
    for name, method in _STEPS.items()
  }
  # The list of evaluated checkpoints.
  list_file = epath.Path(output_dir) / f"eval.{dataset_cfg.mixture_or_task_name}.ckpt"
  done = set(list_file.read_text().split("\n")) if list_file.exists() else set()
  for path in _paths(restore_checkpoint_cfg, done):
    state, _ = utils.create_checkpoint_manager_and_restore(
      initializer, partitioner, restore_checkpoint_cfg, path
    )
    step = int(state.step)
    given = {"train_state": state, "rng": jax.random.PRNGKey(0)}
    fns = {name: functools.partial(fn, **given) for name, fn in model_fns.items()}
    is_first = jax.process_index() == 0
    metrics, _ = evaluator.evaluate(compute_metrics=is_first, step=step, **fns)
    # The loggers write all metrics, and stderr shows the numbers.
    for task, values in (metrics.result() or {}).items():
      numbers = {k: v for k, v in values.items() if isinstance(v, Real)}
      text = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
      messages.say(f"{task}, step {step}: {text}")
    hosts.sync(f"step_{step}:complete")
    done.add(path)
    if is_first:
      list_file.write_text("\n".join(sorted(done)))


def _paths(cfg: utils.RestoreCheckpointConfig, done: set[str]) -> list[str]:
  """Returns the paths of the checkpoints that are left to evaluate.

  Raises:
    ValueError: if the folder of mode 'all' has no checkpoints.
  """
  if cfg.mode != "all":
    return [cfg.path]
  steps = checkpoints.all_steps(cfg.path)
  if not steps:
    raise ValueError(
      "RestoreCheckpointConfig.mode = 'all' needs a folder with checkpoints, got "
      f"{cfg.path} without checkpoints. Give the parent folder of checkpoint_<step>."
    )
  paths = [str(checkpoints.step_dir(cfg.path, step)) for step in steps]
  return [path for path in paths if path not in done]


def _checked(model, dataset_cfg, output_dir, log_dir, evaluator_cls) -> seqio.Evaluator:
  """Returns the task's evaluator, after checks of the run and of the task's metrics."""
  check_dataset(dataset_cfg)
  utils.verify_matching_vocabs(dataset_cfg, model)
  evaluator = evaluator_cls(
    mixture_or_task_name=dataset_cfg.mixture_or_task_name,
    feature_converter=model.FEATURE_CONVERTER_CLS(pack=False),
    eval_split=dataset_cfg.split,
    use_cached=dataset_cfg.use_cached,
    seed=dataset_cfg.seed,
    sequence_length=dataset_cfg.task_feature_lengths,
    use_memory_cache=dataset_cfg.use_memory_cache,
    log_dir=str(log_dir),
  )
  if not evaluator.eval_tasks:
    raise ValueError(
      f"Task {dataset_cfg.mixture_or_task_name!r} has no metrics, or no split "
      f"{dataset_cfg.split!r}, so evaluation is impossible: t5x.eval takes whole "
      "splits of tasks with metrics. Name a split, or use t5x.infer, which takes parts "
      "such as 'test[:100]'."
    )
  return evaluator


def _main(argv: Sequence[str]) -> None:
  command.run("t5x.eval", evaluate, argv)


if __name__ == "__main__":
  command.define_flags()
  command.start(_main)
