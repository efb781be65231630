"""The times of a decode's parts, and predictions of the times of calls.

Theorem 3.8 of the paper is the special case without work once per call, and with a
block as fast as a token.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int
from numpy.typing import ArrayLike

from benchmarks.study import Decode
from benchmarks.timed import Program, Timed, alternate, medians, repeated, slopes
from specdec_t5x.analysis.theory import Numbers, expected_tokens
from specdec_t5x.decoding.decoder import Decoder

_PARTS = ("iteration", "draft", "token")
_STARTS = {"encoder": "target_cache", "draft_encoder": "drafter_state"}


@dataclasses.dataclass(frozen=True)
class Costs:
  """The seconds of a decode's parts, medians over the runs.

  Attributes:
    gamma: drafted tokens per iteration.
    plain: an iteration of the plain loop, that is, a token.
    plain_start: a plain call without iterations: encoding, dispatch.
    iteration: an iteration of the speculative loop.
    start: a speculative call without iterations.
    draft: drafting of gamma tokens.
    token: the target's call on a token.
    encoder: encoding of the input for the target.
    draft_encoder: preparation of the drafter, such as encoding for the draft.
  """

  gamma: int
  plain: float
  plain_start: float
  iteration: float
  start: float
  draft: float
  token: float
  encoder: float
  draft_encoder: float

  @property
  def c(self) -> float:
    """Draft step time / target step time (section 3.3)."""
    return self.draft / self.gamma / self.token

  @property
  def block(self) -> float:
    """Seconds of an iteration without drafting: scoring, verification, bookkeeping."""
    return self.iteration - self.draft

  def plain_seconds(self, tokens: ArrayLike) -> Numbers:
    """Returns the seconds of a plain call with the given number of tokens."""
    return self.plain_start + np.asarray(tokens) * self.plain

  def seconds(self, calls: ArrayLike) -> Numbers:
    """Returns the seconds of a speculative call with the given number of iterations."""
    return self.start + np.asarray(calls) * self.iteration

  def loop_improvement(self, alpha: ArrayLike) -> Numbers:
    """Returns theorem 3.8 with the measured cost of a block, without encoders.

    The value is E(alpha, gamma) plain / iteration, with measured times.
    """
    return expected_tokens(alpha, self.gamma) * self.plain / self.iteration


def measure_costs(
  decode: Decode, gamma: int, inputs: Int[Array, "B E"], runs: int = 15
) -> Costs:
  """Times every part in turn, each part in a separate loop.

  Args:
    decode: a decode that drafts gamma tokens per iteration.
    gamma: the draft length in tokens.
    inputs: the inputs. No token ends an output.
    runs: the number of runs of every program.

  Raises:
    ValueError: if no iteration fits, if `runs` is below 1, or if the machine is too
      busy to tell a part's time from noise.
  """
  if decode.max_length < gamma + 1 or runs < 1:
    raise ValueError(
      f"Expected room for an iteration of gamma + 1 = {gamma + 1} tokens and at least "
      f"1 run, got {decode.max_length} and {runs}. Raise --max-length or lower gamma."
    )
  plain = dataclasses.replace(decode, decoder=Decoder(decode.decoder.target))
  loops = {"plain": plain.loop(inputs)}
  loops |= {name: decode.loop(inputs, name) for name in _PARTS}
  programs = repeated(loops)
  for name, field in _STARTS.items():
    programs[name, 1] = _start(decode, field, decode.given(inputs))
  return costs_of(gamma, alternate(programs, range(runs)))


def _start(decode, field, arrays) -> Program:
  run = jax.jit(lambda *arrays: getattr(decode.start(*arrays)[1], field))
  return lambda _: run(*arrays)


def costs_of(gamma: int, timed: Mapping[tuple[Any, int], Timed]) -> Costs:
  """Returns the costs for a gamma from the times by (part, count)."""
  loops = {key: result for key, result in timed.items() if key[0] not in _STARTS}
  return Costs(
    gamma=gamma,
    plain_start=float(np.median(timed["plain", 0].seconds)),
    start=float(np.median(timed["iteration", 0].seconds)),
    encoder=float(np.median(timed["encoder", 1].seconds)),
    draft_encoder=float(np.median(timed["draft_encoder", 1].seconds)),
    **medians(slopes(loops), gamma),
  )
