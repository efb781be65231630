"""The acceptance of a draft on a target's greedy outputs, without decoding.

At T = 0 a drafted token is accepted if it is the target's. So alpha, the mean over all
prefixes of an output, is the share of positions at which the draft's argmax is the
target's token. These positions also determine every call of greedy decoding.

Shapes: B batch, L length, N tokens of an output.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Array, Bool

from specdec_t5x import speed
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.network.functional import Network
from specdec_t5x.training.objectives import Batch, Params, Supervised

Hits = Sequence[Bool[np.ndarray, "N"]]


def hits_of(network: Network, params: Params, packed: Iterable[Batch]) -> Hits:
  """Returns for each output where the draft's argmax is the output's token.

  Args:
    network: the draft.
    params: the draft's parameters.
    packed: packed batches of the target's outputs.
  """
  hits = []
  for batch in packed:
    of_batch = np.asarray(_hits(network, params, batch))
    for row, segments in zip(of_batch, batch["decoder_segment_ids"], strict=True):
      hits += [row[segments == i] for i in range(1, segments.max() + 1)]
  return hits


@functools.partial(jax.jit, static_argnums=0)
def _hits(network: Network, params: Params, batch: Batch) -> Bool[Array, "B L"]:
  return Supervised()(network, params, batch, None).hits


def tokens_per_call(hits: Hits, gamma: int) -> float:
  """Returns the tokens per call of greedy decoding with `gamma` drafted tokens.

  >>> output = np.array([True, True, False, True, True])
  >>> [round(tokens_per_call([output], gamma), 2) for gamma in (0, 1, 2, 3)]
  [1.0, 1.67, 2.5, 2.5]
  """
  calls = 0
  for row in hits:
    first = 0
    while first < len(row):
      draft = row[first : first + gamma]
      accepted = len(draft) if draft.all() else draft.argmin()
      first += accepted + 1
      calls += 1
  return sum(map(len, hits)) / calls


def gain(
  hits: Hits, gamma: int, policy: CostAware, choices: tuple[int, ...]
) -> Mapping[str, float]:
  """Returns alpha, tokens per call, and the speedup over plain decoding.

  Args:
    hits: see `hits_of`.
    gamma: draft length of the tokens per call.
    policy: the policy with the times of this device; without times there is no speedup.
    choices: the draft lengths of the times. The speedup is that of the best length.
  """
  result = {
    "alpha": float(np.concatenate(hits).mean()),
    "tokens_per_call": tokens_per_call(hits, gamma),
  }
  if policy.seconds:
    tokens = [tokens_per_call(hits, length) for length in choices]
    result["speedup"] = speed.best_speedup(policy, tokens)
  return result
