"""Decoding as programs to be timed: the one contact with how a decode is set up."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jaxtyping import Array, Int, Key

from specdec_t5x import api, tuning
from specdec_t5x.api import Model
from specdec_t5x.bench.iteration import NEVER, part_programs, plain_program
from specdec_t5x.bench.timed import Loop
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoders import Decoder, PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.quantized import Quantized
from specdec_t5x.network.functional import Network
from specdec_t5x.network.sizes import random_params, t5_1_1
from specdec_t5x.network.transformer import Transformer

BATCH = 16  # Inputs at once, where nothing is timed.
# The most repetitions that are timed: of an iteration, of a plain token. A loop that
# does not run at all leaves what happens once a call.
_ITERATIONS, _TOKENS = 10, 32
# Drafts that are the target itself, rounded: bits, and inputs that share a scale.
ROUNDED = {"int8": (8, 0), "int4": (4, 0), "int4/32": (4, 32)}
_PART = (2, 10)  # Repetitions of a part that are timed beside each other.


@dataclasses.dataclass(frozen=True)
class Decode:
  """A way to decode with everything that it needs but the inputs.

  Attributes:
    decoder: networks, and how they are used.
    params: of the networks by name, on the device.
    sampling: the adjustment of all distributions.
    max_length: most tokens of an output.
    eos_id: the token that ends one.
  """

  decoder: Decoder
  params: Any
  sampling: Sampling
  max_length: int
  eos_id: int = NEVER

  def __call__(self, inputs: Int[Array, "B E"], keys: Key[Array, "B"]) -> Decoded:
    """Decodes a batch."""
    known = self.sampling, self.max_length, self.eos_id
    return api.compiled(self.decoder, *known)(self.params, inputs, keys)

  def start(self, *given: Any):
    """Returns how to decode and the loop's first state, from `given`'s arrays."""
    return self.decoder.prepare(*given, self.sampling, self.max_length, self.eos_id)

  def given(self, inputs: Int[Array, "B E"]) -> tuple[Any, ...]:
    """Returns what programs of some inputs take: parameters, inputs and keys."""
    return self.params, inputs, row_keys(jax.random.key(0), inputs.shape[0])

  def part(self, name: str = "iteration") -> Callable[..., Any]:
    """Returns a compiled program (count, *given) that repeats a part.

    Args:
      name: as in `iteration.part_programs`; plain decoding has iterations alone.
    """
    endless = dataclasses.replace(self, eos_id=NEVER)
    if isinstance(self.decoder, PlainDecoder):
      return plain_program(endless.start)
    return part_programs(endless.start)[name]

  def loop(self, inputs: Int[Array, "B E"], name: str = "iteration") -> Loop:
    """Returns a part that is to be timed, on some inputs."""
    counts = _PART
    if isinstance(self.decoder, PlainDecoder):
      counts = 0, min(_TOKENS, self.max_length)
    elif name == "iteration":
      fit = self.max_length // (self.decoder.drafter.tree.depth + 1)
      counts = 0, max(1, min(_ITERATIONS, fit))
    return self.part(name), self.given(inputs), counts


@functools.cache
def random_model(size: str, dtype: str = "float32", weights: str = "float32") -> Model:
  """Returns a network of one of `network.sizes.SIZES` with random weights.

  Each is made once a process.

  Args:
    size: of the network.
    dtype: of parameters and activations.
    weights: 'int8' rounds the same random weights.
  """
  config = t5_1_1(size, dtype)
  if weights == "float32":
    network = Transformer(config)
    return Model(network, random_params(network, 0))
  network = Transformer(dataclasses.replace(config, weights=weights))
  return Model(network, tuning.in_weights(network, random_model(size, dtype).params))


def paired(target: Network, draft: Network | str | None, gamma: int = 0) -> Decoder:
  """Returns what decodes with a draft: a model, or by name one of `ROUNDED`.

  Without one it decodes plainly, in blocks where gamma is.
  """
  if draft is None:
    return PlainDecoder(target, block=gamma or 1)
  if isinstance(draft, str):
    return SpeculativeDecoder(target, Quantized(*ROUNDED[draft], gamma=gamma))
  return SpeculativeDecoder(target, DraftModel(draft, gamma))


def input_keys(count: int) -> list[Key[Array, "1"]]:
  """Returns the keys of inputs at batch 1: an input's draws are its own."""
  return [row_keys(jax.random.key(number), 1) for number in range(count)]


def batches(
  decode: Decode, ids: Sequence[Sequence[int]], batch: int = BATCH, seed: int = 0
) -> Iterator[tuple[Int[Array, "B E"], Decoded, int]]:
  """Yields batches of inputs, their decodes, and how many rows of each count."""
  for first, texts, count in api.padded_batches(ids, batch):
    yield texts, decode(texts, row_keys(jax.random.key(seed), batch, first)), count


def decoding_groups(
  decode: Decode, at_once: int
) -> Callable[[tuple[int, Int[Array, "B E"]]], list[Decoded]]:
  """Returns the program that decodes a group of inputs, so many of them at once.

  Each batch is told what the one before left.
  """
  known = decode.sampling, decode.max_length, decode.eos_id

  def decode_batch(decoder, params, inputs, keys, told):
    return decoder.decode(params, inputs, keys, *known, **told)

  run = jax.jit(decode_batch, static_argnums=0)

  def decode_group(group):
    first, inputs = group
    told, found = {}, []
    job = tuning.Job(decode.decoder, at_once, inputs.shape[1], *known[:2])
    tuned = tuning.tuned(job, decode.params)
    if tuned.drafter is not None:
      told = {"policy_state": tuned.first_policy_state(at_once)}
    for i in range(0, len(inputs), at_once):
      keys = row_keys(jax.random.key(0), at_once, first + i)
      found.append(run(tuned, decode.params, inputs[i : i + at_once], keys, told))
      told = {"policy_state": found[-1].policy_state} if told else {}
    return found

  return decode_group
