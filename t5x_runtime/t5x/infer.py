"""Inference over a seqio task: `python -m t5x.infer --gin_file=...`."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

if __name__ == "__main__":
  from t5x import plain_tasks, quiet_start

  quiet_start.announce()
  quiet_start.quieten_tensorflow()
  plain_tasks.allow_deferring()

import jax
from absl import flags

from t5x import command, gin_utils, hosts, models, partitioning, utils
from t5x.inference_checks import check_inference
from t5x.inference_chunks import ChunkFiles, configuration
from t5x.inference_data import open_examples
from t5x.inference_files import (
  Inferences,
  merge_chunks_to_file,
  write_inferences_to_file,
)
from t5x.inference_progress import Progress
from t5x.inference_safety import writing
from t5x.tfexamples import (
  create_task_from_tfexample_file as create_task_from_tfexample_file,
)

_STEPS = {
  "predict": "predict_batch",
  "predict_with_aux": "predict_batch_with_aux",
  "score": "score_batch",
}


def infer(
  *,
  mode: str,
  model: models.BaseTransformerModel,
  dataset_cfg: utils.DatasetConfig,
  restore_checkpoint_cfg: utils.RestoreCheckpointConfig,
  partitioner: partitioning.BasePartitioner,
  output_dir: str,
  checkpoint_period: int,
  shard_id: int = 0,
  num_shards: int = 1,
  merge_chunked_results: bool = True,
  write_fn: Callable[..., None] = write_inferences_to_file,
  checkpoint_ds_iter: bool = True,
  train_state_initializer_cls: type = utils.TrainStateInitializer,
  fallback_init_rng: int | None = None,
  merge_fn: Callable[[str, str, str, int | None], None] = merge_chunks_to_file,
  summarize_config_fn: Callable[..., None] = gin_utils.summarize_gin_config,
  verify_matching_vocabs_fn: Callable | None = utils.verify_matching_vocabs,
  output_vocab_feature_name: str = "targets",
  file_extension: str = "jsonl",
  keep_aux_as_numpy: bool = False,
  use_orbax: bool = True,
) -> None:
  """Runs a model over a task and writes one JSON line an example.

  Results go to `<task>-<mode>.<extension>-<shard>-of-<shards>`, in the dataset's order.
  They are written in chunks; a run that was killed goes on after its whole chunks,
  which must be as they were written. A finished run is left alone, and must have had
  the settings of this one. One job at a time writes a file of results.

  Args:
    mode: predict, predict_with_aux or score.
    model: what to run.
    dataset_cfg: what to run it on.
    restore_checkpoint_cfg: its parameters.
    partitioner: how parameters and batches lie on the devices.
    output_dir: where results go.
    checkpoint_period: batches a chunk.
    shard_id: which part of the dataset is this job's.
    num_shards: how many jobs share the dataset.
    merge_chunked_results: whether chunks are joined at the end.
    write_fn: writes a chunk.
    checkpoint_ds_iter: accepted; finished chunks are skipped either way.
    train_state_initializer_cls: gives the shapes to restore into.
    fallback_init_rng: seed of parameters that the checkpoint lacks, where
      restore_checkpoint_cfg.fallback_to_scratch allows it.
    merge_fn: joins the chunks.
    summarize_config_fn: records the configuration in `output_dir`.
    verify_matching_vocabs_fn: checks dataset and model against each other first.
    output_vocab_feature_name: the feature whose vocabulary decodes predictions.
    file_extension: of the results.
    keep_aux_as_numpy: whether auxiliary values stay arrays.
    use_orbax: whether checkpoints are managed by
      restore_checkpoint_cfg.checkpoint_manager_cls.

  Raises:
    ValueError: where the configuration can't be run or is not that of what is there,
      another job writes the same results, a chunk is damaged, or the file system
      refuses a write.
  """
  del checkpoint_ds_iter
  check_inference(
    mode, dataset_cfg, output_dir, checkpoint_period, shard_id, num_shards
  )
  examples = open_examples(dataset_cfg, model, shard_id, num_shards)
  settings = _settings(mode, dataset_cfg, restore_checkpoint_cfg, checkpoint_period)
  suffix = f"{mode}.{file_extension}-{shard_id:05}-of-{num_shards:05}"
  outputs = {
    task: ChunkFiles(output_dir, task.name, suffix, settings) for task in examples.tasks
  }
  # Held from before anything is written: a job that is refused has changed nothing.
  with contextlib.ExitStack() as locks:
    with writing("the lock", output_dir):
      for files in outputs.values():
        locks.enter_context(files.lock())
    if verify_matching_vocabs_fn is not None:
      verify_matching_vocabs_fn(dataset_cfg, model)
    outputs = {
      task: files
      for task, files in outputs.items()
      if hosts.from_first(_is_open(files))
    }
    if not outputs:
      return
    initializer = train_state_initializer_cls(
      optimizer_def=None,
      init_fn=model.get_initial_variables,
      partitioner=partitioner,
      **examples.input_spec(),
    )
    train_state = _restore(
      initializer, partitioner, restore_checkpoint_cfg, fallback_init_rng, use_orbax
    )
    # Nothing in the directory changes before all is there to run.
    if shard_id == 0:
      _record(output_dir, summarize_config_fn, initializer, partitioner)
    has_aux = mode == "predict_with_aux"
    infer_fn = utils.get_infer_fn(
      infer_step=getattr(model, _STEPS[mode]),
      batch_size=dataset_cfg.batch_size,
      train_state_axes=initializer.train_state_axes,
      partitioner=partitioner,
      keep_aux_as_numpy=keep_aux_as_numpy,
      # Batches learn of each other through auxiliary values.
      nothing_known=getattr(model, "nothing_known", None) if has_aux else None,
    )
    run = functools.partial(_inferences, infer_fn, train_state)
    merge = lambda *names: merge_fn(*names, int(train_state.step))
    for task, files in outputs.items():
      vocabulary = task.output_features[output_vocab_feature_name].vocabulary
      write = lambda path, *args, vocab=vocabulary: write_fn(path, *args, mode, vocab)
      chunks = functools.partial(examples.chunks, task, checkpoint_period)
      count = examples.count(task)
      merge_task = merge if merge_chunked_results else None
      _infer_task(files, chunks, count, run, write, merge_task)


def _settings(mode, dataset_cfg, restore_cfg, checkpoint_period) -> dict[str, Any]:
  """What chunks must have in common to make one result, and a rerun with a result."""
  return {
    "mode": mode,
    "split": dataset_cfg.split,
    "examples per chunk": checkpoint_period * dataset_cfg.batch_size,
    "checkpoint": str(restore_cfg.path),
    "dtype": restore_cfg.dtype,
    "lengths": dict(dataset_cfg.task_feature_lengths),
    "seed": dataset_cfg.seed,
    "cached": dataset_cfg.use_cached,
    **configuration(),
  }


def _record(output_dir: str, summarize_config_fn, initializer, partitioner) -> None:
  """Writes what ran beside its results."""
  with writing("config.gin or model-info.txt", output_dir):
    summarize_config_fn(model_dir=output_dir, summary_writer=None, step=0)
    log_file = os.path.join(output_dir, "model-info.txt")
    utils.log_model_info(log_file, initializer.global_train_state_shape, partitioner)


def _is_open(files: ChunkFiles) -> bool:
  """Whether there is something to do, which is said where there is not."""
  if not files.is_finished():
    files.find_done()
    return True
  unknown = "" if files.has_settings() else " Under which settings is not on record."
  _say(f"{files.marker} is there: nothing to do. Remove it to run again.{unknown}")
  return False


def _infer_task(
  files: ChunkFiles, chunks, total: int | None, infer_fn, write_fn, merge
) -> None:
  """Runs one task of this shard, from its first chunk that is not done."""
  count = _write_chunks(chunks, total, files, infer_fn, write_fn)
  if jax.process_index() == 0:
    files.finish(count, merge)
  hosts.sync(f"{files.result.name}:complete")
  _say(f"Results: {files.result if merge else files.directory}")


def _restore(initializer, partitioner, cfg, fallback_init_rng, use_orbax):
  """The train state of the configured checkpoint."""
  if cfg.mode == "all":
    raise ValueError(
      "RestoreCheckpointConfig.mode = 'all' is for t5x.eval: a folder of results is of "
      "one checkpoint. Name it, or set mode = 'latest'."
    )
  rng = None if fallback_init_rng is None else jax.random.PRNGKey(fallback_init_rng)
  train_state, _ = utils.create_checkpoint_manager_and_restore(
    initializer, partitioner, cfg, cfg.path, rng, use_orbax=use_orbax
  )
  return train_state


def _write_chunks(
  chunks, total: int | None, files: ChunkFiles, infer_fn, write_fn
) -> int:
  """Runs and writes each chunk that is not done yet; returns how many there are."""
  # What is done is for the first process to say: others may not see its files yet.
  first = count = hosts.from_first(files.first_open())
  on_terminal = sys.stderr.isatty() and jax.process_index() == 0 and not _is_quiet()
  with Progress(total, shown=on_terminal) as progress:
    for chunk, (texts, features) in enumerate(chunks(first), start=first):
      count = chunk + 1
      if hosts.from_first(files.is_done(chunk)):
        continue
      # The key depends on the chunk alone, so a resumed run draws the same samples.
      rng = jax.random.fold_in(jax.random.PRNGKey(0), chunk)
      inferences = infer_fn(features.enumerate(), rng, progress.report)
      if jax.process_index() == 0:
        files.write(chunk, write_fn, inferences, texts)
        if not on_terminal:
          _say(f"chunk {chunk}: {len(inferences[0])} examples")
      hosts.sync(f"chunk {chunk}")
  return count


def _inferences(infer_fn, train_state, features, rng, report) -> Inferences:
  """Predictions and auxiliary values, in the examples' order."""
  result = infer_fn(features, train_state, rng=rng, report=report)
  numbered, aux = result if isinstance(result, tuple) else (result, {})
  return [prediction for _, prediction in numbered], aux


def _say(message: str) -> None:
  if jax.process_index() == 0 and not _is_quiet():
    print(message, file=sys.stderr, flush=True)


def _is_quiet() -> bool:
  """Returns whether a gin file or the command line sets the macro QUIET."""
  return bool(gin_utils.macros().get("QUIET"))


def _define_flags() -> None:
  flags.DEFINE_integer("shard_id", None, "This job's shard; wins over infer.shard_id.")
  command.define_flags()


def _main(argv: Sequence[str]) -> None:
  command.run("t5x.infer", infer, argv, shard_id=flags.FLAGS.shard_id)


if __name__ == "__main__":
  _define_flags()
  command.start(_main)
