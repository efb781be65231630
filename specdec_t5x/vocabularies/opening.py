"""Opens a vocabulary of any kind by a path: a file, or a folder of transformers."""

import os
import pathlib
import re
from collections.abc import Mapping, Sequence
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

_SENTINEL = re.compile(r"▁?<extra_id_\d+>")
# Default numbers of sentinels.
_SENTINELS, _SENTINELS_OF_BYTES = 100, 125
# Tokens without text in any folder.
_USUAL = ("<pad>", "</s>", "<s>", "<eos>", "<bos>")
_NAMES = ("pad_token", "eos_token", "bos_token", "cls_token", "sep_token")


def open_vocabulary(
  path: str | os.PathLike,
  extra_ids: int | None = None,
  vocab_size: int | None = None,
) -> Vocabulary:
  """Returns the vocabulary at a path.

  Args:
    path: path of a SentencePiece model, a tokenizer.json or a Hugging Face folder. ~ is
      the user's home.
    extra_ids: number of sentinels after the pieces of a SentencePiece model. For a
      folder, None is the folder's number. For a file, None is T5's 100 if the network
      has at least 100 more rows than the model has pieces, else 0.
    vocab_size: number of rows of the network; None leaves a file without sentinels.

  Raises:
    ValueError: if there is no vocabulary, or a file of the vocabulary is damaged.
  """
  path = os.path.expanduser(path)
  if os.path.isdir(path):
    return open_folder(path, extra_ids)
  if path.endswith(".json"):
    file = pathlib.Path(path)
    if file.name != TOKENIZER or not file.is_file():
      raise ValueError(
        f"The vocabulary {path} can't be read: expected a file {TOKENIZER}, a "
        "SentencePiece model, or a folder of a tokenizer."
      )
    return open_folder(str(file.parent), extra_ids)
  try:
    size = sentencepieces.SentencePieceVocabulary(path).vocab_size
    if sentencepieces.has_sentinels(path):
      extra_ids = 0
  except OSError as error:
    raise ValueError(
      f"The vocabulary {path} can't be read: {error}. Expected a SentencePiece model "
      "(T5's own is sentencepiece.model or spiece.model), or a folder of a tokenizer; "
      "if buckets are out of reach, give the path of a local copy."
    ) from error
  except RuntimeError as error:
    raise ValueError(
      f"{path} is not a SentencePiece model: {error}. Expected the .model file of "
      "SentencePiece training, not the .vocab text. Give the model's own vocabulary."
    ) from error
  if extra_ids is None:
    has_room = vocab_size is not None and size + _SENTINELS <= vocab_size
    extra_ids = _SENTINELS if has_room else 0
  return sentencepieces.SentencePieceVocabulary(path, extra_ids)


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
  settings = read_json(path / SETTINGS) if (path / SETTINGS).is_file() else {}
  end_ids = generation.read(path).eos_ids
  if settings.get("tokenizer_class") == "ByT5Tokenizer":
    count = _sentinel_count(path, settings, _SENTINELS_OF_BYTES, 259, extra_ids)
    tokens = _tokens(path, settings)
    sentinels = [] if _has_sentinels(tokens) else bytes.sentinels(count)
    return bytes.Bytes(folder, _together(tokens, sentinels), end_ids or (1,))
  if (path / TOKENIZER).is_file():
    return _of_tokenizer(path, folder, settings, end_ids)
  for name in PIECES:
    if (path / name).is_file():
      return _of_pieces(path / name, folder, settings, end_ids, extra_ids)
  raise ValueError(
    f"{path} has no vocabulary: expected {TOKENIZER}, {PIECES[0]}, {PIECES[1]}, or a "
    f"{SETTINGS} of ByT5's. Copy the file, or write {TOKENIZER} from other files with "
    "transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)."
  )


def _of_tokenizer(path, folder, settings, end_ids) -> Vocabulary:
  # Imported here, because other vocabularies need no tokenizers.
  from specdec_t5x.vocabularies import tokenizer_json

  tokenizer = tokenizer_json.load(path / TOKENIZER)
  ids = tokenizer.get_vocab(with_added_tokens=True)
  named = _named(path, settings)
  eos = [named.get("eos_token"), "</s>", "<eos>"]
  eos_id = next((ids[name] for name in eos if name in ids), None)
  if not end_ids and eos_id is not None:
    end_ids = (eos_id,)
  if eos_id is None and end_ids:
    eos_id = end_ids[0]
  return tokenizer_json.TokenizerJson(
    tokenizer,
    path=folder,
    eos_id=eos_id,
    end_ids=end_ids,
    hidden=[ids[name] for name in (*_USUAL, *named.values()) if name in ids],
    # transformers' classes of T5 and mT5 append EOS to inputs. A folder without a class
    # is taken for a T5's.
    ends=str(settings.get("tokenizer_class") or "T5").startswith(("T5", "MT5")),
  )


def _of_pieces(file, folder, settings, end_ids, extra_ids) -> Vocabulary:
  pieces = sentencepieces.SentencePieceVocabulary(str(file))
  size = pieces.vocab_size
  count = 0
  if not _begins(settings) and not sentencepieces.has_sentinels(str(file)):
    count = _sentinel_count(file.parent, settings, _SENTINELS, size, extra_ids)

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
  """
  tokens = []
  if (path / ADDED).is_file():
    for text, token in read_json(path / ADDED).items():
      tokens.append(added.from_json(str(path / ADDED), {"content": text, "id": token}))
  where = f"{path / SETTINGS}: added_tokens_decoder"
  listed = settings.get("added_tokens_decoder", {})
  if not isinstance(listed, Mapping):
    raise ValueError(
      f"{where} must be a JSON object, got {listed!r:.80}. Copy the file again."
    )
  for token, fields in listed.items():
    is_described = isinstance(fields, Mapping) and token.isdecimal()
    described = {**fields, "id": int(token)} if is_described else {token: fields}
    tokens.append(added.from_json(where, described))
  by_id = {token.id: token for token in tokens}
  return [by_id[token_id] for token_id in sorted(by_id)]


def _has_sentinels(tokens: Sequence[AddedToken]) -> bool:
  return any(_SENTINEL.fullmatch(token.content) for token in tokens)


def _sentinel_count(
  path: pathlib.Path,
  settings: Mapping[str, Any],
  default: int,
  size: int,
  extra_ids: int | None,
) -> int:
  """Returns the number of sentinels after `size` tokens: the caller's `extra_ids`.

  None is the folder's number, `default` for a folder without a number, or fewer if the
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
  """Returns a number from the contents of a file, at least 0."""
  value = found.get(name, default)
  if not is_whole(value, 0):
    raise ValueError(
      f"{path}: {name} must be a whole number of at least 0, got {value!r}. Copy the "
      "file again."
    )
  return value
