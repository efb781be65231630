"""A target, a draft and the loop, put together: from encoder inputs to outputs.

What the T5X models and `specdec_t5x.generate` share.
"""

import dataclasses

from jaxtyping import Array, Int, Key

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import get_rule
from specdec_t5x.decoding import baseline, generate, state
from specdec_t5x.decoding.state import Decoded, DecodeState
from specdec_t5x.decoding.step import Speculation
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.functional import start_decoding
from specdec_t5x.network.transformer import Transformer

DRAFTERS = ("draft_model",)
PAIR = ("target", "draft")


@dataclasses.dataclass(frozen=True)
class Pair:
  """A target and a draft, and how they speculate.

  Attributes:
    target: the network whose law is kept.
    draft: the network that drafts, over the same vocabulary.
    gamma: tokens drafted an iteration.
    drafter: how tokens are drafted; one of `DRAFTERS`.
    verification: name of a rule in `core.rules.RULES`.
  """

  target: Transformer
  draft: Transformer
  gamma: int
  drafter: str = "draft_model"
  verification: str = "token"

  def __post_init__(self):
    if self.gamma < 1 or self.gamma != int(self.gamma):
      raise ValueError(
        f"GAMMA must be a whole number of at least 1, got {self.gamma}. For decoding "
        "without speculation use configs/baseline_*.gin, or no draft."
      )
    if self.drafter not in DRAFTERS:
      raise ValueError(f"Unknown DRAFTER {self.drafter!r}; expected one of {DRAFTERS}.")
    sizes = [network.config.vocab_size for network in (self.target, self.draft)]
    if sizes[0] != sizes[1]:
      raise ValueError(
        f"Target and draft must share a vocabulary: the target's vocab_size is "
        f"{sizes[0]}, the draft's {sizes[1]}. Use a draft trained with the target's "
        "vocabulary (and padded to the same size)."
      )
    get_rule(self.verification)


def decode(
  pair: Pair,
  params,
  inputs: Int[Array, "B E"],
  keys: Key[Array, "R"],
  sampling: Sampling,
  max_length: int,
  eos_id: int,
) -> Decoded:
  """Decodes R / B outputs an input with speculation.

  Args:
    pair: the networks.
    params: {target, draft}.
    inputs: encoder tokens, zero-padded.
    keys: one a row; the rows of one input stand next to each other.
    sampling: the adjustment of both laws.
    max_length: room for the output, in tokens.
    eos_id: the token that ends a sequence.
  """
  spec, start = prepare(pair, params, inputs, keys, sampling, max_length, eos_id)
  return generate.generate(spec, start)


def prepare(
  pair: Pair,
  params,
  inputs: Int[Array, "B E"],
  keys: Key[Array, "R"],
  sampling: Sampling,
  max_length: int,
  eos_id: int,
) -> tuple[Speculation, DecodeState]:
  """Returns what the loop needs: how to step and where to start; as for `decode`."""
  slots = state.num_slots(max_length, pair.gamma)
  per_input = keys.shape[0] // inputs.shape[0]
  extend, cache = start_decoding(
    pair.target, params["target"], inputs, slots, per_input
  )
  draft_extend, draft_cache = start_decoding(
    pair.draft, params["draft"], inputs, slots, per_input
  )
  spec = Speculation(
    extend=extend,
    drafter=DraftModel(draft_extend, pair.gamma, sampling),
    rule=get_rule(pair.verification),
    sampling=sampling,
    gamma=pair.gamma,
    max_length=max_length,
    eos_id=eos_id,
  )
  start = state.initial_state(cache, draft_cache, keys, max_length, pair.gamma)
  return spec, start


def decode_plain(
  network: Transformer,
  params,
  inputs: Int[Array, "B E"],
  keys: Key[Array, "R"],
  sampling: Sampling,
  max_length: int,
  eos_id: int,
) -> Decoded:
  """Decodes one token a call; arguments as `decode`'s."""
  slots = state.num_slots(max_length, gamma=0)
  per_input = keys.shape[0] // inputs.shape[0]
  extend, cache = start_decoding(network, params, inputs, slots, per_input)
  start = state.initial_state(cache, None, keys, max_length, gamma=0)
  return baseline.generate_plain(extend, sampling, start, max_length, eos_id)
