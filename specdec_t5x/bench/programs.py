"""Decoding as programs to be timed: the one contact with how a decode is set up."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import Array, Int, Key

from specdec_t5x import api, assemble
from specdec_t5x.api import Model
from specdec_t5x.bench import costs, parts
from specdec_t5x.bench.parts import NEVER
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding import baseline, generate
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.drafters.oracle import oracle_extend
from specdec_t5x.network.sizes import random_params, t5_1_1
from specdec_t5x.network.transformer import Transformer

Decoding = Callable[[Int[Array, "B E"], Key[Array, "B"]], Decoded]


def random_model(size: str, seed: int, dtype: str = "float32") -> Model:
  """Returns a network of one of `network.sizes.SIZES` with random weights."""
  network = Transformer(t5_1_1(size, dtype))
  return Model(network, random_params(network, seed))


def together(target: Model, draft: Model | None, gamma: int, **settings):
  """Returns what decodes, and its parameters on the device: see `api.together`."""
  network, params = api.together(target, draft, gamma, **settings)
  return network, jax.device_put(params)


def setting(drafter: str, lenience: float = 1.0) -> dict[str, Any]:
  """Returns the settings of a way to draft, exact unless `lenience` is below 1."""
  # A model drafts by default, which leaves plain decoding without settings.
  settings = {} if drafter == "draft_model" else {"drafter": drafter}
  lenient = {"verification": "lenient", "lenience": lenience}
  return settings if lenience == 1.0 else settings | lenient


def copying(match: int) -> dict[str, Any]:
  """Returns the settings of the copy draft: the least match."""
  return {**setting("copy"), "copy_match": match}


def confident(confidence: float) -> dict[str, Any]:
  """Returns the settings of drafts that end after an unlikely token."""
  return {"gamma_policy": "confidence", "confidence": confidence}


def online(found: dict[str, Any]) -> dict[str, Any]:
  """Returns the settings of drafts as long as `costs.online_settings` says is best."""
  return {"gamma_policy": "online", **found}


def decoding(network, params, sampling: Sampling, room: int, eos_id: int) -> Decoding:
  """Returns the program that decodes, plainly or with speculation.

  Args:
    network: from `together`.
    params: from `together`.
    sampling: the adjustment of both laws.
    room: for the output, in tokens.
    eos_id: the token that ends it; a negative one never comes.
  """
  run = api.compiled(network, sampling, room, eos_id)
  return lambda inputs, keys: run(params, inputs, keys)


def input_keys(count: int) -> list[Key[Array, "1"]]:
  """Returns the keys of inputs at batch 1: an input's draws are its own."""
  return [row_keys(jax.random.key(number), 1) for number in range(count)]


def prepare_oracle(pair: assemble.Pair, room: int, eos_id: int = NEVER):
  """Returns the start of greedy decoding with a draft that says what it is told.

  A function of (forced [B, T], params, inputs, keys): see `drafters.oracle`.
  """

  def prepare(forced, params, inputs, keys):
    spec, state = assemble.prepare(pair, params, inputs, keys, GREEDY, room, eos_id)
    extend = oracle_extend(spec.drafter.extend, forced)
    drafter = dataclasses.replace(spec.drafter, extend=extend)
    return dataclasses.replace(spec, drafter=drafter), state

  return prepare


def oracle(pair: assemble.Pair, room: int, eos_id: int = NEVER):
  """Returns a compiled function of (forced, params, inputs, keys) that decodes."""
  prepare = prepare_oracle(pair, room, eos_id)
  return jax.jit(lambda *arguments: generate.generate(*prepare(*arguments)))


def replay(target: Model, room: int, eos_id: int, settings: dict[str, Any] | None):
  """Returns greedy decoding of a target that is made to say a given output.

  Args:
    target: runs in full; its argmax is bent.
    room: for the output, in tokens.
    eos_id: the token that ends it.
    settings: gamma and those of the copy draft; None decodes plainly.

  Returns:
    A function of a pair: inputs [1, E], outputs [1, T].
  """
  (keys,) = input_keys(1)
  if settings is not None:
    pair, params = together(target, None, **settings)

    @jax.jit
    def run(params, inputs, outputs):
      spec, state = assemble.prepare(pair, params, inputs, keys, GREEDY, room, eos_id)
      extend = oracle_extend(spec.extend, outputs)
      return generate.generate(dataclasses.replace(spec, extend=extend), state)

  else:
    params = target.params

    @jax.jit
    def run(params, inputs, outputs):
      extend, state = assemble.prepare_plain(target.network, params, inputs, keys, room)
      extend = oracle_extend(extend, outputs)
      return baseline.generate_plain(extend, GREEDY, state, room, eos_id)

  return lambda text: run(params, *text)


def pair_costs(
  pairs: Sequence[assemble.Pair],
  params,
  inputs: jax.Array,
  sampling: Sampling,
  room: int,
  runs: int = 15,
) -> dict[int, costs.Costs]:
  """Times the parts of a real pair's decoding, plain and with speculation, in turn.

  Args:
    pairs: the same networks with one gamma each, and a rule that judges one draft.
    params: of both, as `together` gives them.
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
  prepare: Callable[[assemble.Pair], parts.Prepare] = lambda pair: (
    lambda *args: assemble.prepare(pair, *args, sampling, room, NEVER)
  )
  return costs.measure(
    {pair.gamma: prepare(pair) for pair in pairs},
    lambda *args: assemble.prepare_plain(pairs[0].target, *args, room),
    (params, inputs, keys),
    (params["target"], inputs, keys),
    sampling=sampling,
    room=room,
    runs=runs,
  )
