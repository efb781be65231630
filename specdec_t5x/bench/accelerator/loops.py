"""The two loops in turn: a turn of each, and whole calls at the paper's alphas."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.analysis import theory
from specdec_t5x.api import Model
from specdec_t5x.bench import programs
from specdec_t5x.bench.cells import Measured, Setting
from specdec_t5x.bench.iteration import iterated, plain_program
from specdec_t5x.bench.table import plain as plain_row
from specdec_t5x.bench.timed import alternate, slopes
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.oracle import forced_tokens
from specdec_t5x.network.sizes import VOCAB_SIZE

_FEW = 2  # Turns that are timed beside many.
# Runs before the clock starts: a GPU records its command buffers in a program's second.
_WARM = 3


@dataclasses.dataclass(frozen=True)
class Loop:
  """Two loops that are timed in turn.

  Attributes:
    target: size of the target.
    draft: size of the draft.
    batch: rows.
    temperature: 0, where the draft is an oracle (`drafters.oracle`); or above.
    gamma: drafted tokens.
    dtype: of parameters and activations.
    input_length: tokens of an input.
    room: for the output, in tokens.
  """

  target: str
  draft: str
  batch: int
  temperature: float
  gamma: int
  dtype: str
  input_length: int
  room: int

  def __post_init__(self):
    least = (self.gamma + 1) * (_FEW + 1)
    if self.room < least:
      raise ValueError(
        f"--output-length must be at least {least} with gamma {self.gamma}, or there "
        f"are too few iterations to time, got {self.room}."
      )


@functools.cache
def model(size: str, dtype: str) -> Model:
  """Returns a network with random weights, made once a process."""
  return programs.random_model(size, 0, dtype)


class Pair:
  """The programs of a `Loop`, compiled with options of the compiler's own."""

  def __init__(self, loop: Loop, options: Mapping[str, Any] | None = None):
    self.loop = loop
    networks = {
      name: model(size, loop.dtype)
      for name, size in (("target", loop.target), ("draft", loop.draft))
    }
    self.params = {name: each.params for name, each in networks.items()}
    key = jax.random.key(0)
    shape = loop.batch, loop.input_length
    given = jax.random.randint(key, shape, 2, 32_000), row_keys(key, loop.batch)
    sampling = Sampling(temperature=loop.temperature)
    target, room = networks["target"].network, loop.room
    decoder = programs.paired(target, networks["draft"].network, loop.gamma)
    start = programs.start(decoder, sampling, room)
    prepare = lambda _, *args: start(*args)
    if sampling.greedy:
      prepare = programs.oracle_start(decoder, room)
    begin = programs.plain_start(programs.paired(target, None), room)
    plain = plain_program(begin, sampling, room)
    made = functools.partial(_compiled, options=options)
    args = {"target": self.params["target"]}, *given
    run = made(plain, jnp.int32(1), *args)
    self.plain = lambda count: run(jnp.int32(count), *args)
    self.outputs = self.plain(room).tokens
    ours = made(
      iterated(prepare), jnp.int32(1), self.forced(0.5, 0), self.params, *given
    )
    self.ours = lambda count, alpha=0.5, seed=0: ours(
      jnp.int32(count), self.forced(alpha, seed), self.params, *given
    )

  def forced(self, alpha: float, seed: int) -> jax.Array:
    """Returns what the oracle drafts."""
    return forced_tokens(self.outputs, alpha, VOCAB_SIZE, jax.random.key(seed))

  def turns(self) -> dict[tuple[str, int], Any]:
    """Returns programs of few and of many turns of both loops, by name and count."""
    loop = self.loop
    many = {"ours": loop.room // (loop.gamma + 1), "plain": loop.room}
    run = {"ours": self.ours, "plain": self.plain}
    return {
      (name, count): functools.partial(
        lambda run, count, _: run(count), run[name], count
      )
      for name in many
      for count in (_FEW, many[name])
    }


def measured(loop: Loop, alphas: list[float], runs: int) -> dict[str, Any]:
  """Returns what a pair's loops take.

  Returns:
    Seconds of an "iteration" and of a "plain" token, and by alpha under "calls" the
    speed-up of whole calls: measured at temperature 0, where the oracle sets alpha, and
    "from_loops", which is E(alpha, gamma) plain / iteration.
  """
  pair = Pair(loop)
  whole = {} if loop.temperature else {("call", alpha): alpha for alpha in alphas}
  calls = {
    name: functools.partial(lambda alpha, run: pair.ours(loop.room, alpha, run), alpha)
    for name, alpha in whole.items()
  }
  timed = alternate({**pair.turns(), **calls}, range(runs), _WARM)
  plain = timed["plain", loop.room]
  found = {name: timed.pop(name) for name in whole}
  turn = {name: float(np.median(each)) for name, each in slopes(timed).items()}
  rows = {}
  for alpha in alphas:
    expected = float(theory.expected_tokens(alpha, loop.gamma))
    rows[f"{alpha:g}"] = {"from_loops": expected * turn["plain"] / turn["ours"]}
    if ("call", alpha) in found:
      cell = Measured.timed(Setting(loop.gamma, 0.0), found["call", alpha], plain)
      rows[f"{alpha:g}"] |= plain_row(cell.row())
  return {"iteration": turn["ours"], "plain": turn["plain"], "calls": rows}


def turns(loop: Loop, options: Mapping[str, Any], runs: int) -> dict[str, float]:
  """Returns seconds of a turn of both loops, compiled with options."""
  timed = alternate(Pair(loop, options).turns(), range(runs), _WARM)
  names = {"ours": "iteration", "plain": "plain"}
  return {names[name]: float(np.median(each)) for name, each in slopes(timed).items()}


def _compiled(run, *args, options):
  # An option that this compiler does not know is an error of its own.
  return run.lower(*args).compile(compiler_options=dict(options or {}) or None)
