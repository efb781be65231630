"""What decoding takes on this device, plain and with speculation, part by part.

From these and from the counts of a run follows how long its calls last:
`Costs.plain_seconds` and `Costs.seconds`. Theorem 3.8 is the same without what happens
once a call, and with a block that costs one token.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from specdec_t5x.analysis.theory import Numbers, expected_tokens
from specdec_t5x.bench import parts
from specdec_t5x.bench.walltime import alternate
from specdec_t5x.core.distributions import Sampling

# Repetitions that are timed beside each other, of a part and of the loops. A loop that
# does not turn at all leaves what happens once a call.
_PART = (2, 10)
_ITERATIONS, _TOKENS = 10, 32
_PARTS = ("iteration", "draft", "scoring", "token")
_STARTS = ("encoder", "draft_encoder")
# These can be as good as free, as a lookup is; noise may then say less than nothing.
_CAN_BE_FREE = ("draft", "verification")


@dataclasses.dataclass(frozen=True)
class Costs:
  """Seconds of one decode's parts, medians over the runs.

  Attributes:
    gamma: tokens drafted an iteration.
    plain: a turn of the plain loop, that is, a token.
    plain_start: what a call takes beside its turns: encoding, dispatch.
    iteration: a turn of the speculative loop.
    start: what its call takes beside its turns.
    draft: drafting gamma tokens.
    scoring: the target's call on gamma + 1 tokens.
    token: the target's call on one.
    encoder: encoding the input for the target.
    draft_encoder: getting the drafter ready, such as encoding the input for it.
  """

  gamma: int
  plain: float
  plain_start: float
  iteration: float
  start: float
  draft: float
  scoring: float
  token: float
  encoder: float
  draft_encoder: float

  @property
  def c(self) -> float:
    """Draft step time / target step time (section 3.3)."""
    return self.draft / self.gamma / self.token

  @property
  def block(self) -> float:
    """Seconds of an iteration but for the drafting: scoring, judging, bookkeeping."""
    return self.iteration - self.draft

  def plain_seconds(self, tokens: ArrayLike) -> Numbers:
    """Returns how long a plain call of so many tokens lasts."""
    return self.plain_start + np.asarray(tokens) * self.plain

  def seconds(self, calls: ArrayLike) -> Numbers:
    """Returns how long a speculative call of so many iterations lasts."""
    return self.start + np.asarray(calls) * self.iteration

  def loop_improvement(self, alpha: ArrayLike) -> Numbers:
    """Returns theorem 3.8 with the measured cost of a block; no encoder.

    E(alpha, gamma) token / (gamma draft step + block), all times measured.
    """
    return expected_tokens(alpha, self.gamma) * self.plain / self.iteration

  def call_improvement(self, alpha: ArrayLike, tokens: ArrayLike) -> Numbers:
    """Returns what follows for whole calls that emit so many tokens each."""
    calls = np.asarray(tokens) / expected_tokens(alpha, self.gamma)
    return self.plain_seconds(tokens) / self.seconds(calls)


def measure(
  prepares: Mapping[int, parts.Prepare],
  prepare_plain: parts.PreparePlain,
  arguments: Sequence[Any],
  *,
  sampling: Sampling,
  room: int,
  runs: int = 15,
) -> dict[int, Costs]:
  """Times every part at every gamma in turn, each in a loop of its own.

  Args:
    prepares: by gamma, from `arguments` to the speculation and its first state, for
      outputs that no token ends.
    prepare_plain: from `arguments` to the target and the plain loop's state.
    arguments: of the programs, such as parameters, inputs and keys.
    sampling: the adjustment of the target's law.
    room: for the output, in tokens; all starts have to be made for it.
    runs: of every program.

  Returns:
    The costs by gamma; plain decoding's are the same in all.

  Raises:
    ValueError: where there is room for no iteration, there are no runs, or the machine
      is too busy to tell a part's time from noise.
  """
  longest = max(prepares)
  if room < longest + 1 or runs < 1:
    raise ValueError(
      f"Expected room for an iteration of gamma + 1 = {longest + 1} tokens and at "
      f"least one run, got {room} and {runs}. Raise --max-length or lower gamma."
    )
  plain = parts.plain_program(prepare_plain, sampling, room)
  counts = (0, min(_TOKENS, room))
  programs = {("plain", n): _repeating(plain, arguments, n) for n in counts}
  for gamma, prepare in prepares.items():
    for key, program in _programs(gamma, prepare, arguments, room).items():
      programs[gamma, *key] = program
  timed = alternate(programs, range(runs))
  seconds = {key: found.seconds for key, found in timed.items()}
  once = {key: seconds.pop(key) for key in [*seconds] if key[0] == "plain"}
  return {
    gamma: _costs(gamma, once | {k[1:]: v for k, v in seconds.items() if k[0] == gamma})
    for gamma in prepares
  }


def medians(
  slopes: Mapping[str, Float[np.ndarray, "runs"]], gamma: int
) -> dict[str, float]:
  """Returns the median over the runs of what a repetition of each part takes.

  Args:
    slopes: seconds, from `parts.costs`.
    gamma: tokens drafted an iteration, for the error.

  Raises:
    ValueError: where the machine is too busy to tell a part's time from noise.
  """
  found = {name: float(np.median(seconds)) for name, seconds in slopes.items()}
  for name in found.keys() & _CAN_BE_FREE:
    found[name] = max(found[name], 0.0)
  lost = [n for n, seconds in found.items() if seconds <= 0 and n not in _CAN_BE_FREE]
  if lost:
    raise ValueError(
      f"The time of {lost} is lost in noise (gamma {gamma}): more repetitions took no "
      "longer than few. Leave all cores to the measurement, or raise --runs."
    )
  return found


def online_settings(by_gamma: Mapping[int, Costs], widths: Sequence[int]):
  """Returns what `OnlineAlpha` needs, in units of the target's one token.

  A block's cost is here all of an iteration but the drafting: what verification and
  bookkeeping take is as much a cost of another iteration as the target's call. The
  block of one token, after no draft, is the target's call and what gamma 1 adds to its.

  Args:
    by_gamma: costs measured at each gamma that is needed, width - 1.
    widths: of blocks, `decoding.widths.block_widths` of the longest draft.

  Returns:
    `draft_cost` and `block_costs`.

  Raises:
    ValueError: where a gamma was not measured.
  """
  needed = gammas_of(widths)
  missing = [gamma for gamma in needed if gamma not in by_gamma]
  if missing:
    raise ValueError(
      f"Block widths {tuple(widths)} need costs at gammas {needed}; measured "
      f"{sorted(by_gamma)}, so {missing} are missing. Measure them."
    )
  token = float(np.median([by_gamma[gamma].token for gamma in needed]))
  longest, least = by_gamma[needed[-1]], by_gamma[needed[0]]
  alone = token + least.block - least.scoring
  blocks = [alone if width == 1 else by_gamma[width - 1].block for width in widths]
  return {
    "draft_cost": longest.draft / longest.gamma / token,
    "block_costs": tuple(block / token for block in blocks),
  }


def gammas_of(widths: Sequence[int]) -> list[int]:
  """Returns the gammas whose blocks have these widths; gamma 1 for a width of 1."""
  return sorted({max(width - 1, 1) for width in widths})


def _programs(gamma, prepare, arguments, room):
  """Returns what is timed at one gamma, by part and number of repetitions."""
  iterations = (0, min(_ITERATIONS, room // (gamma + 1)))
  known = parts.part_programs(prepare)
  programs = {
    (name, count): _repeating(known[name], arguments, count)
    for name in _PARTS
    for count in (iterations if name == "iteration" else _PART)
  }
  starts = (lambda state: state.target_cache, lambda state: state.drafter_state)
  for name, start in zip(_STARTS, starts, strict=True):
    run = jax.jit(lambda *args, start=start: start(prepare(*args)[1]))
    programs[name, 1] = lambda _, run=run: run(*arguments)
  return programs


def _repeating(run, arguments, count):
  return lambda _: run(jnp.int32(count), *arguments)


def _costs(gamma, seconds):
  once = {name: float(np.median(seconds.pop((name, 1)))) for name in _STARTS}
  return Costs(
    gamma=gamma,
    plain_start=float(np.median(seconds["plain", 0])),
    start=float(np.median(seconds["iteration", 0])),
    **medians(parts.costs(seconds), gamma),
    **once,
  )
