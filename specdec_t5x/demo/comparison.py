"""Plain decoding against speculation, alternately in one process.

The unit of time is seconds a token of one input at batch 1, reading it included:
sampled outputs differ in length, so whole outputs do not compare.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece

from specdec_t5x import api
from specdec_t5x.analysis import theory
from specdec_t5x.analysis.acceptance import Estimate, ratio
from specdec_t5x.api import Model, Sampling
from specdec_t5x.bench.walltime import Spread, Timed, alternate, median_ratio
from specdec_t5x.decoding.state import row_keys


@dataclasses.dataclass(frozen=True)
class Row:
  """One draft at one temperature, beside the target alone.

  Attributes:
    temperature: of both laws; 0 is greedy.
    gamma: tokens drafted an iteration.
    draft: its name.
    alpha: acceptance by mass, with a 95% interval.
    tokens_per_call: output tokens a call of the target, with a 95% interval.
    c: seconds a draft token over seconds a target token, median of inputs.
    speedup: measured, median of inputs with quartiles.
    predicted: Theorem 3.8 at this alpha, gamma and c.
    identical: how many outputs equal the target's own; None where they are sampled.
    inputs: how many there were.
    plain_score: the metric of the target's own outputs; None where there is no metric.
    score: of the speculative ones.
    draft_score: of the draft's own outputs.
  """

  temperature: float
  gamma: int
  draft: str
  alpha: Estimate
  tokens_per_call: Estimate
  c: float
  speedup: Spread
  predicted: float
  identical: int | None
  inputs: int
  plain_score: float | None
  score: float | None
  draft_score: float | None


@dataclasses.dataclass(frozen=True)
class Comparison:
  """What is compared, and on what.

  Attributes:
    target: the target.
    drafts: by name.
    processor: the vocabulary of all.
    texts: (input, reference) pairs.
    metric: (references, outputs) -> score; None where outputs have no score.
    gamma: tokens drafted an iteration.
    max_input: tokens of an input; longer ones are cut.
    max_output: room for an output, in tokens.
    are_prompts: whether inputs have no end of sequence: outputs go on from them.
  """

  target: Model
  drafts: dict[str, Model]
  processor: sentencepiece.SentencePieceProcessor
  texts: Sequence[tuple[str, str]]
  metric: Callable[[list[str], list[str]], float] | None
  gamma: int
  max_input: int
  max_output: int
  are_prompts: bool = False

  def rows(self, temperature: float) -> list[Row]:
    """Measures every draft at one temperature."""
    sampling = Sampling(temperature=temperature)
    programs = {"plain": self._program(self.target, None, sampling)}
    for name, draft in self.drafts.items():
      programs[f"{name} alone"] = self._program(draft, None, sampling)
      programs[name] = self._program(self.target, draft, sampling)
    timed = alternate(programs, list(enumerate(self._encoded())))
    return [self._row(timed, name, temperature) for name in self.drafts]

  def _program(self, target, draft, sampling):
    network, params = api.together(target, draft, self.gamma)
    params = jax.device_put(params)
    eos_id = self.processor.eos_id()
    run = api.compiled(network, sampling, self.max_output, eos_id)
    # Keys are made before the clock starts, one for each input.
    keys = [row_keys(jax.random.key(i), 1) for i in range(len(self.texts))]
    return lambda item: run(params, item[1], keys[item[0]])

  def _encoded(self):
    end = [] if self.are_prompts else [self.processor.eos_id()]
    for text, _ in self.texts:
      ids = [*self.processor.encode(text)[: self.max_input - len(end)], *end]
      row = np.zeros((1, self.max_input), np.int32)
      row[0, : len(ids)] = ids
      yield jnp.asarray(row)

  def _row(self, timed: dict[str, Timed], name: str, temperature: float) -> Row:
    plain, alone, ours = timed["plain"], timed[f"{name} alone"], timed[name]
    counts = {
      field: np.array([int(getattr(r.statistics, field)[0]) for r in ours.results])
      for field in ("emitted", "target_calls", "acceptance_positions")
    }
    mass = [float(r.statistics.acceptance_mass[0]) for r in ours.results]
    alpha = ratio(np.array(mass), counts["acceptance_positions"])
    c = median_ratio(_per_token(alone), _per_token(plain)).median
    return Row(
      temperature=temperature,
      gamma=self.gamma,
      draft=name,
      alpha=alpha,
      tokens_per_call=ratio(counts["emitted"], counts["target_calls"]),
      c=c,
      speedup=median_ratio(_per_token(plain), _per_token(ours)),
      predicted=float(theory.walltime_improvement(alpha.value, self.gamma, c)),
      identical=None if temperature else _identical(plain, ours),
      inputs=len(self.texts),
      plain_score=self._score(plain),
      score=self._score(ours),
      draft_score=self._score(alone),
    )

  def _score(self, timed: Timed) -> float | None:
    if self.metric is None:
      return None
    references = [reference for _, reference in self.texts]
    outputs = []
    for result in timed.results:
      tokens = np.asarray(result.tokens[0]).tolist()
      known = [token for token in tokens if 0 < token < self.processor.vocab_size()]
      outputs.append(self.processor.decode(known))
    return self.metric(references, outputs)


def _per_token(timed: Timed) -> np.ndarray:
  tokens = [int(result.statistics.emitted[0]) for result in timed.results]
  return timed.seconds / np.array(tokens)


def _identical(one: Timed, other: Timed) -> int:
  pairs = zip(one.results, other.results, strict=True)
  return sum(bool((a.tokens == b.tokens).all()) for a, b in pairs)
