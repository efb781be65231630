"""Decoding at a set acceptance rate, on networks of any size with random weights.

The draft is an oracle (`drafters.oracle`): the real draft network runs, and its argmax
is bent to the target's own token with probability alpha. So the times are those of real
networks, and alpha is chosen. Greedy decoding that never ends early. Needs JAX and Flax
alone.
"""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from specdec_t5x.analysis import theory
from specdec_t5x.bench import parts, programs
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.parts import NEVER
from specdec_t5x.bench.walltime import Spread, alternate, spread
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.decoders import PlainDecoder
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.drafters.oracle import forced_tokens
from specdec_t5x.network.sizes import VOCAB_SIZE

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
  gamma: int = DEFAULT_GAMMA
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


class Bench:
  """A job with its random parameters and inputs, ready to be timed."""

  def __init__(self, job: Job, seed: int = 0):
    self.job, room = job, job.output_length
    target, draft = (
      programs.random_model(size, seed + i, job.dtype)
      for i, size in enumerate((job.target, job.draft))
    )
    decoder, self.params = programs.together(target, draft, gamma=job.gamma)
    key = jax.random.key(seed)
    shape = (job.batch, job.input_length)
    self.inputs = jax.random.randint(key, shape, 2, 32_000)
    self.keys = row_keys(key, job.batch)
    self._prepare = programs.prepare_oracle(decoder, room)
    self.speculative = programs.oracle(decoder, room)
    plain = PlainDecoder(target.network)
    self._plain = programs.decoding(plain, self.params, GREEDY, room, NEVER)
    self.outputs = self._plain(self.inputs, self.keys).tokens

  def part_seconds(self, runs: int) -> dict[str, Float[np.ndarray, "runs"]]:
    """Returns seconds a repetition of each part, and of the loop ("iteration")."""
    args = self._forced(0.75, 7), self.params, self.inputs, self.keys
    # So many iterations always fit: none emits more than gamma + 1 tokens.
    many = self.job.output_length // (self.job.gamma + 1)
    repeated = {
      (name, count): functools.partial(_ignoring_input, run, jnp.int32(count), *args)
      for name, run in parts.part_programs(self._prepare).items()
      for count in (_FEW, many)
    }
    timed = alternate(repeated, range(runs))
    return parts.costs({key: value.seconds for key, value in timed.items()})

  def speedups(
    self, alphas: Sequence[float], runs: int, seconds: Mapping[str, float]
  ) -> list[dict[str, Any]]:
    """Times whole calls, plain and with speculation at each alpha, in turn.

    Args:
      alphas: acceptance rates.
      runs: of each program; each draws new accepted positions.
      seconds: of each part, for the predictions: `costs.medians` of `part_seconds`.

    Returns:
      A row an alpha: the alpha "wanted" of the oracle and "alpha" as it came out,
      "theorem" (3.8 at this alpha with the measured c) and "with_block" (the same with
      the measured cost of scoring a block) beside the measured "speedup".
    """
    args = self.params, self.inputs, self.keys
    decodings = {"plain": lambda _: self._plain(self.inputs, self.keys)}
    for alpha in alphas:
      forced = [self._forced(alpha, run) for run in range(runs)]
      decodings[alpha] = lambda run, forced=forced: self.speculative(forced[run], *args)
    timed = alternate(decodings, range(runs))
    plain = timed.pop("plain")
    return [self._speedup(alpha, plain, timed[alpha], seconds) for alpha in timed]

  def _speedup(self, wanted, plain, ours, seconds):
    gamma = self.job.gamma
    cell = Measured.timed(Setting(gamma, 0.0), ours, plain)
    alpha = cell.alpha.value
    token, draft, block = (seconds[name] for name in ("token", "draft", "scoring"))
    theorem = theory.walltime_improvement(alpha, gamma, draft / gamma / token)
    expected = theory.expected_tokens(alpha, gamma)
    return {
      "wanted": wanted,
      "alpha": alpha,
      "tokens_per_call": cell.tokens_per_call.value,
      "speedup": cell.speedup,
      "theorem": float(theorem),
      "with_block": float(expected * token / (draft + block)),
      "identical": cell.identical,
      "runs": cell.inputs,
    }

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

  def _caches(self, *args):
    _, state = self._prepare(*args)
    return jax.tree.leaves((state.target_cache, state.drafter_state))

  def _forced(self, alpha, seed):
    return forced_tokens(self.outputs, alpha, VOCAB_SIZE, jax.random.key(seed))


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
