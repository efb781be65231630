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
    self.loop, room = loop, loop.room
    target, draft = (model(size, loop.dtype) for size in (loop.target, loop.draft))
    key, shape = jax.random.key(0), (loop.batch, loop.input_length)
    given = jax.random.randint(key, shape, 2, 32_000), row_keys(key, loop.batch)
    sampling = Sampling(temperature=loop.temperature)
    decoder = programs.paired(target.network, draft.network, loop.gamma)
    start = programs.start(decoder, sampling, room)
    prepare = lambda _, *given: start(*given)
    if sampling.greedy:
      prepare = programs.oracle_start(decoder, room)
    begin = programs.plain_start(programs.paired(target.network, None), room)
    run = plain_program(begin, sampling, room)
    given = {"target": target.params, "draft": draft.params}, *given
    plain = _compiled(run, jnp.int32(1), *given, options=options)
    self.plain = lambda count: plain(jnp.int32(count), *given)
    self.outputs = self.plain(room).tokens
    forced = self._forced(0.5, 0)
    ours = _compiled(iterated(prepare), jnp.int32(1), forced, *given, options=options)
    self.ours = lambda count, alpha=0.5, seed=0: ours(
      jnp.int32(count), self._forced(alpha, seed), *given
    )

  def _forced(self, alpha, seed):
    return forced_tokens(self.outputs, alpha, VOCAB_SIZE, jax.random.key(seed))

  def turns(self) -> dict[tuple[str, int], Any]:
    """Returns programs of few and of many iterations of both, by name and count."""
    many = {
      "iteration": self.loop.room // (self.loop.gamma + 1),
      "plain": self.loop.room,
    }
    run = {"iteration": self.ours, "plain": self.plain}
    return {
      (name, count): lambda _, run=run[name], count=count: run(count)
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
  calls = {
    ("call", alpha): lambda run, alpha=alpha: pair.ours(loop.room, alpha, run)
    for alpha in (() if loop.temperature else alphas)
  }
  timed = alternate({**pair.turns(), **calls}, range(runs), _WARM)
  plain = timed["plain", loop.room]
  found = {name: timed.pop(name) for name in calls}
  turn = _medians(timed)
  rows = {}
  for alpha in alphas:
    expected = float(theory.expected_tokens(alpha, loop.gamma))
    row = {"from_loops": expected * turn["plain"] / turn["iteration"]}
    if ("call", alpha) in found:
      cell = Measured.timed(Setting(loop.gamma, 0.0), found["call", alpha], plain)
      row |= plain_row(cell.row())
    rows[f"{alpha:g}"] = row
  return {**turn, "calls": rows}


def turns(loop: Loop, options: Mapping[str, Any], runs: int) -> dict[str, float]:
  """Returns seconds of an iteration of both loops, compiled with options."""
  return _medians(alternate(Pair(loop, options).turns(), range(runs), _WARM))


def _medians(timed):
  return {name: float(np.median(each)) for name, each in slopes(timed).items()}


def _compiled(run, *args, options):
  # An option that this compiler does not know is an error of its own.
  return run.lower(*args).compile(compiler_options=dict(options or {}) or None)
