"""What the parts of a decode take, and how long whole calls then last.

Theorem 3.8 of the paper follows where nothing happens once a call, and a block costs
one token.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int
from numpy.typing import ArrayLike

from specdec_t5x.analysis.theory import Numbers, expected_tokens
from specdec_t5x.bench.study import Decode
from specdec_t5x.bench.timed import Program, Timed, alternate, medians, repeated, slopes
from specdec_t5x.decoding.decoders import PlainDecoder

_PARTS = ("iteration", "draft", "token")
_STARTS = {"encoder": "target_cache", "draft_encoder": "drafter_state"}


@dataclasses.dataclass(frozen=True)
class Costs:
  """Seconds of one decode's parts, medians over the runs.

  Attributes:
    gamma: tokens drafted an iteration.
    plain: an iteration of the plain loop, that is, a token.
    plain_start: what a call takes beside its iterations: encoding, dispatch.
    iteration: of the speculative loop.
    start: what its call takes beside its iterations.
    draft: drafting gamma tokens.
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


def measure_costs(
  decode: Decode, gamma: int, inputs: Int[Array, "B E"], runs: int = 15
) -> Costs:
  """Times every part in turn, each in a loop of its own.

  Args:
    decode: drafts gamma tokens an iteration.
    gamma: drafted tokens.
    inputs: what is decoded; no token ends an output.
    runs: of every program.

  Raises:
    ValueError: where not one iteration fits, there are no runs, or the machine is too
      busy to tell a part's time from noise.
  """
  if decode.max_length < gamma + 1 or runs < 1:
    raise ValueError(
      f"Expected room for an iteration of gamma + 1 = {gamma + 1} tokens and at "
      f"least one run, got {decode.max_length} and {runs}. Raise --max-length or lower "
      "gamma."
    )
  plain = dataclasses.replace(decode, decoder=PlainDecoder(decode.decoder.target))
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
  """Returns the costs at a gamma from the times of (part, count)."""
  loops = {key: each for key, each in timed.items() if key[0] not in _STARTS}
  return Costs(
    gamma=gamma,
    plain_start=float(np.median(timed["plain", 0].seconds)),
    start=float(np.median(timed["iteration", 0].seconds)),
    encoder=float(np.median(timed["encoder", 1].seconds)),
    draft_encoder=float(np.median(timed["draft_encoder", 1].seconds)),
    **medians(slopes(loops), gamma),
  )
