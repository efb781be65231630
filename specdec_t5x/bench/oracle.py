"""Networks that run in full and then say what they are told (`drafters.oracle`).

So a draft is right as often as is wanted, and a target says a text that is known: what
decoding takes can be timed with random weights.
"""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specdec_t5x.api import Model
from specdec_t5x.bench import programs
from specdec_t5x.bench.iteration import iterated
from specdec_t5x.bench.programs import Decode
from specdec_t5x.bench.timed import Loop, Program
from specdec_t5x.build import together
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding import baseline, generate
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.drafters.oracle import forced_tokens, oracle_extend
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network.sizes import VOCAB_SIZE

FEW = 2  # Iterations that are timed beside many.


def oracle_start(decode: Decode):
  """Returns the start of greedy decoding with a draft that says what it is told.

  A function of (forced [B, T], params, inputs, keys): see `drafters.oracle`.
  """

  def start(forced, *given):
    spec, state = decode.start(*given)
    networks, target = spec.context.networks, spec.context.target
    if networks:
      bent = _of_context(spec, networks={"draft": _bent(networks["draft"], forced)})
    else:  # The target itself drafts.
      without = lambda *args: oracle_extend(target.without(*args), forced)
      bent = _of_context(spec, target=dataclasses.replace(target, without=without))
    return bent, state

  return start


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
    temperature: 0, where the draft is an oracle (`drafters.oracle`); or above.
    gamma: drafted tokens.
    dtype: of parameters and activations.
    input_length: tokens of an input.
    max_length: the most tokens of an output.
  """

  target: str
  draft: str
  batch: int
  temperature: float
  gamma: int
  dtype: str
  input_length: int
  max_length: int

  def __post_init__(self):
    least = (self.gamma + 1) * (FEW + 1)
    if self.max_length < least:
      raise ValueError(
        f"--output-length must be at least {least} with gamma {self.gamma}, or there "
        f"are too few iterations to time, got {self.max_length}."
      )


class Pair:
  """The programs of a pair, on random inputs.

  Args:
    setup: the pair.
    options: of the compiler.

  Attributes:
    params: of both networks.
    start: from (forced tokens, params, inputs, keys) to the speculation and its first
      state.
    forced: what the draft says in loops.
    given: params, inputs and keys.
    program: the compiled speculative loop.
    compiling: seconds that its compilation took.
  """

  def __init__(self, setup: Setup, options: Mapping[str, Any] | None = None):
    self.setup, sampling = setup, Sampling(setup.temperature)
    target, draft = programs.random_model(setup.target, setup.dtype), setup.draft
    self.params = {"target": target.params}
    if draft not in programs.ROUNDED:
      loaded = programs.random_model(draft, setup.dtype)
      draft, self.params["draft"] = loaded.network, loaded.params
    pair = programs.paired(target.network, draft, setup.gamma)
    self.params |= target.derived(pair.drafter.derived(target.network))
    decode = lambda how: Decode(how, self.params, sampling, setup.max_length)
    ours, plain = decode(pair), decode(programs.paired(target.network, None))
    shape = setup.batch, setup.input_length
    inputs = jax.random.randint(jax.random.key(0), shape, 2, 32_000)
    self.given = ours.given(inputs)
    self.start = lambda forced, *given: ours.start(*given)
    if sampling.greedy:
      self.start = oracle_start(ours)
    # An option that this compiler does not know is an error of its own.
    options = dict(options or {}) or None
    one, compiled = jnp.int32(1), lambda run: run.compile(compiler_options=options)
    self._plain = compiled(plain.part().lower(one, *self.given))
    self._outputs = self.plain(setup.max_length).tokens
    self.forced = self.forced_at(0.5, 7)
    lowered = iterated(self.start).lower(one, self.forced, *self.given)
    begin = time.perf_counter()
    self.program = compiled(lowered)
    self.compiling = time.perf_counter() - begin

  def plain(self, count: int):
    """Decodes so many tokens plainly."""
    return self._plain(jnp.int32(count), *self.given)

  def calls(self, alpha: float, runs: int) -> Program:
    """Returns whole calls by number; each draws new positions that are accepted."""
    forced = [self.forced_at(alpha, run) for run in range(runs)]
    whole = jnp.int32(self.setup.max_length)
    return lambda run: self.program(whole, forced[run], *self.given)

  def forced_at(self, alpha: float, seed: int):
    """Returns what a draft says that is right with probability alpha."""
    return forced_tokens(self._outputs, alpha, VOCAB_SIZE, jax.random.key(seed))

  def loops(self) -> dict[str, Loop]:
    """Returns few and many iterations of both loops."""
    many = self.setup.max_length // (self.setup.gamma + 1)
    return {
      "iteration": (self.program, (self.forced, *self.given), (FEW, many)),
      "plain": (self._plain, self.given, (FEW, self.setup.max_length)),
    }
