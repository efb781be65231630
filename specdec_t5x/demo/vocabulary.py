"""A small SentencePiece vocabulary for the demo corpora, trained if missing."""

from __future__ import annotations

import io
import json
import os
import string
import tempfile
from collections.abc import Iterator

import sentencepiece
from etils import epy

from specdec_t5x.data import tasks
from specdec_t5x.demo.corpora import news, translation

with epy.lazy_imports():
  import seqio

# Increment the version if the corpora or the training change, to reject old files.
_VERSION = 2
_CORPORA = ("ende", "cnndm", "lm")
# Characters that the vocabulary encodes even if the sampled texts lack them.
_REQUIRED = f"{string.ascii_letters}{string.digits}äöüÄÖÜß.,?'-:\""
_SENTENCES = 12_000
_ARTICLES = 1_200


def demo_vocabulary(
  path: str, size: int = 2_000, corpora: str = "ende", seed: int = 0
) -> seqio.SentencePieceVocabulary:
  """Returns the vocabulary at a path; trains and writes a missing vocabulary.

  Args:
    path: the .model file on a local disk. The settings are recorded at `path` +
      ".settings.json".
    size: the number of pieces, with padding, EOS and the unknown piece.
    corpora: "ende", "cnndm", "lm" (the English of "ende"), or several with commas.
    seed: the seed of the training data, as in the tasks.

  Returns:
    The vocabulary, with T5's special ids and without extra ids.

  Raises:
    ValueError: if a corpus is unknown, if the size can't be trained, or if the file was
      made with other settings or not by this function.
  """
  if not isinstance(size, int) or size < 1:
    raise ValueError(
      f"size must be a whole number of at least 1, such as 2000, got {size!r}."
    )
  settings = {
    "version": _VERSION,
    "size": size,
    "corpora": sorted(corpora.split(",")),
    "seed": seed,
  }
  if not set(settings["corpora"]) <= set(_CORPORA):
    raise ValueError(
      f"corpora must be {', '.join(_CORPORA)} or several with commas, got {corpora!r}."
    )
  if os.path.exists(path):
    _check_settings(path, settings)
  else:
    _train(path, settings)
  return seqio.SentencePieceVocabulary(path, extra_ids=0)


def _check_settings(path: str, wanted: dict) -> None:
  """Raises a ValueError if the file was not made with the wanted settings."""
  record = f"{path}.settings.json"
  if not os.path.exists(record):
    raise ValueError(
      f"{path} exists without {record}, so the settings of the vocabulary are unknown. "
      f"Remove {path} to train again, or choose another path."
    )
  with open(record, encoding="utf-8") as file:
    recorded = json.load(file)
  if recorded != wanted:
    raise ValueError(
      f"{path} was made with {recorded}, expected {wanted}. Choose another path, or "
      "remove the file to train again."
    )


def texts(corpora: list[str], seed: int) -> Iterator[str]:
  """Yields the training texts of both sides, prefixes included."""
  if "ende" in corpora:
    for source, target in translation.rows("train", _SENTENCES, seed):
      yield tasks.TRANSLATE_ENDE + source
      yield target
  if "lm" in corpora:
    yield from (source for source, _ in translation.rows("train", _SENTENCES, seed))
  if "cnndm" in corpora:
    for source, target in news.rows("train", _ARTICLES, seed):
      yield tasks.SUMMARIZE + source
      yield from target.split("\n")


def _trained(settings: dict) -> bytes:
  # Written to memory, as SentencePiece would store a file's name in the model.
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=texts(settings["corpora"], settings["seed"]),
      model_writer=model,
      model_type="unigram",
      vocab_size=settings["size"],
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      character_coverage=1.0,
      required_chars=_REQUIRED,
      split_digits=True,
      input_sentence_size=2 * _SENTENCES + 5 * _ARTICLES,
      shuffle_input_sentence=False,
      num_threads=1,
      minloglevel=2,
    )
  except RuntimeError as error:
    raise ValueError(
      f"SentencePiece can't train {settings['size']} pieces: {error} Choose another "
      "size."
    ) from error
  return model.getvalue()


def _train(path: str, settings: dict) -> None:
  """Trains in a temporary folder next to the path, then moves the files to the path."""
  directory = os.path.dirname(os.path.abspath(path))
  os.makedirs(directory, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix=".incomplete-", dir=directory) as staging:
    model = _trained(settings)
    trained = os.path.join(staging, "trained.model")
    with open(trained, "wb") as file:
      file.write(model)
    record = os.path.join(staging, "settings.json")
    with open(record, "w", encoding="utf-8") as file:
      json.dump(settings, file, indent=2)
    # The settings come first, as a model without settings would be refused.
    os.replace(record, f"{path}.settings.json")
    os.replace(trained, path)
