"""Walltime of speculation at a set acceptance rate, on networks of any size.

The weights are random and the draft is an oracle (`drafters.oracle`): the real draft
network runs, and its argmax is bent to the target's own token with probability alpha.
So the times are those of real networks, and alpha is chosen. Greedy decoding that never
ends early. Needs JAX and Flax alone.
"""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from specdec_t5x import assemble
from specdec_t5x.analysis import theory
from specdec_t5x.bench import costs, parts
from specdec_t5x.bench.parts import NEVER
from specdec_t5x.bench.walltime import (
  Spread,
  alternate,
  median_ratio,
  spread,
)
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.oracle import forced_tokens, oracle_extend
from specdec_t5x.network.sizes import VOCAB_SIZE, random_params, t5_1_1
from specdec_t5x.network.transformer import Transformer

_FEW = 4  # Repetitions of a part that are timed beside more of them.


@dataclasses.dataclass(frozen=True)
class Job:
  """What is decoded.

  Attributes:
    target: size of the target; one of `network.sizes.SIZES`.
    draft: size of the draft.
    gamma: length of a draft, in tokens.
    batch: rows.
    input_length: tokens of each input.
    output_length: tokens of each output.
    dtype: of parameters and activations.
  """

  target: str = "base"
  draft: str = "tiny"
  gamma: int = 7
  batch: int = 1
  input_length: int = 64
  output_length: int = 128
  dtype: str = "float32"

  def __post_init__(self):
    least = 2 * _FEW * (self.gamma + 1)
    if self.output_length < least:
      raise ValueError(
        f"output_length must be at least {least} with gamma {self.gamma}, or there are "
        f"too few iterations to time, got {self.output_length}."
      )
    for name in ("batch", "input_length"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

  def pair(self) -> assemble.Pair:
    """Returns the networks."""
    target, draft = (
      Transformer(t5_1_1(size, self.dtype)) for size in (self.target, self.draft)
    )
    return assemble.Pair(target, draft, self.gamma)


@dataclasses.dataclass(frozen=True)
class Speedup:
  """Whole calls, encoder included, at one acceptance rate.

  Attributes:
    wanted: the alpha that the oracle was told.
    alpha: accepted over tried tokens, as it came out.
    tokens_per_call: output tokens a call of the target.
    speedup: seconds of plain decoding over seconds with speculation.
    theorem: what Theorem 3.8 predicts at this alpha with the measured c.
    with_block: the same, with the measured cost of scoring a block.
    identical: how many runs gave the plain outputs.
    runs: how many there were.
  """

  wanted: float
  alpha: float
  tokens_per_call: float
  speedup: Spread
  theorem: float
  with_block: float
  identical: int
  runs: int


class Bench:
  """A job with its random parameters and inputs, ready to be timed."""

  def __init__(self, job: Job, seed: int = 0):
    self.job, self.pair = job, job.pair()
    self.params = {
      "target": random_params(self.pair.target, seed),
      "draft": random_params(self.pair.draft, seed + 1),
    }
    key = jax.random.key(seed)
    shape = (job.batch, job.input_length)
    self.inputs = jax.random.randint(key, shape, 2, 32_000)
    self.keys = row_keys(key, job.batch)
    self.plain = jax.jit(self._plain)
    self.speculative = jax.jit(self._speculative)
    self.outputs = self.plain(self.params, self.inputs, self.keys).tokens

  def part_seconds(self, runs: int) -> dict[str, Float[np.ndarray, "runs"]]:
    """Returns seconds a repetition of each part, and of the loop ("iteration")."""
    args = self._forced(0.75, 7), self.params, self.inputs, self.keys
    # So many iterations always fit: none emits more than gamma + 1 tokens.
    many = self.job.output_length // (self.job.gamma + 1)
    programs = {
      (name, count): functools.partial(_ignoring_input, run, jnp.int32(count), *args)
      for name, run in parts.part_programs(self._prepare).items()
      for count in (_FEW, many)
    }
    timed = alternate(programs, range(runs))
    return parts.costs({key: value.seconds for key, value in timed.items()})

  def speedups(
    self, alphas: Sequence[float], runs: int, seconds: Mapping[str, float]
  ) -> list[Speedup]:
    """Times whole calls, plain and with speculation at each alpha, in turn.

    Args:
      alphas: acceptance rates.
      runs: of each program; each draws new accepted positions.
      seconds: of each part, for the predictions: `costs.medians` of `part_seconds`.
    """
    args = self.params, self.inputs, self.keys
    programs = {"plain": lambda _: self.plain(*args)}
    for alpha in alphas:
      forced = [self._forced(alpha, run) for run in range(runs)]
      programs[alpha] = lambda run, forced=forced: self.speculative(forced[run], *args)
    timed = alternate(programs, range(runs))
    plain = timed.pop("plain")
    return [self._speedup(alpha, plain, timed[alpha], seconds) for alpha in timed]

  def _speedup(self, wanted, plain, ours, seconds) -> Speedup:
    total = lambda field: sum(
      int(getattr(result.statistics, field).sum()) for result in ours.results
    )
    alpha = total("accepted") / total("acceptance_positions")
    gamma = self.job.gamma
    token, draft, block = (seconds[name] for name in ("token", "draft", "scoring"))
    expected = theory.expected_tokens(alpha, gamma)
    same = [bool((result.tokens == self.outputs).all()) for result in ours.results]
    return Speedup(
      wanted=wanted,
      alpha=alpha,
      tokens_per_call=total("emitted") / total("target_calls"),
      speedup=median_ratio(plain.seconds, ours.seconds),
      theorem=float(theory.walltime_improvement(alpha, gamma, draft / gamma / token)),
      with_block=float(expected * token / (draft + block)),
      identical=sum(same),
      runs=len(same),
    )

  def compilation(self) -> dict[str, float]:
    """Returns what compiling the speculative program takes, and what it then holds.

    Returns:
      "seconds" to compile; bytes of "weights", of "caches" and of the "peak".
    """
    args = self.outputs, self.params, self.inputs, self.keys
    lowered = self.speculative.lower(*args)
    begin = time.perf_counter()
    needs = lowered.compile().memory_analysis()
    seconds = time.perf_counter() - begin
    caches = jax.eval_shape(lambda *args: self._caches(*args), *args)
    return {
      "seconds": seconds,
      "weights": _bytes(self.params),
      "caches": _bytes(caches),
      "peak": needs.argument_size_in_bytes + needs.temp_size_in_bytes,
    }

  def floor_seconds(self, runs: int) -> tuple[Spread, int]:
    """Returns the time to read the weights of a decoding step, and their bytes.

    Reading is timed on all of the target's weights, summed where they lie.
    """
    total = jax.jit(lambda tree: sum(x.sum() for x in jax.tree.leaves(tree)))
    weights = self.params["target"]
    timed = alternate({"read": lambda _: total(weights)}, range(runs))["read"]
    read = _bytes(_of_a_step(weights))
    return spread(timed.seconds * read / _bytes(weights)), read

  def _plain(self, params, inputs, keys):
    job = self.job
    return assemble.decode_plain(
      self.pair.target, params["target"], inputs, keys, GREEDY, job.output_length, NEVER
    )

  def _prepare(self, forced, params, inputs, keys):
    spec, state = assemble.prepare(
      self.pair, params, inputs, keys, GREEDY, self.job.output_length, NEVER
    )
    extend = oracle_extend(spec.drafter.extend, forced)
    drafter = dataclasses.replace(spec.drafter, extend=extend)
    return dataclasses.replace(spec, drafter=drafter), state

  def _speculative(self, *args):
    return generate(*self._prepare(*args))

  def _caches(self, *args):
    _, state = self._prepare(*args)
    return jax.tree.leaves((state.target_cache, state.drafter_state))

  def _forced(self, alpha, seed):
    return forced_tokens(self.outputs, alpha, VOCAB_SIZE, jax.random.key(seed))


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
    params: of both, as `api.together` gives them.
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
  prepare = lambda pair: (
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


def _ignoring_input(program, *args):
  """Runs a program whose arguments are bound; `alternate` gives it one more, last."""
  return program(*args[:-1])


def _of_a_step(weights):
  """The weights that scoring a block reads: cross keys and values are computed once."""
  once = ("encoder_decoder_attention/key", "encoder_decoder_attention/value")
  leaves = jax.tree_util.tree_leaves_with_path(weights["decoder"])
  name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
  return [leaf for path, leaf in leaves if not any(part in name(path) for part in once)]


def _bytes(tree):
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
