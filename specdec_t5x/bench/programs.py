"""Decoding as programs to be timed: the one contact with how a decode is set up."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import Array, Int, Key

from specdec_t5x import api
from specdec_t5x.api import Model
from specdec_t5x.bench import costs, parts
from specdec_t5x.bench.parts import NEVER
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding import baseline, generate
from specdec_t5x.decoding.decoders import Decoder, PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.drafters.oracle import oracle_extend
from specdec_t5x.network.sizes import random_params, t5_1_1
from specdec_t5x.network.transformer import Transformer

Decoding = Callable[[Int[Array, "B E"], Key[Array, "B"]], Decoded]


def random_model(size: str, seed: int, dtype: str = "float32") -> Model:
  """Returns a network of one of `network.sizes.SIZES` with random weights."""
  network = Transformer(t5_1_1(size, dtype))
  return Model(network, random_params(network, seed))


def together(
  target: Model, draft: Model | None = None, *parts: Any, **words: Any
) -> tuple[Decoder, Any]:
  """Returns what decodes, and its parameters on the device: see `api.together`."""
  decoder, params = api.together(target, draft, *parts, **words)
  return decoder, jax.device_put(params)


def decoding(
  decoder: Decoder, params, sampling: Sampling, room: int, eos_id: int
) -> Decoding:
  """Returns the program that decodes, plainly or with speculation.

  Args:
    decoder: from `together`.
    params: from `together`.
    sampling: the adjustment of both laws.
    room: for the output, in tokens.
    eos_id: the token that ends it; a negative one never comes.
  """
  run = api.compiled(decoder, sampling, room, eos_id)
  return lambda inputs, keys: run(params, inputs, keys)


def input_keys(count: int) -> list[Key[Array, "1"]]:
  """Returns the keys of inputs at batch 1: an input's draws are its own."""
  return [row_keys(jax.random.key(number), 1) for number in range(count)]


def prepare_oracle(decoder: SpeculativeDecoder, room: int, eos_id: int = NEVER):
  """Returns the start of greedy decoding with a draft that says what it is told.

  A function of (forced [B, T], params, inputs, keys): see `drafters.oracle`.
  """

  def prepare(forced, params, inputs, keys):
    spec, state = decoder.prepare(params, inputs, keys, GREEDY, room, eos_id)
    extend = oracle_extend(spec.context.extend["draft"], forced)
    context = dataclasses.replace(spec.context, extend={"draft": extend})
    return dataclasses.replace(spec, context=context), state

  return prepare


def oracle(decoder: SpeculativeDecoder, room: int, eos_id: int = NEVER):
  """Returns a compiled function of (forced, params, inputs, keys) that decodes."""
  prepare = prepare_oracle(decoder, room, eos_id)
  return jax.jit(lambda *arguments: generate.generate(*prepare(*arguments)))


def replay(target: Model, room: int, eos_id: int, drafter: Drafter | None):
  """Returns greedy decoding of a target that is made to say a given output.

  Args:
    target: runs in full; its argmax is bent.
    room: for the output, in tokens.
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
    spec, state = decoder.prepare(params, inputs, keys, GREEDY, room, eos_id)
    extend = oracle_extend(spec.context.target, outputs)
    context = dataclasses.replace(spec.context, target=extend)
    return generate.generate(dataclasses.replace(spec, context=context), state)

  return lambda text: run(params, *text)


def pair_costs(
  decoders: Sequence[SpeculativeDecoder],
  params,
  inputs: jax.Array,
  sampling: Sampling,
  room: int,
  runs: int = 15,
) -> dict[int, costs.Costs]:
  """Times the parts of a real pair's decoding, plain and with speculation, in turn.

  Args:
    decoders: of the same networks, each with a chain of another gamma.
    params: of all, as `together` gives them.
    inputs: encoder tokens [B, E], zero-padded.
    sampling: the adjustment of both laws.
    room: for the output, in tokens.
    runs: of every program.

  Returns:
    By gamma.

  Raises:
    ValueError: where there is no room for an iteration, or times are lost in noise.
  """
  keys = row_keys(jax.random.key(0), inputs.shape[0])
  prepare: Callable[[SpeculativeDecoder], parts.Prepare] = lambda decoder: (
    lambda *args: decoder.prepare(*args, sampling, room, NEVER)
  )
  plain = PlainDecoder(decoders[0].target)
  return costs.measure(
    {decoder.drafter.tree.size: prepare(decoder) for decoder in decoders},
    lambda *args: plain.prepare(*args, room),
    (params, inputs, keys),
    sampling=sampling,
    room=room,
    runs=runs,
  )
