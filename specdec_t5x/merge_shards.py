"""Joins the files of sharded runs: `python -m specdec_t5x.merge_shards OUTPUT_DIR`.

Jobs with infer.num_shards=N and --shard_id write N files,
`<task>-<mode>.jsonl-0000i-of-0000N`. File i holds every N-th example, starting at
example i. The interleaved file, `<task>-<mode>.jsonl-00000-of-00001`, equals a single
job's file byte for byte, even if sampled, as keys depend on the examples' places only.

seqio interleaves the shards of a source of one file. A source of several files is split
file by file, with another order and mostly other lengths; wrong lengths are an error.
Exits with 0 after a merge, with 1 after an error.
"""

import argparse
import collections
import contextlib
import hashlib
import itertools
import json
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence

_SHARD = re.compile(r"(.+-(?:predict|predict_with_aux|score)\.\w+)-(\d{5})-of-(\d{5})")


def merge_shards(output_dir: str | pathlib.Path) -> list[pathlib.Path]:
  """Checks all shards, then interleaves the shards of each task and mode.

  Args:
    output_dir: INFER_OUTPUT_DIR of the shards' jobs. The shards are kept.

  Returns:
    The merged files.

  Raises:
    ValueError: if a shard is missing, unfinished or damaged, if the shards' lengths do
      not fit every N-th example, or if a merged file exists already.
  """
  directory = pathlib.Path(output_dir)
  groups = _groups(directory)
  checked = {stem: _checked(directory, stem, count) for stem, count in groups.items()}
  return [_merge(directory, stem, shards) for stem, shards in checked.items()]


def _groups(directory: pathlib.Path) -> dict[str, int]:
  """Returns the number of shards of each `<task>-<mode>.<extension>`."""
  if not directory.is_dir():
    raise ValueError(
      f"{directory} is not a directory. Give the INFER_OUTPUT_DIR of the shards' jobs."
    )
  counts = collections.defaultdict(set)
  for path in directory.iterdir():
    name = _SHARD.fullmatch(path.name.removesuffix(".COMPLETED"))
    if name and int(name[3]) > 1:
      counts[name[1]].add(int(name[3]))
  if not counts:
    raise ValueError(
      f"{directory}: expected files <task>-<mode>.jsonl-0000i-of-0000N with N above 1, "
      "found no file. Give the INFER_OUTPUT_DIR of the shards' jobs."
    )
  for stem, totals in counts.items():
    if len(totals) > 1:
      raise ValueError(
        f"{directory}: expected one number of shards of {stem}, found "
        f"{sorted(totals)}. "
        "Keep one set of files, and move the rest away."
      )
  return {stem: totals.pop() for stem, totals in sorted(counts.items())}


def _checked(directory, stem, count) -> list[pathlib.Path]:
  """Returns the shards of `stem` in order, after checking that all are complete."""
  result = directory / f"{stem}-00000-of-00001"
  if result.exists():
    raise ValueError(
      f"{result} already exists. Nothing was merged. Remove {result.name} and "
      f"{result.name}.COMPLETED to merge again."
    )
  shards = [directory / f"{stem}-{i:05}-of-{count:05}" for i in range(count)]
  for i, shard in enumerate(shards):
    marker = directory / f"{shard.name}.COMPLETED"
    if not (shard.exists() and marker.exists()):
      problem = "it without .COMPLETED" if shard.exists() else "no such file"
      raise ValueError(
        f"Expected the finished shard {shard}, found {problem}. Run the job with "
        f"infer.num_shards={count} and --shard_id={i} to the end."
      )
    _check_whole(shard, marker.read_text())
  _check_lengths(shards)
  return shards


def _check_whole(shard: pathlib.Path, recorded: str) -> None:
  """Raises a ValueError if a shard's size or hash differs from the shard's marker."""
  content = shard.read_bytes()
  actual = _record(len(content), hashlib.sha256(content))
  # Upstream T5X's markers are empty. The check for a cut line works without a marker.
  expected = _of_file(recorded) if recorded else actual
  if expected != actual or not content.endswith(b"\n"):
    raise ValueError(
      f"{shard} is damaged: expected {expected} in whole lines, found {actual}. Delete "
      "the shard and the shard's .COMPLETED, and run the shard's job again."
    )


def _of_file(recorded: str) -> dict | str:
  """Returns the size and the hash in a marker, which also has the job's settings."""
  try:
    record = json.loads(recorded)
    return {name: record[name] for name in ("bytes", "sha256")}
  except (ValueError, RecursionError, TypeError, KeyError):
    return f"a size and a SHA-256, not {recorded[:80]!r},"


def _record(size: int, sha256) -> dict:
  """Returns a file's size and hash in the format of t5x_runtime's markers."""
  return {"bytes": size, "sha256": sha256.hexdigest()}


def _check_lengths(shards: Sequence[pathlib.Path]) -> None:
  """Raises a ValueError if the shards can't hold every N-th example of one source."""
  counts = []
  for shard in shards:
    with shard.open("rb") as lines:
      counts.append(sum(1 for _ in lines))
  expected = [-((i - sum(counts)) // len(shards)) for i in range(len(shards))]
  if counts != expected:
    raise ValueError(
      f"{shards[0]} and the shards after it have {counts} lines; every {len(shards)}th "
      f"of {sum(counts)} examples would be {expected} lines. seqio shards a task of "
      "several files file by file: the shards hold consecutive examples of the files "
      "and must not be interleaved."
    )


def _merge(directory, stem, shards) -> pathlib.Path:
  """Writes the interleaved file atomically, then the file's marker."""
  result = directory / f"{stem}-00000-of-00001"
  partial = directory / f"{result.name}.partial"
  sha256 = hashlib.sha256()
  size = 0
  try:
    with contextlib.ExitStack() as stack:
      sources = [stack.enter_context(shard.open("rb")) for shard in shards]
      merged = stack.enter_context(partial.open("wb"))
      for line in _in_turn(sources):
        merged.write(line)
        sha256.update(line)
        size += len(line)
    partial.replace(result)
    (directory / f"{result.name}.COMPLETED").write_text(
      json.dumps(_record(size, sha256))
    )
  except OSError as error:
    raise ValueError(
      f"{result} could not be written ({error.strerror or error}). The shards are "
      "unchanged. Correct the cause and run the command again."
    ) from error
  finally:
    partial.unlink(missing_ok=True)
  return result


def _in_turn(sources: Iterable[Iterable[bytes]]) -> Iterable[bytes]:
  rounds = itertools.zip_longest(*sources)
  return (line for lines in rounds for line in lines if line is not None)


def main() -> None:
  """Merges the shards of the folder that the command line names."""
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x.merge_shards",
    description=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("output_dir", metavar="OUTPUT_DIR")
  try:
    for path in merge_shards(parser.parse_args().output_dir):
      print(path)
  except ValueError as error:
    sys.exit(f"specdec_t5x.merge_shards: {error}")


if __name__ == "__main__":
  main()
