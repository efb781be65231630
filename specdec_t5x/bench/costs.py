"""What the parts of a decode take, and how long whole calls then last.

Theorem 3.8 of the paper is what follows where nothing happens once a call, and a block
costs one token.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int
from numpy.typing import ArrayLike

from specdec_t5x.analysis.theory import Numbers, expected_tokens
from specdec_t5x.bench.programs import Decode
from specdec_t5x.bench.timed import Timed, alternate, medians, repeated, slopes
from specdec_t5x.decoding.decoders import PlainDecoder

_PARTS = ("iteration", "draft", "scoring", "token")
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


def measure_costs(
  decodes: Mapping[int, Decode], inputs: Int[Array, "B E"], runs: int = 15
) -> dict[int, Costs]:
  """Times every part at every gamma in turn, each in a loop of its own.

  Args:
    decodes: by gamma, of one target with the same parameters.
    inputs: what is decoded; no token ends an output.
    runs: of every program.

  Returns:
    The costs by gamma; plain decoding's are the same in all.

  Raises:
    ValueError: where not one iteration fits, there are no runs, or the machine is too
      busy to tell a part's time from noise.
  """
  longest, first = max(decodes), next(iter(decodes.values()))
  if first.max_length < longest + 1 or runs < 1:
    raise ValueError(
      f"Expected room for an iteration of gamma + 1 = {longest + 1} tokens and at "
      f"least one run, got {first.max_length} and {runs}. Raise --max-length or lower "
      "gamma."
    )
  plain = dataclasses.replace(first, decoder=PlainDecoder(first.decoder.target))
  loops, starts = {(0, "plain"): plain.loop(inputs)}, {}
  for gamma, decode in decodes.items():
    loops |= {(gamma, name): decode.loop(inputs, name) for name in _PARTS}
    for name, field in _STARTS.items():
      run = jax.jit(lambda *given, d=decode, f=field: getattr(d.start(*given)[1], f))
      given = decode.given(inputs)
      starts[(gamma, name), 1] = lambda _, run=run, given=given: run(*given)
  timed = alternate({**repeated(loops), **starts}, range(runs))
  return {gamma: costs_of(gamma, timed) for gamma in decodes}


def costs_of(gamma: int, timed: Mapping[tuple[Any, int], Timed]) -> Costs:
  """Returns the costs at a gamma from the times of ((gamma, part), count)."""
  own = {(k[1], n): each for (k, n), each in timed.items() if k[0] in (0, gamma)}
  once = {name: float(np.median(own.pop((name, 1)).seconds)) for name in _STARTS}
  start = lambda name: float(np.median(own[name, 0].seconds))
  return Costs(
    gamma=gamma,
    plain_start=start("plain"),
    start=start("iteration"),
    **medians(slopes(own), gamma),
    **once,
  )
