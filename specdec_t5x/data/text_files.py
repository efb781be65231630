"""Reads the user's own text: lines, JSONL and CSV, checked line by line.

Cleaning only removes a leading byte order mark and the ending of each line (LF or
CRLF). The remaining text reaches the model unchanged. Files with the extension .gz are
decompressed.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator, Sequence

from specdec_t5x.vocabularies.reading import read_bytes

# The default is shorter than some articles.
csv.field_size_limit(2**31 - 1)


def read_lines(path: str) -> list[str]:
  """Returns the lines of a UTF-8 file, without line endings.

  Blank lines are included, because parallel files need them for the alignment.

  Args:
    path: path of the file, on a disk or in a bucket.

  Raises:
    ValueError: if the file is missing, has no text, or has NUL or bytes that are not
      UTF-8.
  """
  try:
    data = read_bytes(path)
  except (OSError, TypeError) as error:  # TypeError: the path is not text.
    raise ValueError(
      f"{path} can't be read: {error}. Expected a text file; check the path."
    ) from error
  if path.endswith(".gz"):
    try:
      data = gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
      raise ValueError(
        f"{path} can't be decompressed: {error}. Expected a complete gzip file. Fetch "
        "the file again, or remove .gz from the name of a plain text file."
      ) from error
  data = data.removeprefix(b"\xef\xbb\xbf")
  if not data.strip():
    raise ValueError(f"{path} has no text. Expected one text per line.")
  lines = []
  # str.splitlines would also break at U+0085 and U+2028 inside a text.
  for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
    if b"\0" in line:
      raise ValueError(
        f"{path}, line {number}: a NUL byte at column {line.index(0) + 1}. Expected "
        "text in UTF-8; a file in UTF-16 has a NUL byte in every letter. Convert the "
        "file, as with iconv."
      )
    try:
      lines.append(line.decode("utf-8").rstrip("\r"))
    except UnicodeDecodeError as error:
      raise ValueError(
        f"{path}, line {number}: byte {line[error.start]:#04x} at column "
        f"{error.start + 1} is not UTF-8. Convert the file, for example with iconv."
      ) from error
  return lines


def read_fields(path: str, fields: Sequence[str]) -> list[dict[str, str]]:
  """Returns the named fields of every record of a .jsonl or .csv file.

  Args:
    path: path of the file; the extension, before .gz, determines the format. A CSV file
      has a header line.
    fields: names of the fields.

  Returns:
    One dictionary per record, in the file's order.

  Raises:
    ValueError: as for `read_lines`; if the extension is unknown; JSON or CSV is
      malformed; or a field is missing (the message lists the existing fields) or is not
      text.
  """
  readers = {".jsonl": _jsonl_records, ".csv": _csv_records}
  extension = os.path.splitext(path.removesuffix(".gz"))[1].lower()
  if extension not in readers:
    raise ValueError(
      f"{path} ends in {extension!r}, expected {' or '.join(readers)}, with or without "
      ".gz. Rename the file, or convert the file to one JSON object per line."
    )
  rows = [
    {name: _field(f"{path}, line {line}", record, name) for name in fields}
    for line, record in readers[extension](path, "\n".join(read_lines(path)))
  ]
  if not rows:
    raise ValueError(f"{path} must hold at least 1 record, got 0.")
  return rows


def _field(where: str, record: dict, name: str) -> str:
  """Returns a field of a record, after checking for text."""
  if name not in record:
    raise ValueError(
      f"{where}: no field {name!r}. The fields are {', '.join(map(repr, record))}."
    )
  value = record[name]
  if not isinstance(value, str):
    raise ValueError(
      f"{where}: field {name!r} is {type(value).__name__} {value!r:.60}, expected "
      "a string."
    )
  try:
    value.encode()
  except UnicodeEncodeError as error:
    raise ValueError(
      f"{where}: field {name!r} holds half of a surrogate pair (\\ud800 to \\udfff), "
      "but UTF-8 can't express half a pair. Remove the character."
    ) from error
  return value


def _jsonl_records(path: str, text: str) -> Iterator[tuple[int, dict]]:
  """Yields (line number, object)."""
  # Blank lines are allowed only at the end.
  for number, line in enumerate(text.rstrip("\n").split("\n"), 1):
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as error:
      # ValueError: not JSON, or a too long number. RecursionError: too deep nesting.
      raise ValueError(
        f"{path}, line {number}: malformed JSON ({error}). Expected one object per "
        "line."
      ) from error
    if not isinstance(record, dict):
      raise ValueError(
        f"{path}, line {number}: got a JSON {type(record).__name__}, expected an "
        "object with named fields."
      )
    yield number, record


def _csv_records(path: str, text: str) -> Iterator[tuple[int, dict]]:
  """Yields (number of the record's last line, record)."""
  reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
  try:
    rows = [(reader.line_num, row) for row in reader]
  except csv.Error as error:
    raise ValueError(
      f"{path}, line {reader.line_num}: malformed CSV ({error}). Expected comma "
      'separated fields, with doubled quotes inside fields ("").'
    ) from error
  if len(set(reader.fieldnames)) != len(reader.fieldnames):
    raise ValueError(
      f"{path}: the header {reader.fieldnames} names a field twice. Rename a field."
    )
  for number, row in rows:
    # DictReader collects surplus fields under the key None, and fills absent fields
    # with None.
    if None in row or None in row.values():
      raise ValueError(
        f"{path}, line {number}: expected {len(reader.fieldnames)} fields as in the "
        "header, got a different number of fields. Quote fields that hold commas or "
        "line breaks."
      )
    yield number, row
