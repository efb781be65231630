"""Checks of an inference job before any work."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

from etils import epath

from t5x import plain_tasks, utils
from t5x.inference_files import MODES


def check_inference(
  mode: str,
  dataset_cfg: utils.DatasetConfig,
  output_dir: str,
  checkpoint_period: int,
  shard_id: int,
  num_shards: int,
) -> None:
  """Checks the arguments of `infer.infer`, and imports the task's module.

  Raises:
    ValueError: if a check fails; the message has the expectation, the value and the
      fix.
  """
  if not isinstance(output_dir, str) or not output_dir:
    raise ValueError(
      f"INFER_OUTPUT_DIR must be the path of a folder, got {output_dir!r}. Give a path "
      "in quotes."
    )
  if mode not in MODES:
    raise ValueError(f"infer.mode must be one of {MODES}, got {mode!r}.")
  if not (isinstance(num_shards, int) and num_shards >= 1):
    raise ValueError(f"num_shards must be a whole number >= 1, got {num_shards!r}.")
  if not (isinstance(shard_id, int) and 0 <= shard_id < num_shards):
    raise ValueError(
      f"shard_id must be between 0 and num_shards - 1 = {num_shards - 1}, got "
      f"{shard_id!r}. Give every job another shard_id, as --shard_id=0 and "
      "infer.num_shards = 2."
    )
  for name, count in (
    ("checkpoint_period", checkpoint_period),
    ("BATCH_SIZE", dataset_cfg.batch_size),
  ):
    if not isinstance(count, int) or count < 1:
      raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}.")
  check_dataset(dataset_cfg)
  check_writable(output_dir)


def check_dataset(cfg: utils.DatasetConfig) -> None:
  """Raises a ValueError if the task is unknown, or the configuration is invalid."""
  if cfg.module:
    try:
      utils.import_module(cfg.module)
    except ImportError as error:
      raise ValueError(
        f"MIXTURE_OR_TASK_MODULE={cfg.module} can't be imported: {error}. Check the "
        "name. The module must be on Python's path."
      ) from error
  lengths = cfg.task_feature_lengths
  if lengths is not None and not isinstance(lengths, Mapping):
    raise ValueError(
      "TASK_FEATURE_LENGTHS must be {'inputs': ..., 'targets': ...}, got "
      f"{lengths!r}."
    )
  if cfg.shuffle or cfg.pack or not lengths:
    raise ValueError(
      "Expected DatasetConfig with shuffle=False, pack=False and task_feature_lengths, "
      f"got shuffle={cfg.shuffle}, pack={cfg.pack}, task_feature_lengths={lengths}. "
      "Results are in the order of the dataset."
    )
  name = cfg.mixture_or_task_name
  names = plain_tasks.known_names()
  if isinstance(name, str) and name not in names:
    close = difflib.get_close_matches(name, names) or sorted(names)
    raise ValueError(
      f"Unknown task {name!r} in MIXTURE_OR_TASK_NAME. The closest known tasks are: "
      f"{', '.join(close[:8]) or 'none'}. Import the module that registers the task in "
      "your gin file."
    )


def check_writable(output_dir: str, macro: str = "INFER_OUTPUT_DIR") -> None:
  """Raises a ValueError if `output_dir` is not writable; creates no folder."""
  directory = epath.Path(output_dir)
  if "://" not in output_dir:
    directory = next(
      p for p in (directory, *directory.absolute().parents) if p.exists()
    )
  try:
    probe = directory / f".writable-{os.getpid()}"
    probe.write_text("")
    probe.unlink()
  except OSError as error:
    raise ValueError(
      f"{macro}={output_dir} can't be written to: {error}. Choose a directory with "
      "write permission."
    ) from error
