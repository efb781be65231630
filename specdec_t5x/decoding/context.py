"""The context of a decode: the networks and settings of drafters and the loop.

Shapes: B rows, E input length, P prompt length, V vocabulary, D width of the features.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.distributions import AdjustFn, Sampling
from specdec_t5x.core.ends import EndTokens
from specdec_t5x.core.types import Cache, ExtendFn
from specdec_t5x.decoding.policy import Fixed, Policy
from specdec_t5x.decoding.state import DecodeState


@dataclasses.dataclass(frozen=True)
class Beginning:
  """The inputs of networks before the first iteration.

  Attributes:
    inputs: encoder inputs, or prompts, padded.
    num_slots: cache slots of a row, besides the slots of the prompt.
    num_decodes: rows of an input.
    prompts: the tokens before the outputs, padded.
  """

  inputs: Int[Array, "I E"]
  num_slots: int
  num_decodes: int
  prompts: Int[Array, "I P"]


@dataclasses.dataclass(frozen=True)
class Target:
  """The target network as functions.

  Attributes:
    extend: scores tokens; its cache is the state's `target_cache`.
    vocab_size: V.
    logits: the projection of features to logits.
    embed: the embedding of tokens.
    without: makes `extend` of the target without the named sublayers, on the target's
      caches, optionally with rounded matrices.
    derived: arrays that were computed from the target's parameters, by name
      (`Drafter.derived`).
    is_fixed: whether `extend` computes blocks of one width (`decoding.widths`).
  """

  extend: ExtendFn
  vocab_size: int
  logits: Callable[[Float[Array, "*B D"]], Float[Array, "*B V"]] | None = None
  embed: Callable[[Int[Array, "*B"]], Float[Array, "*B D"]] | None = None
  without: Callable[..., ExtendFn] | None = None
  derived: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  is_fixed: bool = False


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A network of the drafter as functions.

  Attributes:
    extend: scores tokens.
    start: returns the first cache, which lacks the last token before the output. A
      function may change the target's `Beginning`, for networks with other tokens.
    params: the parameters.
  """

  extend: ExtendFn
  start: Callable[..., Cache]
  params: Any = None


@dataclasses.dataclass(frozen=True)
class Context:
  """The networks and settings of a decode, for its drafter.

  Attributes:
    sampling: the adjustment of the target's distribution, and so of the draft's.
    adjust: computes the adjusted distribution, for target and draft alike.
    max_length: the most tokens of the output.
    eos_id: the EOS token, or several.
    target: verifies drafts.
    networks: the drafter's own networks, by name.
    source: the encoder's inputs of the rows, zero-padded; empty without an encoder.
    policy: decides how many tokens each row drafts.
    behind: the most known tokens that a draft's cache may lack: the last drafted token,
      the target's token after the draft, and one token for each outer speculation.
  """

  sampling: Sampling
  adjust: AdjustFn
  max_length: int
  eos_id: EndTokens
  target: Target
  networks: Mapping[str, Loaded] = dataclasses.field(default_factory=dict)
  source: Int[Array, "B E"] | None = None
  policy: Policy = dataclasses.field(default_factory=Fixed)
  behind: int = 2

  def draft_lengths(
    self, state: DecodeState, choices: tuple[int, ...]
  ) -> Int[Array, "B"]:
    """Returns the most drafted tokens of each row that count in the next iteration.

    The number is 0 in rows that have ended, and leaves room for the target's own token.

    Args:
      state: the decode's state.
      choices: draft lengths of different cost (`Drafter.lengths`).
    """
    rows = state.lengths.shape[0]
    lengths = self.policy.lengths(state.policy_state, rows, choices)
    room = jnp.where(state.ended, 0, state.remaining(self.max_length) - 1)
    return jnp.minimum(lengths, jnp.maximum(room, 0))
