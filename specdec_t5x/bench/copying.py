"""Walltime of the copy draft on real texts whose outputs are known.

How much can be copied is a matter of the texts, and how long a call takes one of the
network's size. So the target runs in full, with random weights, and its argmax is bent
to a given output, such as the highlights that people wrote for an article. What a
trained model of that size would write may copy more or less.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec_t5x import assemble
from specdec_t5x.bench.walltime import Spread, alternate, median_ratio
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding import baseline, generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.oracle import oracle_extend
from specdec_t5x.network.sizes import random_params, t5_1_1
from specdec_t5x.network.transformer import Transformer


@dataclasses.dataclass(frozen=True)
class Replayed:
  """What copying with one least match came to.

  Attributes:
    copy_match: how many of the last tokens must stand where it copies.
    speedup: seconds of plain decoding over seconds with copying, of each text.
    in_all: the same, of all texts together.
    tokens_per_call: output tokens a call of the target.
    alpha: accepted over tried tokens.
    identical: how many outputs were the given ones, in both programs.
    texts: how many there were.
  """

  copy_match: int
  speedup: Spread
  in_all: float
  tokens_per_call: float
  alpha: float
  identical: int
  texts: int


class Replay:
  """A target of random weights that says given outputs, plain and with copying.

  Args:
    size: of the target; one of `network.sizes.SIZES`.
    gamma: the longest draft, in tokens.
    max_length: room for an output, in tokens.
    eos_id: the token that ends it.
  """

  def __init__(self, size: str, gamma: int, max_length: int, eos_id: int):
    self._target = Transformer(t5_1_1(size))
    self._params = {"target": random_params(self._target, 0)}
    self._gamma, self._max_length, self._eos_id = gamma, max_length, eos_id
    self._keys = row_keys(jax.random.key(0), 1)

  def measure(
    self,
    texts: Sequence[tuple[Int[Array, "1 E"], Int[Array, "1 T"]]],
    matches: Sequence[int],
  ) -> list[Replayed]:
    """Decodes every text plainly and with each least match, in turn.

    Args:
      texts: input and output tokens of each, zero-padded; each output ends.
      matches: least matches, `assemble.Pair.copy_match`.
    """
    programs = {match: self._copying(match) for match in matches}
    timed = alternate({"plain": self._plain(), **programs}, texts)
    plain = timed.pop("plain")
    return [self._replayed(match, plain, timed[match], texts) for match in matches]

  def _plain(self):
    @jax.jit
    def run(params, inputs, outputs):
      extend, state = assemble.prepare_plain(
        self._target, params["target"], inputs, self._keys, self._max_length
      )
      extend = oracle_extend(extend, outputs)
      return baseline.generate_plain(
        extend, GREEDY, state, self._max_length, self._eos_id
      )

    return lambda text: run(self._params, *text)

  def _copying(self, match):
    pair = assemble.Pair(
      self._target, None, self._gamma, drafter="copy", copy_match=match
    )

    @jax.jit
    def run(params, inputs, outputs):
      spec, state = assemble.prepare(
        pair, params, inputs, self._keys, GREEDY, self._max_length, self._eos_id
      )
      extend = oracle_extend(spec.extend, outputs)
      return generate.generate(dataclasses.replace(spec, extend=extend), state)

    return lambda text: run(self._params, *text)

  def _replayed(self, match, plain, ours, texts):
    total = lambda name: sum(
      int(getattr(result.statistics, name).sum()) for result in ours.results
    )
    same = [
      bool((one.tokens == given).all() and (other.tokens == given).all())
      for one, other, (_, given) in zip(plain.results, ours.results, texts, strict=True)
    ]
    return Replayed(
      copy_match=match,
      speedup=median_ratio(plain.seconds, ours.seconds),
      in_all=float(plain.seconds.sum() / ours.seconds.sum()),
      tokens_per_call=total("emitted") / total("target_calls"),
      alpha=total("accepted") / max(total("acceptance_positions"), 1),
      identical=sum(same),
      texts=len(texts),
    )


def padded(tokens: Sequence[int], length: int, eos_id: int) -> Int[Array, "1 length"]:
  """Returns tokens cut to leave room for the end of sequence, ended and padded."""
  row = np.zeros((1, length), np.int32)
  kept = [*tokens[: length - 1], eos_id]
  row[0, : len(kept)] = kept
  return jnp.asarray(row)
