"""Inference over a seqio task: `python -m t5x.infer --gin_file=...`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

if __name__ == "__main__":
  from t5x import messages, plain_tasks, quiet_start

  messages.protect("t5x.infer")
  quiet_start.announce()
  plain_tasks.allow_deferring()

import jax
import numpy as np
from absl import flags
from tqdm import tqdm

from t5x import command, gin_utils, hosts, messages, models, partitioning, utils
from t5x.inference_data import check_dataset, open_examples
from t5x.inference_files import (
  MODES,
  ChunkFiles,
  configuration,
  merge_chunks_to_file,
  write_inferences_to_file,
  writing,
)
from t5x.plain_tasks import digest_of

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
  partitioner: partitioning.PjitPartitioner,
  output_dir: str,
  checkpoint_period: int,
  shard_id: int = 0,
  num_shards: int = 1,
  write_fn: Callable[..., None] = write_inferences_to_file,
  checkpoint_ds_iter: bool = True,
  merge_fn: Callable[[str, str, str, int | None], None] = merge_chunks_to_file,
  summarize_config_fn: Callable[..., None] = gin_utils.summarize_gin_config,
  verify_matching_vocabs_fn: Callable | None = utils.verify_matching_vocabs,
  file_extension: str = "jsonl",
) -> None:
  """Runs a model over a task and writes one JSON line per example.

  Results go to `<task>-<mode>.<extension>-<shard>-of-<shards>`, in the dataset's order.
  Results are written in chunks. A killed run resumes after the complete chunks, which
  must be unchanged. A finished run is kept, and must have the same settings as this
  run. Only one job at a time writes a file of results.

  Args:
    mode: predict, predict_with_aux or score.
    model: the model to run.
    dataset_cfg: the dataset to run on.
    restore_checkpoint_cfg: the model's checkpoint.
    partitioner: the layout of parameters and batches on the devices.
    output_dir: directory for results.
    checkpoint_period: number of batches per chunk.
    shard_id: index of this job's shard of the dataset.
    num_shards: number of shards of the dataset, one per job.
    write_fn: writes a chunk.
    checkpoint_ds_iter: unused; finished chunks are always skipped.
    merge_fn: merges the chunks.
    summarize_config_fn: records the configuration in `output_dir`.
    verify_matching_vocabs_fn: checks that dataset and model are compatible.
    file_extension: extension of the results' file; the lines of jsonl are counted.

  Raises:
    ValueError: if the configuration can't be run or differs from existing results,
      another job writes the same results, a chunk is damaged, or the file system
      refuses a write.
  """
  del checkpoint_ds_iter
  restore_cfg = restore_checkpoint_cfg
  if restore_cfg.mode == "all":
    raise ValueError(
      "RestoreCheckpointConfig.mode = 'all' is for t5x.eval: a folder of results "
      "belongs to one checkpoint. Give the path of the checkpoint, or set mode = "
      "'latest'."
    )
  _check(mode, dataset_cfg, output_dir, checkpoint_period, shard_id, num_shards)
  examples = open_examples(dataset_cfg, model, shard_id, num_shards)
  settings = _settings(mode, dataset_cfg, restore_cfg, checkpoint_period)
  suffix = f"{mode}.{file_extension}-{shard_id:05}-of-{num_shards:05}"
  outputs = {
    task: ChunkFiles(output_dir, task.name, suffix, settings) for task in examples.tasks
  }
  # The locks come before all writes, so that a refused job has changed no file.
  with contextlib.ExitStack() as locks:
    with writing("the lock", output_dir):
      for files in outputs.values():
        locks.enter_context(files.lock())
    if verify_matching_vocabs_fn is not None:
      verify_matching_vocabs_fn(dataset_cfg, model)
    for task, files in outputs.items():
      files.settings["digest of the texts"] = digest_of(task.name, dataset_cfg.split)
    outputs = {
      task: files
      for task, files in outputs.items()
      if hosts.from_first(_is_open(files))
    }
    if not outputs:
      return
    initializer = utils.TrainStateInitializer(
      optimizer_def=None,
      init_fn=model.get_initial_variables,
      partitioner=partitioner,
      **examples.input_spec(),
    )
    train_state, _ = utils.create_checkpoint_manager_and_restore(
      initializer, partitioner, restore_cfg, restore_cfg.path
    )
    # No file in the directory changes before the checkpoint is restored.
    if shard_id == 0:
      with writing("config.gin or model-info.txt", output_dir):
        utils.record_run(output_dir, initializer, partitioner, summarize_config_fn)
    size = dataset_cfg.batch_size
    infer_fn = utils.model_fn(model, _STEPS[mode], size, initializer, partitioner)
    run = functools.partial(infer_fn, train_state=train_state)
    for task, files in outputs.items():
      vocabulary = task.output_features["targets"].vocabulary

      def write(path, inferences, texts, vocabulary=vocabulary):
        write_fn(path, inferences, texts, mode, vocabulary)

      chunks = functools.partial(examples.chunks, task, checkpoint_period)
      num_chunks = _write_chunks(chunks, examples.count(task), files, run, write)
      if jax.process_index() == 0:
        files.finish(num_chunks, merge_fn, int(train_state.step))
      hosts.sync(f"{files.result.name}:complete")
      _say(f"Results: {files.result}")


def _check(
  mode, dataset_cfg, output_dir, checkpoint_period, shard_id, num_shards
) -> None:
  """Raises a ValueError for wrong arguments, and imports the task's module."""
  if not isinstance(output_dir, str) or not output_dir:
    raise ValueError(
      f"INFER_OUTPUT_DIR must be the path of a folder, got {output_dir!r}. Give a path "
      "in quotes."
    )
  if mode not in MODES:
    raise ValueError(f"infer.mode must be one of {MODES}, got {mode!r}.")
  counts = {
    "num_shards": num_shards,
    "checkpoint_period": checkpoint_period,
    "BATCH_SIZE": dataset_cfg.batch_size,
  }
  for name, count in counts.items():
    if not isinstance(count, int) or count < 1:
      raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}.")
  if not (isinstance(shard_id, int) and 0 <= shard_id < num_shards):
    raise ValueError(
      f"shard_id must be between 0 and num_shards - 1 = {num_shards - 1}, got "
      f"{shard_id!r}. Give every job another shard_id, as --shard_id=0 and "
      "infer.num_shards = 2."
    )
  check_dataset(dataset_cfg)


def _settings(mode, dataset_cfg, restore_cfg, checkpoint_period) -> dict[str, Any]:
  """Returns the settings that all chunks and reruns of a result must share."""
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


def _is_open(files: ChunkFiles) -> bool:
  """Returns whether the task has unfinished chunks; prints a message otherwise."""
  if message := files.finished():
    _say(message)
    return False
  files.find_done()
  return True


def _write_chunks(
  chunks, total: int | None, files: ChunkFiles, infer_fn, write_fn
) -> int:
  """Runs and writes each unfinished chunk; returns the number of chunks."""
  # The first process decides which chunks are finished, because other processes may not
  # see the files yet.
  first = next(chunk for chunk in itertools.count() if chunk not in files.done)
  first = hosts.from_first(first)
  count = first
  is_terminal = messages.stderr().isatty()
  on_terminal = is_terminal and jax.process_index() == 0 and not _is_quiet()
  try:
    with progress(total, shown=on_terminal) as report:
      for chunk, (texts, features) in enumerate(chunks(first), start=first):
        count = chunk + 1
        if hosts.from_first(chunk in files.done):
          continue
        # The key depends only on the chunk, so a resumed run draws the same samples.
        rng = jax.random.fold_in(jax.random.PRNGKey(0), chunk)
        result = infer_fn(features.enumerate(), rng=rng, report=report)
        numbered, aux = result if isinstance(result, tuple) else (result, {})
        inferences = [prediction for _, prediction in numbered], aux
        if jax.process_index() == 0:
          files.write(chunk, len(numbered), write_fn, inferences, texts)
          if not on_terminal:
            _say(f"chunk {chunk}: {len(numbered)} examples")
        hosts.sync(f"chunk {chunk}")
  except KeyboardInterrupt as error:
    error.add_note(files.kept(total))
    raise
  return count


@contextlib.contextmanager
def progress(
  total: int | None, shown: bool
) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
  """Shows the progress and the remaining time of a run.

  The bar appears after the first batch, because compilation may take minutes. The rates
  exclude the first batch.

  Args:
    total: number of the run's examples; None if unknown.
    shown: whether to show the bar.

  Yields:
    A function that records a finished batch, with the number of examples and the
    auxiliary values. The bar shows rates of `tokens` and `target_calls`.
  """
  bar = None
  begin = tokens = calls = 0

  def report(count, aux):
    nonlocal bar, begin, tokens, calls
    if bar is None:
      begin = time.perf_counter()
      bar = tqdm(
        total=total,
        initial=count,
        unit=" examples",
        disable=not shown,
        file=messages.stderr(),
        dynamic_ncols=True,
      )
      return
    tokens += int(np.sum(aux.get("tokens", 0)))
    calls += int(np.sum(aux.get("target_calls", 0)))
    if calls:
      rate = tokens / (time.perf_counter() - begin)
      text = f"{rate:.0f} tokens/s, {tokens / calls:.2f} tokens/call"
      bar.set_postfix_str(text, refresh=False)
    bar.update(count)

  try:
    yield report
  finally:
    if bar is not None:
      bar.close()


def _say(message: str) -> None:
  if jax.process_index() == 0 and not _is_quiet():
    messages.say(message)


def _is_quiet() -> bool:
  """Returns whether a gin file or the command line sets the macro QUIET."""
  return bool(gin_utils.macros().get("QUIET"))


def _define_flags() -> None:
  flags.DEFINE_integer(
    "shard_id", None, "The shard of the job; overrides infer.shard_id."
  )
  command.define_flags()


def _main(argv: Sequence[str]) -> None:
  command.run("t5x.infer", infer, argv, shard_id=flags.FLAGS.shard_id)


if __name__ == "__main__":
  _define_flags()
  command.start(_main)
