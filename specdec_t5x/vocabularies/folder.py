"""Reads the vocabulary of a model's folder in transformers' format."""

import os
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from specdec_t5x.core.knobs import is_whole
from specdec_t5x.hugging_face import generation
from specdec_t5x.hugging_face.tensors import read_json
from specdec_t5x.vocabularies import added, bytes, sentencepieces
from specdec_t5x.vocabularies.added import AddedToken
from specdec_t5x.vocabularies.base import SPACE, Vocabulary

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
PIECES = ("spiece.model", "tokenizer.model")
ADDED, SPECIAL = "added_tokens.json", "special_tokens_map.json"
# The files of a vocabulary.
FILES = (TOKENIZER, *PIECES, SETTINGS, ADDED, SPECIAL, generation.GENERATION)

_SENTINEL = re.compile(r"▁?<extra_id_\d+>")
# Default numbers of sentinels.
_SENTINELS, _SENTINELS_OF_BYTES = 100, 125
# Tokens without text in any folder.
_USUAL = ("<pad>", "</s>", "<s>", "<eos>", "<bos>")
_NAMES = ("pad_token", "eos_token", "bos_token", "cls_token", "sep_token")


def is_in(folder: str) -> bool:
  """Returns whether a folder has a vocabulary."""
  path = pathlib.Path(folder)
  return has_bytes(folder) or any((path / x).is_file() for x in (TOKENIZER, *PIECES))


def has_bytes(folder: str) -> bool:
  """Returns whether a folder's tokens are bytes (ByT5's)."""
  return _settings(pathlib.Path(folder)).get("tokenizer_class") == "ByT5Tokenizer"


def open_folder(folder: str, extra_ids: int | None = None) -> Vocabulary:
  """Returns the vocabulary of a folder.

  The tokenizers library reads a tokenizer.json. SentencePiece reads a model of pieces,
  to which the folder's files may add tokens. If a folder has both files, tokenizer.json
  is used.

  Args:
    folder: folder of a model, or of a tokenizer alone.
    extra_ids: number of sentinels after a SentencePiece model's pieces; None for the
      folder's number.

  Raises:
    ValueError: if the folder has no vocabulary, or a file of the vocabulary is damaged.
  """
  path = pathlib.Path(folder)
  settings = _settings(path)
  end_ids = generation.read(path).eos_ids
  if has_bytes(folder):
    count = _sentinel_count(path, settings, _SENTINELS_OF_BYTES, 259, extra_ids)
    tokens = _tokens(path, settings)
    sentinels = [] if _has_sentinels(tokens) else bytes.sentinels(count)
    return bytes.Bytes(folder, _together(tokens, sentinels), end_ids or (1,))
  if (path / TOKENIZER).is_file():
    return _of_tokenizer(path, folder, settings, end_ids)
  for name in PIECES:
    if (path / name).is_file():
      return _of_pieces(path / name, folder, settings, end_ids, extra_ids)
  raise ValueError(_without(path))


def sentinel_count(folder: str) -> int | None:
  """Returns the number of sentinels after the pieces of a folder's model.

  The result is None for a folder with a tokenizer.json, which lists all tokens.
  """
  path = pathlib.Path(folder)
  if has_bytes(folder):
    default = _SENTINELS_OF_BYTES
    return _sentinel_count(path, _settings(path), default, 259, None)
  if (path / TOKENIZER).is_file():
    return None
  file = next(path / name for name in PIECES if (path / name).is_file())
  return _sentinels_of_pieces(file, _settings(path), None)


def _of_tokenizer(path, folder, settings, end_ids) -> Vocabulary:
  # Imported here, because other vocabularies need no tokenizers.
  from specdec_t5x.vocabularies import tokenizer_json

  file = path / TOKENIZER
  ids = tokenizer_json.load(file).get_vocab(with_added_tokens=True)
  named = _named(path, settings)
  eos = [named.get("eos_token"), "</s>", "<eos>"]
  eos_id = next((ids[name] for name in eos if name in ids), None)
  if not end_ids and eos_id is not None:
    end_ids = (eos_id,)
  if eos_id is None and end_ids:
    eos_id = end_ids[0]
  return tokenizer_json.TokenizerJson(
    str(file),
    path=folder,
    eos_id=eos_id,
    end_ids=end_ids,
    hidden=[ids[name] for name in (*_USUAL, *named.values()) if name in ids],
    ends=_has_t5_class(settings),
  )


def _of_pieces(file, folder, settings, end_ids, extra_ids) -> Vocabulary:
  count = _sentinels_of_pieces(file, settings, extra_ids)
  pieces = sentencepieces.SentencePieceVocabulary(str(file))
  size = pieces.vocab_size

  def is_piece(token: AddedToken) -> bool:
    piece = pieces.piece(token.id)
    return token.content in (piece, piece.removeprefix(SPACE))

  tokens = [token for token in _tokens(file.parent, settings) if not is_piece(token)]
  tokens = _together(tokens, sentencepieces.sentinels_of(str(file)))
  sentinels = [
    added.sentinel(number, size + count - 1 - number) for number in range(count)
  ]
  vocabulary = sentencepieces.FolderPieces(
    str(file),
    path=folder,
    added=tokens if _has_sentinels(tokens) else _together(tokens, sentinels),
    end_ids=end_ids,
    begins=_begins(settings),
    ends=not _begins(settings) or bool(settings.get("add_eos_token")),
  )
  if not tokens:  # A task's name has the file and the number of sentinels.
    vocabulary.sentencepiece_model_file = str(file)
    vocabulary.extra_ids = count
  return vocabulary


def _has_t5_class(settings: Mapping[str, Any]) -> bool:
  """Returns whether transformers' class of a folder's tokenizer appends EOS to inputs.

  The classes of T5 and mT5 append EOS. A folder without a class is taken for a T5's.
  """
  name = settings.get("tokenizer_class")
  return name is None or str(name).startswith(("T5", "MT5"))


def _together(
  tokens: Sequence[AddedToken], sentinels: Sequence[AddedToken]
) -> list[AddedToken]:
  """Returns a folder's added tokens, and the sentinels with other ids."""
  ids = {token.id for token in tokens}
  return [*tokens, *(token for token in sentinels if token.id not in ids)]


def _begins(settings: Mapping[str, Any]) -> bool:
  """Returns whether inputs begin with a special token, as in Gemma."""
  is_gemma = str(settings.get("tokenizer_class", "")).startswith("Gemma")
  adds_bos = settings.get("add_bos_token")
  return is_gemma if adds_bos is None else bool(adds_bos)


def _settings(path: pathlib.Path) -> Mapping[str, Any]:
  file = path / SETTINGS
  return read_json(file) if file.is_file() else {}


def _named(path: pathlib.Path, settings: Mapping[str, Any]) -> dict[str, str]:
  """Returns the texts of a folder's special tokens, by the names of `_NAMES`."""
  special = read_json(path / SPECIAL) if (path / SPECIAL).is_file() else {}
  texts = {}
  for name in _NAMES:
    token = settings.get(name) or special.get(name)
    text = token.get("content") if isinstance(token, Mapping) else token
    if isinstance(text, str):
      texts[name] = text
  return texts


def _tokens(path: pathlib.Path, settings: Mapping[str, Any]) -> list[AddedToken]:
  """Returns the tokens that a folder adds to the pieces, sorted by id.

  If both files have a token, tokenizer_config.json decides.

  Raises:
    ValueError: if a file lists values other than tokens.
  """
  tokens = {}
  for where, fields in (*_of_added(path), *_of_settings(path, settings)):
    token = added.from_json(where, fields)
    tokens[token.id] = token
  return [tokens[token_id] for token_id in sorted(tokens)]


def _of_added(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  if (path / ADDED).is_file():
    for text, token in read_json(path / ADDED).items():
      yield str(path / ADDED), {"content": text, "id": token}


def _of_settings(path, settings) -> Iterator[tuple[str, Any]]:
  where = f"{path / SETTINGS}: added_tokens_decoder"
  listed = settings.get("added_tokens_decoder", {})
  if not isinstance(listed, Mapping):
    raise ValueError(
      f"{where} must be a JSON object, got {listed!r:.80}. Copy the file again."
    )
  for token, fields in listed.items():
    is_described = isinstance(fields, Mapping) and token.isdecimal()
    yield where, {**fields, "id": int(token)} if is_described else {token: fields}


def _has_sentinels(tokens: Sequence[AddedToken]) -> bool:
  return any(_SENTINEL.fullmatch(token.content) for token in tokens)


def _sentinels_of_pieces(file: pathlib.Path, settings, extra_ids: int | None) -> int:
  if _begins(settings) or sentencepieces.has_sentinels(str(file)):
    return 0
  size = sentencepieces.SentencePieceVocabulary(str(file)).vocab_size
  return _sentinel_count(file.parent, settings, _SENTINELS, size, extra_ids)


def _sentinel_count(
  path: pathlib.Path,
  settings: Mapping[str, Any],
  default: int,
  size: int,
  extra_ids: int | None,
) -> int:
  """Returns the number of sentinels after `size` tokens.

  Args:
    path: path of the folder.
    settings: contents of tokenizer_config.json.
    default: number for a folder without a number.
    size: number of other tokens.
    extra_ids: number from the caller; None for the folder's number, or fewer if the
      network has fewer rows.
  """
  if extra_ids is not None:
    return extra_ids
  count = _number(path / SETTINGS, settings, "extra_ids", default)
  if not (path / generation.CONFIG).is_file():
    return count
  config = read_json(path / generation.CONFIG)
  rows = _number(path / generation.CONFIG, config, "vocab_size", size + count)
  return max(0, min(count, rows - size))


def _number(path: pathlib.Path, found: Mapping[str, Any], name: str, default: int):
  """Returns a number from the contents of a file.

  Raises:
    ValueError: if the value is not an integer of at least 0.
  """
  value = found.get(name, default)
  if not is_whole(value, 0):
    raise ValueError(
      f"{path}: {name} must be a whole number of at least 0, got {value!r}. Copy the "
      "file again."
    )
  return value


def _without(path: pathlib.Path) -> str:
  """Returns the message for a folder without a readable vocabulary."""
  files: Collection[str] = os.listdir(path)
  others = sorted({"vocab.txt", "vocab.json", "merges.txt"} & set(files))
  hint = f" {others[0]} exists, but is read as {TOKENIZER} only." if others else ""
  return (
    f"{path} has no vocabulary: expected {TOKENIZER}, {PIECES[0]}, {PIECES[1]}, or a "
    f"{SETTINGS} of ByT5's.{hint} Copy the file, or write a tokenizer with "
    "transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)."
  )
