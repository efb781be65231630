"""Decoding as programs to be timed: the one contact with how a decode is set up."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from specdec_t5x import api, tuning
from specdec_t5x.api import Model
from specdec_t5x.bench.iteration import NEVER, part_programs, plain_program
from specdec_t5x.bench.timed import Loop
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding import baseline, generate
from specdec_t5x.decoding.decoders import Decoder, PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.oracle import oracle_extend
from specdec_t5x.network.functional import Network
from specdec_t5x.network.sizes import random_params, t5_1_1
from specdec_t5x.network.transformer import Transformer

BATCH = 16  # Inputs at once, where nothing is timed.
# The most repetitions that are timed: of an iteration, of a plain token. A loop that
# does not run at all leaves what happens once a call.
_ITERATIONS, _TOKENS = 10, 32
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
    known = (self.max_length,)
    if isinstance(self.decoder, SpeculativeDecoder):
      known = self.sampling, self.max_length, self.eos_id
    return self.decoder.prepare(*given, *known)

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
      return plain_program(endless.start, self.sampling, self.max_length)
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


def together(
  target: Model, draft: Any = None, *parts: Any, **words: Any
) -> tuple[Decoder, Any]:
  """Returns what decodes, and its parameters on the device: see `api.together`."""
  decoder, params = api.together(target, draft, *parts, **words)
  return decoder, jax.device_put(params)


def random_model(size: str, seed: int, dtype: str = "float32") -> Model:
  """Returns a network of one of `network.sizes.SIZES` with random weights."""
  network = Transformer(t5_1_1(size, dtype))
  return Model(network, random_params(network, seed))


def paired(target: Network, draft: Network | None, gamma: int = 0) -> Decoder:
  """Returns what decodes with a draft model, or plainly, in blocks where gamma is."""
  if draft is None:
    return PlainDecoder(target, block=gamma or 1)
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
    if isinstance(tuned, SpeculativeDecoder):
      told = {"policy_state": tuned.first_policy_state(at_once)}
    for i in range(0, len(inputs), at_once):
      keys = row_keys(jax.random.key(0), at_once, first + i)
      found.append(run(tuned, decode.params, inputs[i : i + at_once], keys, told))
      told = {"policy_state": found[-1].policy_state} if told else {}
    return found

  return decode_group


def oracle_start(decode: Decode):
  """Returns the start of greedy decoding with a draft that says what it is told.

  A function of (forced [B, T], params, inputs, keys): see `drafters.oracle`.
  """

  def start(forced, *given):
    spec, state = decode.start(*given)
    extend = oracle_extend(spec.context.extend["draft"], forced)
    return _of_context(spec, extend={"draft": extend}), state

  return start


def oracle(decode: Decode):
  """Returns a compiled function of (forced, params, inputs, keys) that decodes."""
  start = oracle_start(decode)
  return jax.jit(lambda *given: generate.generate(*start(*given)))


def replay(target: Model, max_length: int, eos_id: int, drafter: Drafter | None):
  """Returns greedy decoding of a target that is made to say a given output.

  Args:
    target: runs in full; its argmax is bent.
    max_length: most tokens of the output.
    eos_id: the token that ends it.
    drafter: one without a network; None decodes plainly.

  Returns:
    A function of a pair: inputs [1, E], outputs [1, T].
  """
  decode = Decode(*together(target, None, drafter), GREEDY, max_length, eos_id)

  @jax.jit
  def run(params, inputs, keys, outputs):
    how, state = decode.start(params, inputs, keys)
    if drafter is None:
      extend = oracle_extend(how, outputs)
      return baseline.generate_plain(extend, GREEDY, state, max_length, eos_id)
    extend = oracle_extend(how.context.target, outputs)
    return generate.generate(_of_context(how, target=extend), state)

  return lambda text: run(*decode.given(text[0]), text[1])


@dataclasses.dataclass(frozen=True)
class Standing:
  """An observer that counts iterations by how many tokens of their draft stood.

  Attributes:
    gamma: most tokens of a draft.
  """

  gamma: int

  def start(self, rows: int, max_length: int) -> Float[Array, "B N"]:
    """Returns no counts, for 0 to gamma tokens."""
    del max_length
    return jnp.zeros((rows, self.gamma + 1))

  def observe(self, kept: Float[Array, "B N"], before: Any, iteration: Any):
    """Returns the counts with one more iteration's."""
    del before
    # An end among the accepted ones takes no token after it.
    return kept + jax.nn.one_hot(iteration.info.emitted - 1, self.gamma + 1)


def standing(decode: Decode, gamma: int):
  """Returns a compiled function of (params, inputs, keys): how many drafts stood.

  Of a chain of gamma tokens, by how many of it stood [gamma + 1].
  """

  @jax.jit
  def run(*given):
    decoded = generate.generate(*decode.start(*given), observe=Standing(gamma))
    return decoded.observed.sum(axis=0)

  return run


def counting_calls(decode: Decode):
  """Returns a compiled function of (count, params, inputs, keys).

  It decodes for at most so many iterations, and also returns the calls of the networks
  between the target and the lowest draft, from above.
  """

  @jax.jit
  def run(count, *given):
    how, state = decode.start(*given)
    loop, kept = generate.at_most(count), []

    def keeping(*how):
      kept.append(loop(*how))
      return kept[-1]

    if isinstance(decode.decoder, PlainDecoder):
      known = decode.sampling, state, decode.max_length, decode.eos_id
      decoded = baseline.generate_plain(how, *known, loop=keeping)
    else:
      decoded = generate.generate(how, state, keeping)
    return decoded, _calls(kept[-1].state.drafter_state)

  return run


def _of_context(spec, **fields):
  context = dataclasses.replace(spec.context, **fields)
  return dataclasses.replace(spec, context=context)


def _calls(drafter_state) -> tuple[jax.Array, ...]:
  if not hasattr(drafter_state, "calls"):
    return ()
  return (drafter_state.calls, *_calls(drafter_state.lower))
