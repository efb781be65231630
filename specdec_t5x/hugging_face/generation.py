"""A folder's settings of generation: generation_config.json first, then config.json.

The tokens that end an output and the token that decoding starts from are followed.
Settings of sampling and beam search are named and left to the caller. Other settings
that change the target's distribution are refused.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from specdec_t5x.core.knobs import is_whole
from specdec_t5x.hugging_face.tensors import read_json

CONFIG, GENERATION = "config.json", "generation_config.json"
# Settings of sampling and beam search, each with the value that changes nothing. None
# changes nothing either. The caller's settings replace a folder's.
_CHOICES = {
  "do_sample": False,
  "temperature": 1.0,
  "top_k": 50,
  "top_p": 1.0,
  "min_p": 0.0,
  "typical_p": 1.0,
  "epsilon_cutoff": 0.0,
  "eta_cutoff": 0.0,
  "penalty_alpha": 0.0,
  "num_beams": 1,
  "num_beam_groups": 1,
  "diversity_penalty": 0.0,
  "length_penalty": 1.0,
  "early_stopping": False,
  "num_return_sequences": 1,
  "max_length": 20,
  "max_new_tokens": None,
}
# Settings that change the target's distribution, each with the value that does not.
_CHANGES = {
  "forced_bos_token_id": None,
  "forced_eos_token_id": None,
  "forced_decoder_ids": None,
  "suppress_tokens": None,
  "begin_suppress_tokens": None,
  "bad_words_ids": None,
  "force_words_ids": None,
  "constraints": None,
  "sequence_bias": None,
  "no_repeat_ngram_size": 0,
  "encoder_no_repeat_ngram_size": 0,
  "repetition_penalty": 1.0,
  "encoder_repetition_penalty": 1.0,
  "exponential_decay_length_penalty": None,
  "guidance_scale": 1.0,
  "min_length": 0,
  "min_new_tokens": 0,
  "stop_strings": None,
  "watermarking_config": None,
  "dola_layers": None,
}


@dataclasses.dataclass(frozen=True)
class Generation:
  """A folder's settings of generation."""

  eos_ids: tuple[int, ...] = ()  # The tokens that end an output; empty if unknown.
  start_id: int | None = None  # The token that decoding starts from; None if unknown.
  # Settings of sampling and beam search, by name.
  not_applied: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
  # Settings that would change the target's distribution, by name.
  refused: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
  # The files of these settings, by name.
  files: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
  pads: tuple[int, ...] = (0,)  # The tokens that fill up inputs.

  def note(self) -> str:
    """Returns a line that names the settings that are not applied; '' for none."""
    by_file = {}
    for name, value in self.not_applied.items():
      by_file.setdefault(self.files[name], []).append(f"{name}={value!r}")
    parts = [f"{file}: {', '.join(names)}" for file, names in by_file.items()]
    if not parts:
      return ""
    return f"{'; '.join(parts)} not applied; the settings of the run are used."

  def check(self) -> None:
    """Raises a ValueError if the folder asks for another distribution."""
    if self.refused:
      name, value = next(iter(self.refused.items()))
      raise ValueError(
        f"{self.files[name]} sets {name}={value!r}, a setting that changes the "
        f"target's distribution and is not supported. Remove {name} from the file to "
        "decode without the setting."
      )


def read(folder: str | pathlib.Path, vocab_size: int | None = None) -> Generation:
  """Reads a folder's generation_config.json and config.json.

  Args:
    folder: folder of a model, or of a tokenizer alone.
    vocab_size: vocabulary size of the network; None skips the check of ids.

  Raises:
    ValueError: if a file is damaged, or names an id outside the vocabulary.
  """
  path = pathlib.Path(folder)
  files = [path / name for name in (GENERATION, CONFIG) if (path / name).is_file()]
  sources = [(str(file), read_json(file)) for file in files]
  # A T5Gemma's config.json has the decoder's ids in a nested object.
  nested = [(file, fields.get("decoder")) for file, fields in sources]

  def first(name):
    for where, fields in (*sources, *nested):
      if isinstance(fields, Mapping) and fields.get(name) is not None:
        return _ids(where, name, fields[name], vocab_size)
    return ()

  eos_ids = first("eos_token_id")
  start = first("decoder_start_token_id")
  merged = {}
  origins = {}
  # generation_config.json overwrites config.json.
  for file, fields in reversed(sources):
    present = {name: value for name, value in fields.items() if value is not None}
    merged |= present
    origins |= dict.fromkeys(present, file)
  padding = merged.get("pad_token_id")
  pads = (0, padding) if is_whole(padding, 1) else (0,)
  return Generation(
    eos_ids,
    start[0] if start else None,
    _unusual(merged, _CHOICES),
    _unusual(merged, _CHANGES),
    origins,
    # An end token is no padding, because inputs may need the token.
    tuple(token for token in pads if token not in eos_ids),
  )


def _ids(where: str, name: str, value: Any, vocab_size: int | None) -> tuple[int, ...]:
  """Returns a token id, or a list of token ids, as a tuple."""
  ids = value if isinstance(value, list) else [value]
  may_be_list = name == "eos_token_id"
  is_single = len(ids) == 1 or (may_be_list and ids)
  if not is_single or not all(is_whole(x, 0) for x in ids):
    several = ", or a list of token ids" if may_be_list else ""
    raise ValueError(
      f"{where}: {name} must be a token id{several}, got {value!r}. Correct the file."
    )
  outside = [x for x in ids if vocab_size is not None and x >= vocab_size]
  if outside:
    raise ValueError(
      f"{where}: {name} must be below the network's vocab_size {vocab_size}, got "
      f"{value!r}. Correct the file."
    )
  return tuple(dict.fromkeys(ids))


def _unusual(fields: Mapping[str, Any], neutral: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings of `fields` that differ from the neutral values."""
  empty = ([], {}, "", None)
  return {
    name: fields[name]
    for name, neutral_value in neutral.items()
    if name in fields and fields[name] not in empty and fields[name] != neutral_value
  }
