"""What each kind of a decoder's sublayers takes in a draft: measured, or by weights."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec_t5x import api
from specdec_t5x.analysis.layers import LayerCosts
from specdec_t5x.bench import costs, parts, programs
from specdec_t5x.bench.parts import NEVER
from specdec_t5x.bench.walltime import alternate
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.layer_skip import LayerSkip
from specdec_t5x.drafters.policies import Whole
from specdec_t5x.network.config import NetworkConfig

_ITERATIONS = 10


def by_weights(config: NetworkConfig, longest: int) -> LayerCosts:
  """Returns costs as if reading each weight took the same time, and nothing else any.

  So it nearly is where one row is decoded on a device that memory bounds. The
  keys and values of the input are computed once and not counted.

  Args:
    config: of the target.
    longest: gamma.
  """
  attention = config.emb_dim * config.num_heads * config.head_dim
  feed_forward = (len(config.mlp_activations) + 1) * config.emb_dim * config.mlp_dim
  weights = {"self": 4 * attention, "cross": 2 * attention, "mlp": feed_forward}
  if not hasattr(config, "num_encoder_layers"):
    del weights["cross"]
  rest = config.emb_dim * config.vocab_size
  whole = rest + config.num_decoder_layers * sum(weights.values())
  kinds = {kind: count / whole for kind, count in weights.items()}
  return LayerCosts(kinds, rest / whole, (1.0,) * longest)


def measured(
  target: api.Model,
  texts: Int[Array, "B E"],
  sampling: Sampling,
  room: int,
  longest: int,
  runs: int,
) -> LayerCosts:
  """Returns costs as timed on this device, all programs in turn.

  A kind's is what drafting saves without it; a block's that of an iteration whose
  draft has no sublayer, less the draft.

  Args:
    target: the model.
    texts: inputs that are decoded at once.
    sampling: the adjustment of both laws.
    room: for the outputs, in tokens.
    longest: gamma.
    runs: of each program.

  Raises:
    ValueError: where there is no room for a draft, or times are lost in noise.
  """
  names = target.network.sublayers
  kinds = list(dict.fromkeys(name.partition("_")[0] for name in names))
  skips = {kind: [n for n in names if n.startswith(f"{kind}_")] for kind in kinds}
  skips |= {"whole": [], "rest": names}
  if room <= longest + 1:
    raise ValueError(
      f"Expected room for a draft of {longest} tokens and one more, got {room}. Raise "
      "--max-length or lower --gamma."
    )
  decoder, params = programs.together(target)
  arguments = params, texts, row_keys(jax.random.key(0), texts.shape[0])
  plain = parts.plain_program(
    lambda *given: decoder.prepare(*given, room), sampling, room
  )
  found = {"plain": (plain, min(_ITERATIONS, room))}
  start = lambda skip, gamma: _start(target, skip, gamma, sampling, room)
  for name, skip in skips.items():
    draft = parts.part_programs(start(skip, longest))["draft"]
    found[name] = draft, _ITERATIONS
  for gamma in range(1, longest + 1):
    count = max(1, min(_ITERATIONS, (room - 1) // (gamma + 1)))
    found[gamma] = parts.iterated(start(names, gamma)), count
  timed = alternate(
    {
      (name, count): lambda _, run=run, count=count: run(jnp.int32(count), *arguments)
      for name, (run, most) in found.items()
      for count in (0, most)
    },
    range(runs),
  )
  slopes = parts.costs({key: each.seconds for key, each in timed.items()})
  return _costs(costs.medians(slopes, longest), skips, names, longest)


def _start(target, skip, gamma, sampling, room) -> parts.Prepare:
  drafter = LayerSkip(skip, gamma, Whole())
  decoder, _ = programs.together(target, None, drafter)
  return lambda *given: decoder.prepare(*given, sampling, room, NEVER)


def _costs(seconds, skips, names: Sequence[str], longest: int) -> LayerCosts:
  plain, rest = seconds["plain"], seconds["rest"] / longest
  count = len(names) // (len(skips) - 2)
  saved = {kind: seconds["whole"] - seconds[kind] for kind in skips}
  kinds = {
    kind: float(np.maximum(saved[kind], 0.0)) / longest / count / plain
    for kind in skips
    if kind not in ("whole", "rest")
  }
  # What is drafted in no time at all still takes an iteration.
  blocks = [
    max(seconds[gamma] - gamma * rest, 1e-3 * plain) / plain
    for gamma in range(1, longest + 1)
  ]
  return LayerCosts(kinds, rest / plain, tuple(blocks))
