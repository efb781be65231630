"""The demo's two jobs as a user starts them: `python -m t5x.infer`."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys


@dataclasses.dataclass(frozen=True)
class Finished:
  """A finished run of the command.

  Attributes:
    command: as it was started.
    file: its JSONL.
    tokens: the outputs' ids, in the order of the file.
  """

  command: str
  file: str
  tokens: list[list[int]]


def infer(gin_file: str, output_dir: str, log_file: str) -> Finished:
  """Runs a gin file as it stands.

  Args:
    gin_file: from the current directory.
    output_dir: where its results go; those of an earlier run are removed.
    log_file: gets what the command prints.

  Raises:
    ValueError: with the command and the end of its log, where it fails.
  """
  arguments = ["-m", "t5x.infer", f"--gin_file={gin_file}"]
  arguments += [f"--gin.INFER_OUTPUT_DIR='{output_dir}'"]
  command = " ".join(["python", *arguments])
  os.makedirs(os.path.dirname(log_file), exist_ok=True)
  # The command would keep finished results, even of a pair that was trained anew.
  shutil.rmtree(output_dir, ignore_errors=True)
  with open(log_file, "w+", encoding="utf-8", errors="replace") as log:
    process = subprocess.run(
      [sys.executable, *arguments], stdout=log, stderr=log, check=False
    )
    log.seek(0)
    tail = log.read()[-2000:]
  if process.returncode:
    raise ValueError(
      f"`{command}` ended with code {process.returncode}. The end of "
      f"{log_file}:\n{tail}"
    )
  (file,) = (
    name for name in os.listdir(output_dir) if name.endswith("jsonl-00000-of-00001")
  )
  path = os.path.join(output_dir, file)
  with open(path, encoding="utf-8") as lines:
    records = [json.loads(line) for line in lines]
  return Finished(command, path, [record["prediction_tokens"] for record in records])


def identical(one: Finished, other: Finished) -> int:
  """Returns how many outputs of two runs are the same, token for token."""
  pairs = zip(one.tokens, other.tokens, strict=True)
  return sum(a == b for a, b in pairs)
