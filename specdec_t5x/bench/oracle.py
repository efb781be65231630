"""Pairs of random networks that accept drafts at a set rate, for measuring time.

Both networks run at every step, at their full cost. Only then are their logits bent
towards tokens that were chosen beforehand: the target's to a given text, the draft's to
the same text at the accepted positions. So walltime at a given alpha is measured with
any weights and in any dtype, in bfloat16 too, where the argmax of a target depends on
the shape of a call. Not a way to decode: an oracle has to be given the output.
"""

import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from specdec_t5x import tuning
from specdec_t5x.api import Model
from specdec_t5x.bench.iteration import iterated, plain_program
from specdec_t5x.bench.study import Decode
from specdec_t5x.bench.timed import Loop, Program
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.types import ExtendFn
from specdec_t5x.decoding.decoders import Decoder, PlainDecoder, SpeculativeDecoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.quantized import Quantized
from specdec_t5x.network.functional import Network
from specdec_t5x.network.sizes import VOCAB_SIZE, random_params, t5_1_1
from specdec_t5x.network.transformer import Transformer

FEW = 2  # Iterations that are timed beside many.
# Drafts that are the target itself, rounded: bits, and inputs that share a scale.
ROUNDED = {"int8": (8, 0), "int4": (4, 0), "int4/32": (4, 32)}
_DRAWS = 64
# A forced token's logit is so far above all others that a softmax is one-hot in
# float32, up to the temperature below.
_MARGIN = 1e4
MOST_TEMPERATURE = 10.0


def forced_tokens(
  outputs: Int[Array, "B T"],
  alpha: float | Float[Array, "B T"],
  vocab_size: int,
  key: Key[Array, ""],
) -> Int[Array, "B T"]:
  """Returns what the oracle drafts at each position of the output.

  The target's own token with probability alpha, independently at each position, and
  another one otherwise: each tried token is then accepted with probability alpha.

  Args:
    outputs: the target's greedy outputs.
    alpha: the acceptance wanted, one for all positions or one each.
    vocab_size: tokens there are.
    key: consumed.
  """
  kept = jax.random.uniform(key, outputs.shape) < alpha
  return jnp.where(kept, outputs, (outputs + 1) % vocab_size)


def oracle_extend(extend: ExtendFn, forced: Int[Array, "B T"]) -> ExtendFn:
  """Returns the network `extend` with all mass at output position i on forced[:, i].

  The distribution is one-hot at temperatures up to `MOST_TEMPERATURE`.

  Args:
    extend: the real network.
    forced: from `forced_tokens`; its last one stays beyond T.
  """

  def bent(cache, tokens, positions=None, tree=None):
    # The token at slot i (the start token has slot 0) predicts output position i.
    at = cache.index[:, None] + jnp.arange(tokens.shape[1])
    logits, features, cache = extend(cache, tokens, positions, tree)
    chosen = jnp.take_along_axis(forced, at, axis=1, mode="clip")
    rows, columns = jnp.indices(chosen.shape)
    first = logits.max(axis=-1) + _MARGIN
    return logits.at[rows, columns, chosen].set(first), features, cache

  return bent


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


def oracle_start(decode: Decode):
  """Returns the start of decoding with networks that say what they are told.

  The start is a function of (forced, params, inputs, keys), where forced has the tokens
  [B, T] of the "target" and, for speculation, of the "draft".
  """

  def start(forced, *arrays):
    how, state = decode.start(*arrays)
    if isinstance(decode.decoder, PlainDecoder):
      extend = oracle_extend(how.extend, forced["target"])
      return dataclasses.replace(how, extend=extend), state
    target, networks = how.context.target, how.context.networks
    fields = {"target": _bent(target, forced["target"])}
    if networks:
      fields["networks"] = {"draft": _bent(networks["draft"], forced["draft"])}
    else:  # The target itself drafts.

      def without(*args):
        return oracle_extend(target.without(*args), forced["draft"])

      fields["target"] = dataclasses.replace(fields["target"], without=without)
    return _of_context(how, **fields), state

  return start


def replayed(kept: Bool[np.ndarray, "B T"], gamma: int) -> tuple[int, int]:
  """Returns the accepted and the tried tokens of decoding a given text.

  Args:
    kept: the positions where the draft is right.
    gamma: drafted tokens per iteration.
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


def _of_context(spec, **fields):
  context = dataclasses.replace(spec.context, **fields)
  return dataclasses.replace(spec, context=context)


@dataclasses.dataclass(frozen=True)
class Setup:
  """A pair, and how it decodes.

  Attributes:
    target: size of the target.
    draft: size of the draft, or one of `ROUNDED`.
    batch: rows.
    temperature: of the sampling; 0 is greedy.
    gamma: drafted tokens.
    dtype: of parameters and activations.
    input_length: tokens of an input.
    max_length: the most tokens of an output.
    weights: of the target, one of `network.config.WEIGHTS`.
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
        f"--output-length must be at least {least} with gamma {self.gamma}, or there "
        f"are too few iterations to time, got {self.max_length}."
      )


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A compiled program with the seconds that its compilation took."""

  program: Any
  seconds: float


def compiled(function: Any, *arguments: Any) -> Compiled:
  """Lowers a function and compiles it for arguments like these."""
  lowered = function.lower(*arguments)
  begin = time.perf_counter()
  program = lowered.compile()
  return Compiled(program, time.perf_counter() - begin)


class Pair:
  """The programs of a pair, on random inputs and with a random output.

  Args:
    setup: the pair.

  Attributes:
    params: of both networks.
    start: from (forced tokens, params, inputs, keys) to the speculation and its first
      state.
    forced: what the networks say in loops.
    given: params, inputs and keys.
    functions: by name what can be compiled, with arguments after the count: "iteration"
      is the speculative loop, "redrafted" the same with each draft drawn twice, "plain"
      and "block" the plain loop, a token and gamma + 1 tokens a call.
    programs: those that were compiled.
  """

  def __init__(self, setup: Setup):
    self.setup, sampling = setup, Sampling(setup.temperature)
    target = random_model(setup.target, setup.dtype, setup.weights)
    self.params, draft = {"target": target.params}, setup.draft
    if draft not in ROUNDED:
      loaded = random_model(draft, setup.dtype)
      draft, self.params["draft"] = loaded.network, loaded.params
    pair = paired(target.network, draft, setup.gamma)
    self.params |= target.derived(pair.drafter.derived(target.network))
    shape = setup.batch, setup.input_length
    inputs = jax.random.randint(jax.random.key(0), shape, 2, 32_000)
    shape = setup.batch, setup.max_length
    self._text = jax.random.randint(jax.random.key(1), shape, 2, 32_000)
    decode = Decode(pair, self.params, sampling, setup.max_length)
    self.given, self.start = decode.given(inputs), oracle_start(decode)
    self.forced = self.forced_at(0.5, 7)
    ours = self.forced, *self.given
    self.functions = {
      "iteration": (iterated(self.start), ours),
      "redrafted": (iterated(self.start, redrafts=True), ours),
    }
    for name, block in ("plain", 1), ("block", setup.gamma + 1):
      alone = PlainDecoder(target.network, block)
      # A target's plain program is the same whatever its draft.
      decode = Decode(alone, {"target": target.params}, sampling, setup.max_length)
      run = plain_program(oracle_start(decode))
      text = {"target": self._text}
      self.functions[name] = run, (text, *decode.given(inputs))
    self.programs: dict[str, Compiled] = {}

  def compile(self, *names: str) -> None:
    """Compiles some of the functions, one after the other."""
    for name in names:
      function, arguments = self.functions[name]
      self.programs[name] = compiled(function, jnp.int32(1), *arguments)

  def run(self, name: str, count: int):
    """Runs a program for so many tokens or iterations."""
    return self.programs[name].program(jnp.int32(count), *self.functions[name][1])

  def calls(self, alpha: float, runs: int) -> Program:
    """Returns whole calls by number; each draws new positions that are accepted."""
    forced = [self.forced_at(alpha, run) for run in range(runs)]
    whole, run = jnp.int32(self.setup.max_length), self.programs["iteration"].program
    return lambda number: run(whole, forced[number], *self.given)

  def forced_at(self, alpha: float, seed: int) -> dict[str, Int[Array, "B T"]]:
    """Returns what the networks say: the text, and a draft that is right at alpha.

    Few positions are tried in one output. Of many draws the result is the draw whose
    share of accepted tokens is nearest to alpha.
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
    """Returns few and many repetitions of each compiled program."""
    tokens = self.setup.max_length
    most = {"plain": tokens, "block": tokens}
    iterations = tokens // (self.setup.gamma + 1)
    return {
      name: (made.program, self.functions[name][1], (FEW, most.get(name, iterations)))
      for name, made in self.programs.items()
    }
