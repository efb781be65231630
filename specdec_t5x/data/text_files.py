"""Reads the user's own text: parallel lines, JSONL and CSV, checked line by line.

Cleaning is minimal: a leading byte order mark, and the line ending of each text
(LF or CRLF), are taken off. Everything else reaches the model as it is. Files whose
names end in .gz are decompressed.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import threading
import zlib
from collections.abc import Iterator, Sequence

from specdec_t5x.vocabularies.reading import read_bytes

# csv's own limit of 131,072 characters is shorter than some articles. It is a global
# of the csv module, hence the lock around changing it.
_CSV_FIELD_LIMIT = 2**31 - 1
_csv_lock = threading.Lock()


def read_lines(path: str) -> list[str]:
  """Returns the lines of a UTF-8 file, without line endings.

  Args:
    path: the file, on a disk or in a bucket.

  Returns:
    One string for each line. Blank lines count: parallel files are aligned by them.

  Raises:
    ValueError: the file is missing or empty, or has bytes that are not UTF-8, or NUL.
  """
  data = _read_bytes(path).removeprefix(b"\xef\xbb\xbf")
  if not data.strip():
    raise ValueError(f"{path} is empty. Expected one text on each line.")
  # Not str.splitlines, which also breaks at U+0085 and U+2028 inside a text.
  lines = data.removesuffix(b"\n").split(b"\n")
  return [_decode(path, n, line) for n, line in enumerate(lines, 1)]


def read_parallel(source: str, target: str | None) -> tuple[list[str], list[str]]:
  """Returns source and target lines, aligned.

  Args:
    source: the file with source lines.
    target: the file with target lines, or None where they are not known.

  Returns:
    Two lists of one length; the targets are empty strings where `target` is None.

  Raises:
    ValueError: as `read_lines`, or the files have unequal numbers of lines.
  """
  sources = read_lines(source)
  if target is None:
    return sources, [""] * len(sources)
  targets = read_lines(target)
  if len(sources) != len(targets):
    raise ValueError(
      f"{source} has {len(sources)} lines and {target} has {len(targets)}. Expected "
      "parallel files, line n of one the translation of line n of the other."
    )
  return sources, targets


def read_fields(
  path: str,
  required: Sequence[str],
  optional: Sequence[str] = (),
  keep_line_ends: bool = False,
) -> list[dict[str, str]]:
  """Returns the named fields of every record of a .jsonl or .csv file.

  Args:
    path: the file; its extension, before a .gz, says the format. A CSV file has a
      header line.
    required: the fields that every record must have.
    optional: fields to return as well from the records that have them.
    keep_line_ends: whether line breaks at the end of a field belong to it, as in code.

  Returns:
    One dictionary for each record, in the file's order.

  Raises:
    ValueError: another extension; a missing or empty file; bytes that are not UTF-8;
      malformed JSON or CSV; a missing field (the ones that exist are named); or a
      field that is not text. All but the first two say the line.
  """
  readers = {".jsonl": _jsonl_records, ".csv": _csv_records}
  extension = os.path.splitext(path.removesuffix(".gz"))[1].lower()
  if extension not in readers:
    raise ValueError(
      f"{path} ends in {extension!r}, expected {' or '.join(readers)}, or one of them "
      "with .gz. Rename it, or convert it to one JSON object on each line."
    )
  text = "\n".join(read_lines(path))
  rows = []
  for line, record in readers[extension](path, text):
    row = _select(f"{path}, line {line}", record, required, optional)
    if not keep_line_ends:
      row = {name: value.rstrip("\r\n") for name, value in row.items()}
    rows.append(row)
  if not rows:
    raise ValueError(f"{path} holds no record. Expected at least one.")
  return rows


def _select(
  where: str, record: dict, required: Sequence[str], optional: Sequence[str]
) -> dict[str, str]:
  """Returns the wanted fields of one record, checked to be text."""
  missing = [name for name in required if name not in record]
  if missing:
    raise ValueError(
      f"{where}: no field {', '.join(map(repr, missing))}. The fields that exist are "
      f"{', '.join(repr(name) for name in record)}."
    )
  chosen = {n: record[n] for n in (*required, *optional) if n in record}
  for name, value in chosen.items():
    if not isinstance(value, str):
      raise ValueError(
        f"{where}: field {name!r} is {type(value).__name__} {value!r:.60}, expected "
        "a string."
      )
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
      raise ValueError(
        f"{where}: field {name!r} holds half of a surrogate pair (\\ud800 to "
        "\\udfff), which UTF-8 can't express. Remove it."
      )
  return chosen


def _jsonl_records(path: str, text: str) -> Iterator[tuple[int, dict]]:
  """Yields (line number, object)."""
  # Only blank lines at the end are no records.
  for number, line in enumerate(text.rstrip("\n").split("\n"), 1):
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as error:
      # No JSON, or a number too long to read; nested too deeply.
      raise ValueError(
        f"{path}, line {number}: malformed JSON ({error}). Expected one object on "
        "each line."
      ) from error
    if not isinstance(record, dict):
      raise ValueError(
        f"{path}, line {number}: got a JSON {type(record).__name__}, expected an "
        "object with named fields."
      )
    yield number, record


def _csv_records(path: str, text: str) -> Iterator[tuple[int, dict]]:
  """Yields (number of the record's last line, record)."""
  with _long_csv_fields():
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
      rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
      raise ValueError(
        f"{path}, line {reader.line_num}: malformed CSV ({error}). Expected comma "
        'separated fields, quotes inside them doubled ("").'
      ) from error
  if len(set(reader.fieldnames)) != len(reader.fieldnames):
    raise ValueError(
      f"{path}: the header {reader.fieldnames} names a field twice. Rename one."
    )
  for number, row in rows:
    # DictReader puts surplus fields under None and None into absent ones.
    if None in row or None in row.values():
      raise ValueError(
        f"{path}, line {number}: expected {len(reader.fieldnames)} fields as in the "
        "header, got another number. Quote fields that hold commas or line breaks."
      )
    yield number, row


@contextlib.contextmanager
def _long_csv_fields() -> Iterator[None]:
  with _csv_lock:
    previous = csv.field_size_limit(_CSV_FIELD_LIMIT)
    try:
      yield
    finally:
      csv.field_size_limit(previous)


def _read_bytes(path: str) -> bytes:
  try:
    data = read_bytes(path)
  except OSError as error:
    raise ValueError(
      f"{path} can't be read: {error}. Expected a text file; check the path."
    ) from error
  if not path.endswith(".gz"):
    return data
  try:
    return gzip.decompress(data)
  except (gzip.BadGzipFile, EOFError, zlib.error) as error:
    raise ValueError(
      f"{path} can't be decompressed: {error}. Expected a whole gzip file; fetch it "
      "again, or take .gz off its name where it is plain text."
    ) from error


def _decode(path: str, number: int, line: bytes) -> str:
  if b"\0" in line:
    raise ValueError(
      f"{path}, line {number}: a NUL byte at column {line.index(0) + 1}. Expected text "
      "in UTF-8; a file in UTF-16 has one in each letter: convert it, as with iconv."
    )
  try:
    return line.decode("utf-8").rstrip("\r")
  except UnicodeDecodeError as error:
    raise ValueError(
      f"{path}, line {number}: byte {line[error.start]:#04x} at column "
      f"{error.start + 1} is not UTF-8. Convert the file, for example with iconv."
    ) from error
