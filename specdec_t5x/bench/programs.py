"""Decoding as programs to be timed: the one contact with how a decode is set up."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from specdec_t5x import api, tuning
from specdec_t5x.api import Model
from specdec_t5x.bench import timed
from specdec_t5x.bench.iteration import NEVER, Prepare, PreparePlain
from specdec_t5x.build import together
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding import baseline, generate
from specdec_t5x.decoding.decoders import Decoder, PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.layer_skip import LayerSkip
from specdec_t5x.drafters.oracle import oracle_extend
from specdec_t5x.network.functional import Network
from specdec_t5x.network.sizes import random_params, t5_1_1
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.policies import Confidence, CostAware

Decoding = Callable[[Int[Array, "B E"], Key[Array, "B"]], Decoded]
_BATCH = 16  # Inputs at once, where nothing is timed.


def random_model(size: str, seed: int, dtype: str = "float32") -> Model:
  """Returns a network of one of `network.sizes.SIZES` with random weights."""
  network = Transformer(t5_1_1(size, dtype))
  return Model(network, random_params(network, seed))


def paired(target: Network, draft: Network | None, gamma: int = 0) -> Decoder:
  """Returns what decodes with a draft model, or plainly, in blocks where gamma is."""
  if draft is None:
    return PlainDecoder(target, block=gamma or 1)
  return SpeculativeDecoder(target, DraftModel(draft, gamma))


def skipping(skip: Sequence[str], gamma: int) -> Drafter:
  """Returns what has the target draft for itself without some sublayers."""
  return LayerSkip(skip, gamma)


def lengths(
  gammas: Sequence[int],
  longest: int,
  confidences: Sequence[float],
  seconds: Sequence[float],
) -> dict[str, dict[str, Any]]:
  """Returns by name what `together` takes for each way to choose drafts' lengths."""
  policies = {f"confidence {each}": Confidence(each) for each in confidences}
  policies["auto"] = CostAware(seconds)
  fixed = {f"fixed {gamma}": {"gamma": gamma} for gamma in gammas}
  return fixed | {n: {"gamma": longest, "policy": p} for n, p in policies.items()}


def decoding(
  decoder: Decoder, params, sampling: Sampling, room: int, eos_id: int
) -> Decoding:
  """Returns the program that decodes, plainly or with speculation."""
  run = api.compiled(decoder, sampling, room, eos_id)
  return lambda inputs, keys: run(params, inputs, keys)


def decoding_groups(
  decoder: Decoder, params, sampling: Sampling, room: int, eos_id: int, at_once: int
) -> Callable[[tuple[int, Int[Array, "B E"]]], list[Decoded]]:
  """Returns the program that decodes a group of inputs, so many of them at once.

  Each batch is told what the one before left.
  """

  def decode_batch(decoder, params, inputs, keys, told):
    return decoder.decode(params, inputs, keys, sampling, room, eos_id, **told)

  run = jax.jit(decode_batch, static_argnums=0)

  def decode(group):
    first, inputs = group
    told, found = {}, []
    job = tuning.Job(decoder, at_once, inputs.shape[1], sampling, room)
    tuned = tuning.tuned(job, params)
    if isinstance(decoder, SpeculativeDecoder):
      told = {"policy_state": decoder.first_policy_state(at_once)}
    for i in range(0, len(inputs), at_once):
      keys = row_keys(jax.random.key(0), at_once, first + i)
      found.append(run(tuned, params, inputs[i : i + at_once], keys, told))
      told = {"policy_state": found[-1].policy_state} if told else {}
    return found

  return decode


def input_keys(count: int) -> list[Key[Array, "1"]]:
  """Returns the keys of inputs at batch 1: an input's draws are its own."""
  return [row_keys(jax.random.key(number), 1) for number in range(count)]


def batches(
  run: Decoding, ids: Sequence[Sequence[int]], batch: int = _BATCH, seed: int = 0
) -> Iterator[tuple[Int[Array, "B E"], Decoded, int]]:
  """Yields batches of inputs, their decodes, and how many rows of each count."""
  for first, texts, count in api.padded_batches(ids, batch):
    yield texts, run(texts, row_keys(jax.random.key(seed), batch, first)), count


def start(
  decoder: SpeculativeDecoder, sampling: Sampling, room: int, eos_id: int = NEVER
) -> Prepare:
  """Returns what gets a decode's loop ready, from (params, inputs, keys)."""
  return lambda *given: decoder.prepare(*given, sampling, room, eos_id)


def plain_start(decoder: PlainDecoder, room: int) -> PreparePlain:
  """Returns the same of plain decoding."""
  return lambda *given: decoder.prepare(*given, room)


def oracle_start(decoder: SpeculativeDecoder, room: int, eos_id: int = NEVER):
  """Returns the start of greedy decoding with a draft that says what it is told.

  A function of (forced [B, T], params, inputs, keys): see `drafters.oracle`.
  """

  def prepare(forced, *given):
    spec, state = start(decoder, GREEDY, room, eos_id)(*given)
    extend = oracle_extend(spec.context.extend["draft"], forced)
    return _of_context(spec, extend={"draft": extend}), state

  return prepare


def oracle(decoder: SpeculativeDecoder, room: int, eos_id: int = NEVER):
  """Returns a compiled function of (forced, params, inputs, keys) that decodes."""
  prepare = oracle_start(decoder, room, eos_id)
  return jax.jit(lambda *given: generate.generate(*prepare(*given)))


def replay(target: Model, room: int, eos_id: int, drafter: Drafter | None):
  """Returns greedy decoding of a target that is made to say a given output.

  Args:
    target: runs in full; its argmax is bent.
    room: most tokens of the output.
    eos_id: the token that ends it.
    drafter: one without a network; None decodes plainly.

  Returns:
    A function of a pair: inputs [1, E], outputs [1, T].
  """
  (keys,) = input_keys(1)
  decoder, params = together(target, None, drafter)

  @jax.jit
  def run(params, inputs, outputs):
    if drafter is None:
      extend, state = decoder.prepare(params, inputs, keys, room)
      extend = oracle_extend(extend, outputs)
      return baseline.generate_plain(extend, GREEDY, state, room, eos_id)
    spec, state = start(decoder, GREEDY, room, eos_id)(params, inputs, keys)
    extend = oracle_extend(spec.context.target, outputs)
    return generate.generate(_of_context(spec, target=extend), state)

  return lambda text: run(params, *text)


def standing(
  decoder: SpeculativeDecoder, sampling: Sampling, room: int, eos_id: int, gamma: int
):
  """Returns a compiled function of (params, inputs, keys): how many drafts stood.

  Of a chain of gamma tokens, by how many of it stood [gamma + 1].
  """

  @jax.jit
  def run(*given):
    counted = []

    def loop(go_on, body, carry):
      def iterate(both):
        carry, counts = both
        new = body(carry)
        # An end among the accepted ones takes no token after it.
        stood = new.state.lengths - carry.state.lengths - 1
        return new, counts + jax.nn.one_hot(stood, gamma + 1).sum(axis=0)

      first = carry, jnp.zeros(gamma + 1)
      carry, counts = jax.lax.while_loop(lambda both: go_on(both[0]), iterate, first)
      counted.append(counts)
      return carry

    generate.generate(*start(decoder, sampling, room, eos_id)(*given), loop)
    return counted[-1]

  return run


def counting_calls(decoder: Decoder, sampling: Sampling, room: int, eos_id: int):
  """Returns a compiled function of (count, params, inputs, keys).

  It decodes for at most so many iterations, and also returns the calls of the networks
  between the target and the lowest draft, from above.
  """

  @jax.jit
  def run(count, *given):
    loop = generate.at_most(count)
    if isinstance(decoder, PlainDecoder):
      extend, state = plain_start(decoder, room)(*given)
      plain = baseline.generate_plain
      return plain(extend, sampling, state, room, eos_id, loop=loop), ()
    kept = []

    def keeping(*how):
      kept.append(loop(*how))
      return kept[-1]

    begin = start(decoder, sampling, room, eos_id)(*given)
    decoded = generate.generate(*begin, keeping)
    return decoded, _calls(kept[-1].state.drafter_state)

  return run


def pair_costs(
  decoders: Sequence[SpeculativeDecoder],
  params,
  inputs: jax.Array,
  sampling: Sampling,
  room: int,
  runs: int = 15,
) -> dict[int, timed.Costs]:
  """Times the parts of a real pair's decoding, plain and with speculation, in turn.

  Returns:
    By gamma.

  Raises:
    ValueError: where not one iteration fits, or times are lost in noise.
  """
  keys = row_keys(jax.random.key(0), inputs.shape[0])
  return timed.measure_costs(
    {each.drafter.tree.size: start(each, sampling, room) for each in decoders},
    plain_start(PlainDecoder(decoders[0].target), room),
    (params, inputs, keys),
    sampling=sampling,
    room=room,
    runs=runs,
  )


def _of_context(spec, **fields):
  context = dataclasses.replace(spec.context, **fields)
  return dataclasses.replace(spec, context=context)


def _calls(drafter_state) -> tuple[jax.Array, ...]:
  if not hasattr(drafter_state, "calls"):
    return ()
  return (drafter_state.calls, *_calls(drafter_state.lower))
