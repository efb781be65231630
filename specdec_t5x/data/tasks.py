"""The seqio tasks: WMT, CNN/DailyMail and XSum from TFDS, and the user's own files.

Importing this module registers `wmt14_ende`, `wmt_t2t_ende`, `cnn_dailymail` and `xsum`
with T5's vocabulary. The import reads no file and needs no network. TFDS reads the
directory of --tfds_data_dir (seqio.set_tfds_data_dir_override). tensorflow-datasets
4.9.10 has exactly these versions, and also XSum 1.0.0, in which articles still contain
text from around the article on the web page.

Every function returns the name of the registered task, for use in gin:

  MIXTURE_OR_TASK_NAME = @tasks.translation_from_files()
  tasks.translation_from_files:
    name = 'my_test_set'
    files = {'test': ('my.en', 'my.de')}
    vocabulary = %VOCABULARY
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from etils import epath, epy

from specdec_t5x.data import registry, text_files

with epy.lazy_imports():
  import seqio

TRANSLATE_ENDE = "translate English to German: "
SUMMARIZE = "summarize: "
_PAIR = ("source", "target")  # The columns of the user's files.


def wmt14_ende(
  vocabulary: seqio.Vocabulary | None = None, name: str | None = None
) -> str:
  """Registers WMT14 English to German (test: newstest2014), and returns the name.

  Args:
    vocabulary: the vocabulary; None means T5's.
    name: the task's name; by default `wmt14_ende`, with a suffix for a vocabulary
      other than T5's (see `registry.register_tfds`).

  Raises:
    ValueError: if another task has the name.
  """
  step = registry.AddPrefix(("en", "de"), TRANSLATE_ENDE)
  return registry.register_tfds(
    "wmt14_ende", "wmt14_translate/de-en:1.0.0", step, vocabulary, name, "bleu"
  )


def wmt_t2t_ende(
  vocabulary: seqio.Vocabulary | None = None, name: str | None = None
) -> str:
  """Like `wmt14_ende`, with the training set of Tensor2Tensor, which T5 uses."""
  step = registry.AddPrefix(("en", "de"), TRANSLATE_ENDE)
  return registry.register_tfds(
    "wmt_t2t_ende", "wmt_t2t_translate/de-en:1.0.0", step, vocabulary, name, "bleu"
  )


def cnn_dailymail(
  vocabulary: seqio.Vocabulary | None = None, name: str | None = None
) -> str:
  """Like `wmt14_ende`, for the summarisation of CNN/DailyMail articles."""
  step = registry.AddPrefix(("article", "highlights"), SUMMARIZE)
  return registry.register_tfds(
    "cnn_dailymail", "cnn_dailymail:3.4.0", step, vocabulary, name, "rouge"
  )


def xsum(vocabulary: seqio.Vocabulary | None = None, name: str | None = None) -> str:
  """Like `wmt14_ende`, for the one-sentence summaries of XSum's BBC articles."""
  step = registry.AddPrefix(("document", "summary"), SUMMARIZE)
  return registry.register_tfds("xsum", "xsum:1.1.0", step, vocabulary, name, "rouge")


def translation_from_files(
  name: str,
  files: Mapping[str, Sequence[str | None]],
  source_language: str = "English",
  target_language: str = "German",
  vocabulary: seqio.Vocabulary | None = None,
  prefix: str | None = None,
) -> str:
  """Registers a translation task over parallel text files, and returns the name.

  Args:
    name: the task's name.
    files: split -> (source path, target path), aligned by line. A target path of None
      means unknown references: the targets are empty, for prediction only.
    source_language: name of the language in T5's prefix.
    target_language: name of the language in T5's prefix.
    vocabulary: the vocabulary; None means T5's.
    prefix: text before every source that does not start with the prefix, including
      the separating space, such as MADLAD-400's '<2de> '; None means T5's prefix.

  Raises:
    ValueError: if a file is missing, empty or not UTF-8, two files have different
      numbers of lines, or another task has the name.
  """
  for split, paths in files.items():
    if isinstance(paths, str) or len(paths) != 2 or not paths[0]:
      raise ValueError(
        f"files[{split!r}] must be (source path, target path), got {paths!r}. The "
        "target path may be None."
      )
  if prefix is None:
    prefix = f"translate {source_language} to {target_language}: "

  def read(origin: tuple[str, str, str | None]) -> registry.Columns:
    _, source, target = origin
    sources = text_files.read_lines(source)
    targets = [""] * len(sources) if target is None else text_files.read_lines(target)
    if len(sources) != len(targets):
      raise ValueError(
        f"{source} has {len(sources)} lines and {target} has {len(targets)}. Expected "
        "parallel files: line n of the target must translate line n of the source."
      )
    return {"source": sources, "target": targets}

  return registry.register_texts(
    name,
    {split: ("lines", *paths) for split, paths in files.items()},
    read,
    registry.AddPrefix(_PAIR, prefix),
    vocabulary,
    "bleu" if any(target for _, target in files.values()) else None,
  )


def text_file(
  file: str, prefix: str = "", vocabulary: seqio.Vocabulary | None = None
) -> str:
  """Registers the lines of a text file as the task `text_file`, without references.

  Args:
    file: the path, INPUT_FILE in configs/files.gin.
    prefix: text before every line that does not start with the prefix, including the
      separating space.
    vocabulary: the vocabulary; None means T5's.

  Raises:
    ValueError: if the file is missing, and as for `translation_from_files`.
  """
  if not (isinstance(file, str) and epath.Path(file).exists()):
    raise ValueError(
      f"INPUT_FILE must be the path of a text file with one input per line, got "
      f"{file!r}. Give the path of an existing file, in quotes."
    )
  return translation_from_files(
    "text_file", {"test": (file, None)}, vocabulary=vocabulary, prefix=prefix
  )


def from_records(
  name: str,
  files: Mapping[str, str],
  source_field: str = "inputs",
  target_field: str | None = "targets",
  prefix: str = "",
  metric: str | None = "bleu",
  vocabulary: seqio.Vocabulary | None = None,
) -> str:
  """Registers a task over JSONL or CSV files, and returns the name.

  The defaults are those of the files that `train --job=decode` writes.

  Args:
    name: the task's name.
    files: split -> path; .jsonl (one object per line) or .csv (with a header).
    source_field: the field with the model's input.
    target_field: the field with the reference; None means unknown references.
    prefix: text before every source that does not start with the prefix, including
      the separating space.
    metric: "bleu", "rouge", or None without a metric.
    vocabulary: the vocabulary; None means T5's.

  Raises:
    ValueError: as for `text_files.read_fields`; if the metric is unknown; or if another
      task has the name.
  """
  if metric not in (*registry.METRICS, None):
    raise ValueError(f"metric must be one of {set(registry.METRICS)}, got {metric!r}.")
  fields = [field for field in (source_field, target_field) if field is not None]

  def read(origin: tuple) -> registry.Columns:
    rows = text_files.read_fields(origin[1], fields)
    sources = [row[source_field] for row in rows]
    targets = ["" if target_field is None else row[target_field] for row in rows]
    return {"source": sources, "target": targets}

  return registry.register_texts(
    name,
    {split: ("records", file, *fields) for split, file in files.items()},
    read,
    registry.AddPrefix(_PAIR, prefix),
    vocabulary,
    metric if target_field is not None else None,
  )


for _register in (wmt14_ende, wmt_t2t_ende, cnn_dailymail, xsum):
  _register()
