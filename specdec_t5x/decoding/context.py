"""What drafters and the loop are given for one decode.

Shapes: B rows, E input length, V vocabulary, D width of the features.
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
class Target:
  """The target network as functions.

  Attributes:
    extend: scores tokens; its cache is the state's `target_cache`.
    vocab_size: how many tokens there are.
    logits: its projection of features.
    embed: its embedding of tokens.
    without: from the names of sublayers to the target without them, on its own caches;
      with rounded matrices where it is given such.
    derived: what the drafter made of its parameters, by name (`Drafter.derived`).
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
  """A network of the drafter's as functions.

  Attributes:
    extend: scores tokens.
    start: its first cache, which holds what comes before an output but for the last
      token: for the inputs, a row each, of the state. It may be given what makes
      another `decoders.Beginning` of the target's.
    params: its parameters.
  """

  extend: ExtendFn
  start: Callable[..., Cache]
  params: Any = None


@dataclasses.dataclass(frozen=True)
class Context:
  """What a drafter is given for one decode.

  Attributes:
    sampling: the adjustment that the target's distribution gets, and so the draft's.
    adjust: computes it, of target and draft alike.
    max_length: the most tokens of the output.
    eos_id: the token that ends a sequence, or all such tokens.
    target: the network that judges drafts.
    networks: the drafter's own, by name.
    source: what the target's encoder reads, zero-padded, a row each; without content
      where there is no encoder.
    policy: decides how many tokens each row drafts.
    behind: how many of the last known tokens a draft's cache may lack: the last drafted
      one and the one after it; and one more for each speculation above that judges.
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

  def most(
    self,
    state: DecodeState,
    lengths: tuple[int, ...],
  ) -> Int[Array, "B"]:
    """Returns how many drafted tokens of each row may count in the next iteration.

    None in rows that have ended; less than what remains, for the target adds a token.

    Args:
      state: where the decode stands.
      lengths: of drafts that differ in what they cost (`Drafter.lengths`).
    """
    remaining = jnp.where(state.ended, 0, state.remaining(self.max_length))
    return self.policy.within(state.policy_state, remaining, lengths)
