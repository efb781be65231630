"""What both decode functions share: the model's view of a step, and two constants."""

from collections.abc import Callable, Mapping
from typing import Any

import flax
import jax
import numpy as np

# A log probability that stands for "impossible", yet survives float32 sums.
NEG_INF_VALUE = -1.0e7
NEG_INF = np.array(NEG_INF_VALUE)
# Temperatures below this mean greedy decoding.
MIN_TEMPERATURE = np.array(1e-4)


@flax.struct.dataclass
class DecodingState:
  """What the model sees at one decoding step.

  Attributes:
    cur_index: index of the token that is fed now, per row.
    sequences: [rows, length] tokens so far.
    cur_token: [rows, 1] the token that is fed now.
    cache: the model's cache.
  """

  cur_index: jax.Array
  sequences: jax.Array
  cur_token: jax.Array
  cache: Mapping[str, Any]


TokensToLogits = Callable[[DecodingState], tuple[jax.Array, Mapping[str, Any]]]
