"""Pairs of random networks with a set acceptance rate, to measure time.

Both networks run in full at every step. Then the logits are bent towards tokens chosen
beforehand: the target's logits to a given text, the draft's logits to the same text at
the accepted positions. Walltime at a given alpha can thus be measured with any weights
and in any dtype, even in bfloat16, in which a target's argmax depends on the shape of a
call. An oracle needs the output in advance, so it is no way to decode.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, MutableMapping
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from benchmarks.sizes import VOCAB_SIZE, random_params, t5_1_1
from benchmarks.study import Decode
from benchmarks.timed import Loop, Program, iterated
from specdec_t5x import prepared
from specdec_t5x.api import Model
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.types import DraftFn, ExtendFn
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.of_target import Quantized
from specdec_t5x.network.functional import Network
from specdec_t5x.network.transformer import Transformer

FEW = 2  # The smaller of the two counts of iterations.
# Drafts made by rounding the target: bits, and the number of inputs that share a scale.
ROUNDED = {"int8": (8, 0), "int4": (4, 0), "int4/32": (4, 32)}
# The margin of a forced token's logit over all other logits. Up to MOST_TEMPERATURE the
# softmax is one-hot in float32.
_MARGIN = 1e4
MOST_TEMPERATURE = 10.0


def oracle_extend(extend: ExtendFn, forced: Int[Array, "B T"]) -> ExtendFn:
  """Returns `extend` with all mass on forced[:, i] at output position i.

  The distribution is one-hot up to `MOST_TEMPERATURE`. Beyond T the last token repeats.
  """

  def bent(cache, tokens, *block):
    # The token at slot i (the start token has slot 0) predicts output position i.
    output_positions = cache.index[:, None] + jnp.arange(tokens.shape[1])
    # A target of a fixed width takes no positions and no tree.
    logits, features, cache = extend(cache, tokens, *block)
    chosen = jnp.take_along_axis(forced, output_positions, axis=1, mode="clip")
    rows, columns = jnp.indices(chosen.shape)
    largest = logits.max(axis=-1) + _MARGIN
    return logits.at[rows, columns, chosen].set(largest), features, cache

  return bent


def oracle_draft(
  draft_at: Callable[[int], DraftFn | None] | None, forced: Int[Array, "B T"]
) -> Callable[[int], DraftFn | None] | None:
  """Returns `Net.draft` that runs in full and returns forced[:, i] at position i."""

  def bent_at(rows):
    draft = draft_at(rows)

    def bent(cache, tokens, steps, *noise):
      output_positions = cache.index[:, None] + jnp.arange(steps)
      chosen, cache = draft(cache, tokens, steps, *noise)
      told = jnp.take_along_axis(forced, output_positions, axis=1, mode="clip")
      # The tokens depend on the network's, or the compiler would drop the network.
      return jnp.where(chosen < -1, chosen, told.T), cache

    return draft and bent

  return draft_at and bent_at


@functools.cache
def random_model(size: str, dtype: str = "float32", weights: str = "float32") -> Model:
  """Returns a network with random weights; 'int8' rounds the same random weights."""
  config = t5_1_1(size, dtype)
  if weights == "float32":
    network = Transformer(config)
    return Model(network, random_params(network, 0))
  network = Transformer(dataclasses.replace(config, weights=weights))
  return Model(network, prepared.in_weights(network, random_model(size, dtype).params))


def paired(target: Network, draft: Network | str, gamma: int) -> Decoder:
  """Returns the decoder of a draft, a network or a name in `ROUNDED`."""
  if isinstance(draft, str):
    return Decoder(target, Quantized(*ROUNDED[draft], gamma=gamma))
  return Decoder(target, DraftModel(draft, gamma))


def oracle_start(decode: Decode):
  """Returns a function of (forced, params, inputs, keys) that starts decoding.

  `forced` has the tokens [B, T] of the "target" and, for speculation, of the "draft".
  """

  def start(forced, *arrays):
    spec, state = decode.start(*arrays)
    target = spec.target

    def without(*args):  # The target drafts for itself.
      return oracle_extend(target.without(*args), forced["draft"])

    networks = {}
    for name, network in spec.networks.items():
      extend = oracle_extend(network.extend, forced["draft"])
      draft = oracle_draft(network.draft, forced["draft"])
      # A projection of features knows no position, so `extend` projects both tokens.
      networks[name] = dataclasses.replace(
        network, extend=extend, draft=draft, logits=None
      )
    extend = oracle_extend(target.extend, forced["target"])
    bent = dataclasses.replace(target, extend=extend, without=without)
    return dataclasses.replace(spec, target=bent, networks=networks), state

  return start


@dataclasses.dataclass(frozen=True)
class Setup:
  """The settings of a pair."""

  target: str  # The target's size.
  draft: str  # The draft's size, or a name in `ROUNDED`.
  batch: int  # The number of rows.
  temperature: float  # The sampling's temperature; 0 is greedy.
  gamma: int  # The draft length in tokens.
  dtype: str  # The dtype of parameters and activations.
  input_length: int  # The number of tokens of an input.
  max_length: int  # The most tokens of an output.
  # The format of the target's weights, one of `network.config.WEIGHTS`.
  weights: str = "float32"

  def __post_init__(self):
    if not 0 <= self.temperature <= MOST_TEMPERATURE:
      raise ValueError(
        f"The oracle's temperature must be from 0 to {MOST_TEMPERATURE:g}, got "
        f"{self.temperature:g}. 0 is greedy decoding."
      )
    least = (self.gamma + 1) * (FEW + 1)
    if self.max_length < least:
      raise ValueError(
        f"--output-length must be at least {least} with gamma {self.gamma}, got "
        f"{self.max_length}: fewer iterations are too few to time."
      )


class Pair:
  """The programs of a pair, on random inputs and with a random output.

  On a GPU the programs call our kernels where a decode of the same models would
  (`prepared.choose_kernels`). `functions` are to be compiled, with the arguments after
  the count: "iteration" is the speculative loop, "redrafted" the loop with each draft
  drawn twice, "plain" and "block" the plain loop with 1 and gamma + 1 tokens per call.
  """

  def __init__(self, setup: Setup):
    self.setup = setup
    sampling = Sampling(setup.temperature)
    target = random_model(setup.target, setup.dtype, setup.weights)
    self.params = {"target": target.params}
    if setup.draft in ROUNDED:
      pair = paired(target.network, setup.draft, setup.gamma)
    else:
      draft = random_model(setup.draft, setup.dtype)
      self.params["draft"] = draft.params
      pair = paired(target.network, draft.network, setup.gamma)
      self.params |= draft.derived(pair.derive(sampling, "draft"), "draft")
    self.params |= target.derived(pair.drafter.derive(target.network))
    prepared.choose_kernels(pair.networks, self.params, setup.batch)
    shape = setup.batch, setup.input_length
    inputs = jax.random.randint(jax.random.key(0), shape, 2, 32_000)
    shape = setup.batch, setup.max_length
    self._text = jax.random.randint(jax.random.key(1), shape, 2, 32_000)
    decode = Decode(pair, self.params, sampling, setup.max_length)
    self.given = decode.given(inputs)
    self.forced = self.forced_at(0.5, 7)
    start = oracle_start(decode)
    arguments = self.forced, *self.given
    self.functions = {
      "iteration": (iterated(start), arguments),
      "redrafted": (iterated(start, redrafts=True), arguments),
    }
    for name, block in ("plain", 1), ("block", setup.gamma + 1):
      plain = Decoder(target.network, block=block)
      # A target's plain program does not depend on the draft.
      decode = Decode(plain, {"target": target.params}, sampling, setup.max_length)
      arguments = {"target": self._text}, *decode.given(inputs)
      self.functions[name] = iterated(oracle_start(decode)), arguments
    self.programs: dict[str, Any] = {}
    self.compile_seconds: dict[str, float] = {}

  def compile(self, known: MutableMapping[Any, Any]) -> None:
    """Compiles the functions that are not `known` of other pairs, and adds them.

    Pairs that differ only in the draft have the same plain programs. Nothing else may
    run: XLA times products on the device during compilation.
    """

    def compiled(name):
      """Returns a program and the seconds of the compilation, without the tracing."""
      function, arguments = self.functions[name]
      lowered = function.lower(jnp.int32(1), *arguments)
      begin = time.perf_counter()
      return lowered.compile(), time.perf_counter() - begin

    other = dataclasses.replace(self.setup, draft="")
    keys = {name: (name, self.setup) for name in self.functions}
    keys |= {"block": other, "plain": dataclasses.replace(other, gamma=0)}
    missing = [name for name, key in keys.items() if key not in known]
    with futures.ThreadPoolExecutor() as pool:
      programs = pool.map(compiled, missing)
      known |= {keys[n]: program for n, program in zip(missing, programs, strict=True)}
    for name, key in keys.items():
      self.programs[name], self.compile_seconds[name] = known[key]

  def calls(self, alpha: float, runs: int) -> Program:
    """Returns a program of calls by number; each call has other accepted positions."""
    forced = [self.forced_at(alpha, run) for run in range(runs)]
    count = jnp.int32(self.setup.max_length)
    run = self.programs["iteration"]
    return lambda number: run(count, forced[number], *self.given)

  def forced_at(self, alpha: float, seed: int) -> dict[str, Int[Array, "B T"]]:
    """Returns forced tokens: the target's text, and a draft that is right at alpha.

    The draft has the target's token at a share alpha of the positions, chosen at random
    in each row. The tested positions are a part of all positions, so the share of
    accepted tokens is near alpha.
    """
    is_right = jnp.arange(self._text.shape[1]) < alpha * self._text.shape[1]
    is_right = jnp.broadcast_to(is_right, self._text.shape)
    key = jax.random.key(seed)
    is_right = jax.random.permutation(key, is_right, axis=1, independent=True)
    draft = jnp.where(is_right, self._text, (self._text + 1) % VOCAB_SIZE)
    return {"target": self._text, "draft": draft}

  def loops(self) -> dict[str, Loop]:
    """Returns each compiled program as a loop with a small and a large count."""
    tokens = self.setup.max_length
    iterations = tokens // (self.setup.gamma + 1)
    most = {"plain": tokens, "block": tokens}
    return {
      name: (program, self.functions[name][1], (FEW, most.get(name, iterations)))
      for name, program in self.programs.items()
    }
