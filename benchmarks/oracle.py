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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from benchmarks.iteration import iterated
from benchmarks.sizes import VOCAB_SIZE, random_params, t5_1_1
from benchmarks.study import Decode
from benchmarks.timed import Loop, Program
from specdec_t5x import prepared
from specdec_t5x.api import Model
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.types import ExtendFn
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.of_target import Quantized
from specdec_t5x.network.functional import Network
from specdec_t5x.network.transformer import Transformer

FEW = 2  # The smaller of the two counts of iterations.
# Drafts made by rounding the target: bits, and the number of inputs that share a scale.
ROUNDED = {"int8": (8, 0), "int4": (4, 0), "int4/32": (4, 32)}
_DRAWS = 64
# The margin of a forced token's logit over all other logits. Up to MOST_TEMPERATURE the
# softmax is one-hot in float32.
_MARGIN = 1e4
MOST_TEMPERATURE = 10.0


def forced_tokens(
  outputs: Int[Array, "B T"],
  alpha: float | Float[Array, "B T"],
  vocab_size: int,
  key: Key[Array, ""],
) -> Int[Array, "B T"]:
  """Returns the oracle's drafted token at each position of the output.

  The drafted token is the target's token with probability alpha, independently at each
  position, else another token. So alpha is the acceptance rate of tested tokens.

  Args:
    outputs: the target's greedy outputs.
    alpha: the acceptance rate, for all positions or for each position.
    vocab_size: the vocabulary size.
    key: consumed.
  """
  is_right = jax.random.uniform(key, outputs.shape) < alpha
  return jnp.where(is_right, outputs, (outputs + 1) % vocab_size)


def oracle_extend(extend: ExtendFn, forced: Int[Array, "B T"]) -> ExtendFn:
  """Returns `extend` with all mass on forced[:, i] at output position i.

  The distribution is one-hot at temperatures up to `MOST_TEMPERATURE`.

  Args:
    extend: the real network.
    forced: tokens from `forced_tokens`; beyond T the last token is repeated.
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


@functools.cache
def random_model(size: str, dtype: str = "float32", weights: str = "float32") -> Model:
  """Returns a network with random weights, made once per process.

  Args:
    size: one of `bench.sizes.SIZES`.
    dtype: the dtype of parameters and activations.
    weights: the format of the weights; 'int8' rounds the same random weights.
  """
  config = t5_1_1(size, dtype)
  if weights == "float32":
    network = Transformer(config)
    return Model(network, random_params(network, 0))
  network = Transformer(dataclasses.replace(config, weights=weights))
  return Model(network, prepared.in_weights(network, random_model(size, dtype).params))


def paired(target: Network, draft: Network | str | None, gamma: int = 0) -> Decoder:
  """Returns a decoder with a draft: a network, or the name of an entry of `ROUNDED`.

  Without a draft the decoder is plain, with blocks of `gamma` tokens if gamma is set.
  """
  if draft is None:
    return Decoder(target, block=gamma or 1)
  if isinstance(draft, str):
    return Decoder(target, Quantized(*ROUNDED[draft], gamma=gamma))
  return Decoder(target, DraftModel(draft, gamma))


def oracle_start(decode: Decode):
  """Returns the start of decoding with oracles.

  The start is a function of (forced, params, inputs, keys), where forced has the tokens
  [B, T] of the "target" and, for speculation, of the "draft".
  """

  def start(forced, *arrays):
    spec, state = decode.start(*arrays)
    target = spec.target
    networks = spec.networks
    fields = {"target": _bent(target, forced["target"])}
    if networks:
      fields["networks"] = {"draft": _bent(networks["draft"], forced["draft"])}
    elif decode.decoder.drafter is not None:  # The target drafts for itself.

      def without(*args):
        return oracle_extend(target.without(*args), forced["draft"])

      fields["target"] = dataclasses.replace(fields["target"], without=without)
    return dataclasses.replace(spec, **fields), state

  return start


def replayed(kept: Bool[np.ndarray, "B T"], gamma: int) -> tuple[int, int]:
  """Returns the numbers of accepted and tested tokens in decoding a given text.

  Args:
    kept: whether the draft is right at each position.
    gamma: the draft length in tokens.
  """
  accepted = tried = 0
  for row in np.asarray(kept).tolist():
    begin = 0
    while begin < len(row):
      # The last token of an output is always the target's.
      most = min(gamma, len(row) - begin - 1)
      right = 0
      while right < most and row[begin + right]:
        right += 1
      accepted += right
      tried += min(right + 1, most)
      begin += right + 1
  return accepted, tried


def _bent(network, forced):
  extend = oracle_extend(network.extend, forced)
  return dataclasses.replace(network, extend=extend)


@dataclasses.dataclass(frozen=True)
class Setup:
  """The settings of a pair.

  Attributes:
    target: the target's size.
    draft: the draft's size, or a name in `ROUNDED`.
    batch: the number of rows.
    temperature: the sampling's temperature; 0 is greedy.
    gamma: the draft length in tokens.
    dtype: the dtype of parameters and activations.
    input_length: the number of tokens of an input.
    max_length: the most tokens of an output.
    weights: the format of the target's weights, one of `network.config.WEIGHTS`.
  """

  target: str
  draft: str
  batch: int
  temperature: float
  gamma: int
  dtype: str
  input_length: int
  max_length: int
  weights: str = "float32"

  def __post_init__(self):
    if self.batch < 1:
      raise ValueError(f"A batch must have at least 1 row, got {self.batch}.")
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


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A compiled program, and the seconds of the compilation."""

  program: Any
  seconds: float


def compiled(function: Any, *arguments: Any) -> Compiled:
  """Lowers and compiles a function for the shapes and dtypes of the arguments."""
  lowered = function.lower(*arguments)
  begin = time.perf_counter()
  program = lowered.compile()
  return Compiled(program, time.perf_counter() - begin)


class Pair:
  """The programs of a pair, on random inputs and with a random output.

  On a GPU the programs call our kernels where a decode of the same models would
  (`prepared.choose_kernels`).

  Args:
    setup: the pair.

  Attributes:
    params: the parameters of both networks.
    start: (forced tokens, params, inputs, keys) -> the speculation and the first state.
    forced: the forced tokens of the loops.
    given: params, inputs and keys.
    functions: functions to compile, with the arguments after the count, by name:
      "iteration" is the speculative loop, "redrafted" the loop with each draft drawn
      twice, "plain" and "block" the plain loop with 1 and gamma + 1 tokens per call.
    programs: the compiled programs by name.
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
    self.start = oracle_start(decode)
    self.forced = self.forced_at(0.5, 7)
    arguments = self.forced, *self.given
    self.functions = {
      "iteration": (iterated(self.start), arguments),
      "redrafted": (iterated(self.start, redrafts=True), arguments),
    }
    for name, block in ("plain", 1), ("block", setup.gamma + 1):
      plain = Decoder(target.network, block=block)
      # A target's plain program does not depend on the draft.
      decode = Decode(plain, {"target": target.params}, sampling, setup.max_length)
      arguments = {"target": self._text}, *decode.given(inputs)
      self.functions[name] = iterated(oracle_start(decode)), arguments
    self.programs: dict[str, Compiled] = {}

  def compile(self, *names: str) -> None:
    """Compiles the named functions, one after the other."""
    for name in names:
      function, arguments = self.functions[name]
      self.programs[name] = compiled(function, jnp.int32(1), *arguments)

  def run(self, name: str, count: int):
    """Runs a program for `count` tokens or iterations."""
    return self.programs[name].program(jnp.int32(count), *self.functions[name][1])

  def calls(self, alpha: float, runs: int) -> Program:
    """Returns a program of calls by number; each call has other accepted positions."""
    forced = [self.forced_at(alpha, run) for run in range(runs)]
    count = jnp.int32(self.setup.max_length)
    run = self.programs["iteration"].program
    return lambda number: run(count, forced[number], *self.given)

  def forced_at(self, alpha: float, seed: int) -> dict[str, Int[Array, "B T"]]:
    """Returns forced tokens: the target's text, and a draft that is right at alpha.

    An output has few tested positions. So the result is the best of many draws: the
    draw with a share of accepted tokens nearest to alpha.
    """
    keys = jax.random.split(jax.random.key(seed), _DRAWS)
    draw = functools.partial(forced_tokens, self._text, alpha, VOCAB_SIZE)
    drawn = jax.vmap(draw)(keys)

    def distance(kept):
      accepted, tried = replayed(kept, self.setup.gamma)
      return abs(accepted - alpha * tried) / max(tried, 1)

    nearest = np.argmin([distance(kept) for kept in np.asarray(drawn == self._text)])
    return {"target": self._text, "draft": drawn[nearest]}

  def loops(self) -> dict[str, Loop]:
    """Returns each compiled program as a loop with a small and a large count."""
    tokens = self.setup.max_length
    most = {"plain": tokens, "block": tokens}
    iterations = tokens // (self.setup.gamma + 1)
    counts = {name: (FEW, most.get(name, iterations)) for name in self.programs}
    return {
      name: (compiled.program, self.functions[name][1], counts[name])
      for name, compiled in self.programs.items()
    }
