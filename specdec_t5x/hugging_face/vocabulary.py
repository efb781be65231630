"""The vocabulary of a Hugging Face folder: SentencePiece's, or bytes."""

import base64
import functools
import hashlib
import itertools
import os
import pathlib
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto

from specdec_t5x.core.checks import is_whole
from specdec_t5x.hugging_face.tensors import read_json

PIECES, TOKENIZER, SETTINGS = "spiece.model", "tokenizer.json", "tokenizer_config.json"
_EXTRA_ID = re.compile(r"▁?<extra_id_\d+>")
_T5_EXTRA_IDS = 100  # Where a folder does not say how many.
_BYTES_FROM = 3  # After padding, end of sequence and unknown.


class Processor(Protocol):
  """What turns text into tokens and back: SentencePiece's, or `Bytes`."""

  def encode(self, text: str) -> list[int]: ...

  def decode(self, tokens: Sequence[int]) -> str: ...

  def eos_id(self) -> int: ...

  def vocab_size(self) -> int: ...


class Bytes:
  """ByT5's vocabulary: a byte's token is its number plus three.

  >>> Bytes().encode("é"), Bytes().decode([198, 172, 1])
  ([198, 172], 'é')
  """

  def encode(self, text: str) -> list[int]:
    return [_BYTES_FROM + byte for byte in text.encode("utf-8")]

  def decode(self, tokens: Sequence[int]) -> str:
    known = (token - _BYTES_FROM for token in tokens)
    data = bytes(byte for byte in known if 0 <= byte < 256)
    return data.decode("utf-8", errors="ignore")

  def eos_id(self) -> int:
    return 1

  def vocab_size(self) -> int:
    return _BYTES_FROM + 256


def has_bytes(folder: str) -> bool:
  """Returns whether a folder's tokens are bytes (ByT5's)."""
  path = pathlib.Path(folder) / SETTINGS
  return path.is_file() and read_json(path).get("tokenizer_class") == "ByT5Tokenizer"


def is_in(folder: str) -> bool:
  """Returns whether a folder has a vocabulary at all."""
  known = PIECES, TOKENIZER
  return has_bytes(folder) or any((pathlib.Path(folder) / x).is_file() for x in known)


def processor(path: str) -> Processor:
  """Returns what encodes text.

  Args:
    path: a SentencePiece model, or a Hugging Face folder.

  Raises:
    ValueError: where there is no vocabulary.
  """
  if os.path.isdir(path) and has_bytes(path):
    return Bytes()
  file = sentencepiece_file(path) if os.path.isdir(path) else path
  try:
    return sentencepiece.SentencePieceProcessor(model_file=file)
  except (RuntimeError, OSError) as error:
    raise ValueError(
      f"vocabulary={path!r} is not a SentencePiece model: {error}. Give the one that "
      "the models were trained with."
    ) from error


def sentencepiece_file(folder: str) -> str:
  """Returns the path of a folder's SentencePiece model.

  A tokenizer.json is written as one, once, into SPECDEC_T5X_CACHE (else
  ~/.cache/specdec_t5x).

  Raises:
    ValueError: where there is neither, the tokenizer is of another kind, or nothing
      can be written there.
  """
  path = pathlib.Path(folder)
  if (path / PIECES).is_file():
    return str(path / PIECES)
  if not (path / TOKENIZER).is_file():
    raise ValueError(
      f"{folder} has no vocabulary: neither {PIECES} nor {TOKENIZER}, nor a {SETTINGS} "
      "of ByT5's. Copy it, too, or give the path of a SentencePiece model."
    )
  contents = model_of(str(path / TOKENIZER)).SerializeToString(deterministic=True)
  name = f"vocabulary-{hashlib.sha256(contents).hexdigest()[:16]}.model"
  home = os.environ.get("SPECDEC_T5X_CACHE") or "~/.cache/specdec_t5x"
  kept = pathlib.Path(home).expanduser() / name
  try:
    if not kept.is_file():
      kept.parent.mkdir(parents=True, exist_ok=True)
      with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
        file.write(contents)
      os.replace(file.name, kept)  # Whole, or not there.
  except OSError as error:
    raise ValueError(
      f"The vocabulary of {folder} can't be written to {kept.parent} ({error}). Set "
      "SPECDEC_T5X_CACHE to a folder that you may create files in."
    ) from error
  return str(kept)


@functools.lru_cache(maxsize=4)
def model_of(tokenizer: str) -> proto.ModelProto:
  """Returns the SentencePiece model that a tokenizer.json was made of.

  Raises:
    ValueError: where it is no unigram model with T5's special tokens, nor a BPE model
      as Gemma's.
  """
  found = read_json(pathlib.Path(tokenizer))
  try:
    return (_bpe if found["model"].get("type") == "BPE" else _unigram)(found)
  except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
    raise ValueError(
      f"{tokenizer} is no unigram tokenizer as T5's, nor a BPE one as Gemma's "
      f"({type(error).__name__}: {error}). Give the path of the SentencePiece model "
      f"({PIECES}, tokenizer.model) that the model was trained with, or put it into "
      f"the folder as {PIECES}."
    ) from error


def _bpe(found: dict[str, Any]) -> proto.ModelProto:
  """Returns a Gemma's: all of its merges come from its pieces' order."""
  model, step = found["model"], found.get("normalizer") or {}
  if step.get("type") != "Replace" or step.get("content") != "▁":
    raise ValueError(f"a normalizer of type {step.get('type')!r}, not of spaces")
  added = {token["content"]: token["id"] for token in found.get("added_tokens", [])}
  vocabulary = sorted({**model["vocab"], **added}.items(), key=lambda item: item[1])
  if [number for _, number in vocabulary] != list(range(len(vocabulary))):
    raise ValueError("token ids that are not all from 0 on")
  made = proto.ModelProto()
  ranks = _ranks(model["merges"], set(model["vocab"]) - set(added))
  Kind = proto.ModelProto.SentencePiece.Type
  kinds = dict.fromkeys(added, Kind.USER_DEFINED) | {
    **{"<pad>": Kind.CONTROL, "<eos>": Kind.CONTROL, "<unk>": Kind.UNKNOWN}
  }
  for piece, _ in vocabulary:
    kind = Kind.BYTE if re.fullmatch("<0x[0-9A-F]{2}>", piece) else Kind.NORMAL
    rank = ranks.get(piece, len(ranks))
    made.pieces.add(piece=piece, score=-rank, type=kinds.get(piece, kind))
  ids, trainer = dict(vocabulary), made.trainer_spec
  trainer.model_type, trainer.vocab_size = trainer.BPE, len(vocabulary)
  trainer.eos_piece = "<eos>"
  trainer.pad_id, trainer.eos_id, trainer.unk_id = (
    ids[piece] for piece in ("<pad>", "<eos>", "<unk>")
  )
  trainer.bos_id, trainer.byte_fallback = -1, bool(model.get("byte_fallback"))
  spec = made.normalizer_spec
  spec.name, spec.escape_whitespaces = "identity", True
  spec.add_dummy_prefix = spec.remove_extra_whitespaces = False
  return made


def _ranks(merges: Sequence[Any], pieces: Collection[str]) -> dict[str, int]:
  """Returns the order in which pieces are merged, whatever their parts.

  SentencePiece merges any two parts of a piece, tokenizers those that are listed: of a
  SentencePiece model all are, side by side.
  """
  pairs = [tuple(m.split(" ") if isinstance(m, str) else m) for m in merges]
  parts_of = [(piece, set(parts)) for piece, parts in itertools.groupby(pairs, "".join)]
  wanted = {}
  for piece in pieces:
    cuts = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
    if known := {cut for cut in cuts if pieces >= set(cut)}:
      wanted[piece] = known
  if len(parts_of) != len(wanted) or dict(parts_of) != wanted:
    raise ValueError("merges that are no SentencePiece model's")
  return {piece: rank for rank, (piece, _) in enumerate(parts_of)}


def _unigram(found: dict[str, Any]) -> proto.ModelProto:
  model = found["model"]
  if model.get("type", "Unigram") != "Unigram":
    raise ValueError(f"a model of type {model['type']!r}")
  vocabulary = list(model["vocab"])
  while _EXTRA_ID.fullmatch(vocabulary[-1][0]):
    vocabulary.pop()  # Which follow the pieces; seqio adds them itself.
  made = proto.ModelProto()
  Kind = proto.ModelProto.SentencePiece.Type
  kinds = {"<pad>": Kind.CONTROL, "</s>": Kind.CONTROL, "<unk>": Kind.UNKNOWN}
  for piece, score in vocabulary:
    kind = Kind.BYTE if re.fullmatch("<0x[0-9A-F]{2}>", piece) else Kind.NORMAL
    made.pieces.add(piece=piece, score=score, type=kinds.get(piece, kind))
  ids = {piece: number for number, (piece, _) in enumerate(vocabulary[:_BYTES_FROM])}
  trainer = made.trainer_spec
  trainer.model_type, trainer.vocab_size = trainer.UNIGRAM, len(vocabulary)
  trainer.pad_id, trainer.eos_id, trainer.unk_id = (ids[name] for name in kinds)
  trainer.bos_id, trainer.byte_fallback = -1, bool(model.get("byte_fallback"))
  _normalize(made.normalizer_spec, found)
  return made


def _normalize(spec: proto.NormalizerSpec, found: dict[str, Any]) -> None:
  """Sets what happens to text before it is cut into pieces."""
  spec.add_dummy_prefix = spec.escape_whitespaces = True
  spec.remove_extra_whitespaces = True
  normalizer = found.get("normalizer") or {"type": "Sequence", "normalizers": []}
  steps = normalizer.get("normalizers", [normalizer])
  for step in steps:
    if step["type"] == "Precompiled":
      spec.name = "nmt_nfkc"
      spec.precompiled_charsmap = base64.b64decode(step["precompiled_charsmap"])
    elif step["type"] not in ("Strip", "Replace"):  # Of surplus spaces.
      raise ValueError(f"a normalizer of type {step['type']!r}")


def extra_ids(folder: str) -> int:
  """Returns how many sentinel tokens follow a folder's pieces.

  As many as the tokenizer's files say, where the network has rows for them.

  Raises:
    ValueError: as `sentencepiece_file`; or where the files hold what they may not.
  """
  path = pathlib.Path(folder)
  found = read_json(path / SETTINGS) if (path / SETTINGS).is_file() else {}
  named = _texts(path / SETTINGS, found, "added_tokens_decoder", dict)
  if (path / TOKENIZER).is_file():
    tokenizer = read_json(path / TOKENIZER)
    named |= _texts(path / TOKENIZER, tokenizer, "added_tokens", list)
  known = sum(bool(_EXTRA_ID.fullmatch(token)) for token in named) or _T5_EXTRA_IDS
  count = _number(path / SETTINGS, found, "extra_ids", known)
  rows = _number(path / "config.json", read_json(path / "config.json"), "vocab_size", 0)
  return max(0, min(count, rows - processor(folder).vocab_size()))


def _number(path: pathlib.Path, found: Mapping[str, Any], name: str, default: int):
  """Returns a number of a file."""
  value = found.get(name, default)
  if not is_whole(value, 0):
    raise ValueError(
      f"{path}: {name} must be a whole number of at least 0, got {value!r}. Copy the "
      "file again."
    )
  return value


def _texts(path: pathlib.Path, found: Mapping[str, Any], name: str, kind: type):
  """Returns the texts of the tokens that a file adds to the pieces."""
  added = found.get(name, kind())
  if not isinstance(added, kind):
    wanted = "object" if kind is dict else "list"
    raise ValueError(
      f"{path}: {name} must be a JSON {wanted}, got {added!r}. Copy the file again."
    )
  tokens = list(added.values() if kind is dict else added)
  contents = [token.get("content") for token in tokens if isinstance(token, dict)]
  if len(contents) < len(tokens) or not all(isinstance(x, str) for x in contents):
    raise ValueError(
      f"{path}: {name} must hold objects with text as 'content', got {tokens!r:.80}. "
      "Copy the file again."
    )
  return set(contents)
