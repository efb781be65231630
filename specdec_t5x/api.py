"""Decoding from Python, without gin or seqio tasks: a notebook's way in."""

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece
from jaxtyping import Array, Int

from specdec_t5x import assemble
from specdec_t5x.core.checks import check_decoded, is_whole
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.distributions import Sampling as Sampling
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.network.config import NetworkConfig
from specdec_t5x.network.functional import (
  Network,
  is_decoder_only,
  network_config,
  network_for,
)
from specdec_t5x.network.ngram import NgramConfig, NgramTable

DecodeFn = Callable[[Any, jax.Array, jax.Array], Decoded]

# Inputs are padded to multiples of this, so that few shapes are compiled.
_LENGTH_STEP = 16


@dataclasses.dataclass(frozen=True)
class Model:
  """A network with its parameters; `load_model` makes one."""

  network: Network
  params: Any


@dataclasses.dataclass(frozen=True)
class Generation:
  """One output and what it took.

  Attributes:
    text: the decoded output.
    tokens: its ids, end of sequence included.
    score: its log-probability under the target's adjusted law.
    target_calls: calls of the target.
    drafted: drafted tokens that counted.
    accepted: drafted tokens in the output.
  """

  text: str
  tokens: list[int]
  score: float
  target_calls: int
  drafted: int
  accepted: int


def load_model(
  checkpoint: str,
  dtype: str = "float32",
  config: NetworkConfig | NgramConfig | None = None,
) -> Model:
  """Loads a checkpoint, in T5X's format or Orbax's, on this machine's devices.

  It may be an encoder-decoder's, a decoder-only network's or a table of n-grams.

  Args:
    checkpoint: its folder.
    dtype: of parameters and activations.
    config: the network's; by default read off the parameters' shapes, with T5 1.1's
      gated GELU where the feed-forward layer is gated and T5 1.0's ReLU where not.

  Raises:
    ValueError: where there is no checkpoint, it is damaged or does not fit `config`.
  """
  from specdec_t5x.t5x_bridge import checkpoint as checkpoints

  shapes = checkpoints.parameter_shapes(checkpoint)
  network = network_for(config or network_config(shapes, dtype))
  return Model(network, checkpoints.load(checkpoint, network, dtype))


def generate(
  inputs: Sequence[str],
  target: Model,
  draft: Model | None,
  vocabulary: str,
  *,
  gamma: int = 5,
  sampling: Sampling = GREEDY,
  max_length: int = 128,
  batch_size: int = 16,
  seed: int = 0,
  **speculation,
) -> list[Generation]:
  """Decodes texts from a target with the help of a draft.

  The outputs are the target's own, token for token when greedy, in law when sampled,
  unless `verification` is 'lenient' or 'typical', of which a warning reminds.

  Args:
    inputs: texts, with whatever prefix the models were trained with; the prompts that
      a decoder-only target goes on from, which may be empty.
    target: the model whose law is kept.
    draft: the model that drafts, or a table of n-grams; None decodes one token a call,
      or copies with drafter="copy".
    vocabulary: path of the SentencePiece model that both were trained with.
    gamma: length of a draft, in tokens; at most max_length - 1.
    sampling: temperature, top-k, top-p.
    max_length: room for an output, in tokens.
    batch_size: inputs decoded at once, where there are as many.
    seed: of the sampling; an input's samples depend on it and the input's place in
      `inputs`, not on batch_size.
    **speculation: further settings of `assemble.Pair`, such as verification="block" or
      gamma_policy="confidence".

  Raises:
    ValueError: where a setting is bad, target and draft differ in vocabulary, or the
      logits of an input are NaN.
  """
  _check_request(inputs, vocabulary, batch_size=batch_size, max_length=max_length)
  processor = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
  # A prompt goes on; what an encoder reads ends.
  end = [] if is_decoder_only(target.network) else [processor.eos_id()]
  ids = [[*processor.encode(text), *end] for text in inputs]
  network, params = together(target, draft, gamma, **speculation)
  if isinstance(network, assemble.Pair):
    network.check_room(max_length)
    guarantee = network.rule(sampling)[0].guarantee
    if not guarantee.keeps_the_law:
      message = f"{guarantee.name}: the outputs keep {guarantee.value}."
      warnings.warn(message, stacklevel=2)
  run = compiled(network, sampling, max_length, processor.eos_id())
  outputs, rows = [], min(batch_size, max(len(ids), 1))
  # 32 bits, under jax_enable_x64 too: the same numbers, and so the same outputs.
  with jax.enable_x64(False):
    for first, inputs, count in padded_batches(ids, rows):
      decoded = run(params, inputs, row_keys(jax.random.key(seed), rows, first))
      results = decoded.scores, decoded.statistics.acceptance_mass
      check_decoded(
        *(array[:count] for array in results),
        lambda row, first=first: f"input {first + row}",
      )
      outputs += list(_generations(decoded, processor))[:count]
  return outputs


def _check_request(inputs, vocabulary: str, **counts) -> None:
  """Raises a ValueError where `generate` can't begin."""
  if not os.path.isfile(vocabulary):
    raise ValueError(
      f"vocabulary={vocabulary!r} is not a file. Expected the SentencePiece model that "
      "target and draft were trained with."
    )
  if isinstance(inputs, str):
    raise ValueError("inputs must be a list of texts, got one text. Wrap it in [...].")
  for name, value in counts.items():
    if not is_whole(value, 1):
      raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")


def padded_batches(
  ids: Sequence[Sequence[int]], batch_size: int
) -> Iterator[tuple[int, Int[Array, "B E"], int]]:
  """Yields inputs as batches of one shape.

  Args:
    ids: the inputs' tokens.
    batch_size: rows of a batch; a last one that is not full repeats its first input.

  Yields:
    The number of the batch's first input, the batch, and how many of its rows count.
  """
  longest = max(map(len, ids), default=0)
  length = -(-longest // _LENGTH_STEP) * _LENGTH_STEP
  for first in range(0, len(ids), batch_size):
    batch = ids[first : first + batch_size]
    rows = np.zeros((batch_size, length), np.int32)
    for row, tokens in zip(rows, batch, strict=False):
      row[: len(tokens)] = tokens
    rows[len(batch) :] = rows[0]
    yield first, jnp.asarray(rows), len(batch)


def together(
  target: Model, draft: Model | None, gamma: int, **settings
) -> tuple[assemble.Pair | Network, Any]:
  """Returns the network or pair that decodes, and its parameters.

  Args:
    target: the model whose law is kept.
    draft: the model that drafts, or a table of n-grams; None for plain decoding, or
      with drafter="copy".
    gamma: length of a draft, in tokens.
    **settings: further ones of `assemble.Pair`.

  Raises:
    ValueError: where settings of speculation are given without a draft.
  """
  if settings.get("drafter") == "copy":
    network = draft and draft.network
    pair = assemble.Pair(target.network, network, gamma, **settings)
    return pair, {"target": target.params}
  if draft is None:
    if settings:
      raise ValueError(
        f"{settings} need a draft, got None. Give one, or leave them out."
      )
    return target.network, target.params
  if isinstance(draft.network, NgramTable):
    settings = {"drafter": "ngram", **settings}
  pair = assemble.Pair(target.network, draft.network, gamma, **settings)
  return pair, {"target": target.params, "draft": draft.params}


@functools.lru_cache(maxsize=16)
def compiled(
  network: assemble.Pair | Network, sampling: Sampling, max_length: int, eos_id: int
) -> DecodeFn:
  """Returns the decoding program: (params, inputs [B, E], keys [R]) -> Decoded.

  It is compiled once for each combination of settings, whatever the parameters.
  """
  decode = (
    assemble.decode if isinstance(network, assemble.Pair) else (assemble.decode_plain)
  )
  return jax.jit(
    lambda params, inputs, keys: decode(
      network, params, inputs, keys, sampling, max_length, eos_id
    )
  )


def _generations(decoded, processor):
  info = decoded.statistics
  columns = (
    decoded.tokens,
    info.emitted,
    decoded.scores,
    info.target_calls,
    info.drafted,
    info.accepted,
  )
  for tokens, length, score, *counts in zip(*map(np.asarray, columns), strict=True):
    tokens = tokens[:length].tolist()
    # Rows of padding beyond the vocabulary have no piece.
    known = [token for token in tokens if token < processor.vocab_size()]
    text = processor.decode(known)
    yield Generation(text, tokens, float(score), *map(int, counts))
