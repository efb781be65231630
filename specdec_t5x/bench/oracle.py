"""Networks that run in full and then say what they are told (`oracle_extend`).

A draft is right as often as is wanted. A target says a given text, by itself and with
drafts: in bfloat16, too, where its own argmax depends on the shape of a call. So
decoding can be timed with random weights.
"""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from specdec_t5x.api import Model
from specdec_t5x.bench import programs
from specdec_t5x.bench.iteration import iterated, plain_program
from specdec_t5x.bench.programs import Decode
from specdec_t5x.bench.timed import Loop, Program
from specdec_t5x.build import together
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.types import ExtendFn
from specdec_t5x.decoding import baseline, generate
from specdec_t5x.decoding.decoders import PlainDecoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network.sizes import VOCAB_SIZE

FEW = 2  # Iterations that are timed beside many.
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


def oracle_start(decode: Decode):
  """Returns the start of decoding with networks that say what they are told.

  The start is a function of (forced, params, inputs, keys), where forced has the tokens
  [B, T] of the "target" and, for speculation, of the "draft": see `oracle_extend`.
  """

  def start(forced, *given):
    how, state = decode.start(*given)
    if isinstance(decode.decoder, PlainDecoder):
      return oracle_extend(how, forced["target"]), state
    networks, target = how.context.networks, _bent(how.context.target, forced["target"])
    if networks:
      bent = {"draft": _bent(networks["draft"], forced["draft"])}
      return _of_context(how, target=target, networks=bent), state
    # The target itself drafts.
    without = lambda *args: oracle_extend(
      how.context.target.without(*args), forced["draft"]
    )
    return _of_context(how, target=dataclasses.replace(target, without=without)), state

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
      known = GREEDY, state, max_length, eos_id, adjusted_probs
      return baseline.generate_plain(oracle_extend(how, outputs), *known)
    bent = _of_context(how, target=_bent(how.context.target, outputs))
    return generate.generate(bent, state)

  return lambda text: run(*decode.given(text[0]), text[1])


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
    draft: size of the draft, or one of `programs.ROUNDED`.
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
    target = programs.random_model(setup.target, setup.dtype, setup.weights)
    self.params, draft = {"target": target.params}, setup.draft
    if draft not in programs.ROUNDED:
      loaded = programs.random_model(draft, setup.dtype)
      draft, self.params["draft"] = loaded.network, loaded.params
    pair = programs.paired(target.network, draft, setup.gamma)
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
      run = plain_program(oracle_start(decode), sampling, setup.max_length, block)
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
    draw = lambda key: forced_tokens(self._text, alpha, VOCAB_SIZE, key)
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
