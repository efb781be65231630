"""What a way to draft is: the base class of `specdec_t5x.drafters`, and of your own.

Shapes: B rows, G drafted nodes, N = G + 1, E input length, C decisions, L uniforms a
decision.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Cache, ExtendFn, Proposal, Verdict
from specdec_t5x.decoding.policy import Fixed, Policy
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.network.functional import (
  EmbedFn,
  LogitsFn,
  WithoutFn,
  check_same_vocabulary,
)


@dataclasses.dataclass(frozen=True)
class Context:
  """What a drafter is given for one decode.

  Attributes:
    sampling: the adjustment that the target's law gets, and so the draft's.
    max_length: room for the output, in tokens.
    eos_id: the token that ends a sequence.
    vocab_size: of the target.
    target: scores tokens; its cache is the state's `target_cache`.
    extend: the drafter's own networks, by name.
    start: from a network's name to its first cache, which holds what comes before an
      output but for the last token: for the inputs, a row each, of the state.
    params: the parameters of the drafter's networks, and what it made of the target's,
      by name.
    source: what the target's encoder reads, zero-padded, a row each; without content
      where there is no encoder.
    logits: the target's own projection of features.
    embed: the target's own embedding of tokens.
    without: from the names of sublayers to the target without them, on its own caches;
      in `rounded` weights where it is given such.
    policy: decides how many tokens each row drafts.
    lengths: of drafts that differ in what they cost (`Drafter.lengths`).
    behind: how many of the last known tokens a draft's cache may lack: the last drafted
      one and the one after it; and one more for each speculation above that judges.
  """

  sampling: Sampling
  max_length: int
  eos_id: int
  vocab_size: int
  target: ExtendFn
  extend: Mapping[str, ExtendFn] = dataclasses.field(default_factory=dict)
  start: Callable[[str], Cache] | None = None
  params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  source: Int[Array, "B E"] | None = None
  logits: LogitsFn | None = None
  embed: EmbedFn | None = None
  without: WithoutFn | None = None
  policy: Policy = dataclasses.field(default_factory=Fixed)
  lengths: tuple[int, ...] = ()
  behind: int = 2

  def most(self, state: DecodeState) -> Int[Array, "B"]:
    """Returns how many drafted tokens of each row may count in the next iteration.

    None in rows that have ended; less than what remains, for the target adds a token.
    """
    rows = state.lengths.shape[0]
    most = self.policy.most(state.policy_state, rows, self.lengths)
    remaining = jnp.maximum(state.room(self.max_length) - 1, 0)
    return jnp.where(state.ended, 0, jnp.minimum(most, remaining))


class Drafter(abc.ABC):
  """A way to propose tokens: a frozen dataclass of its knobs.

  Its state is any pytree; the loop only carries it.

  Attributes:
    independent: whether siblings are independent draws from one distribution. Else they
      are certain, or drawn without replacement.
    varies: whether drafts are often shorter than their tree, whatever the policy; the
      target's blocks are then no wider than needed.
    stops_early: whether it asks the policy before and after each token, so that shorter
      drafts cost less. Else a policy has all of a draft or nothing.
    resumes: whether it drafts on after tokens that the target decoded by itself. Else
      a batch that rests goes on so until its rows have ended.
    usual_policy: which policy it has where none is named.
  """

  independent: ClassVar[bool] = True
  varies: ClassVar[bool] = False
  stops_early: ClassVar[bool] = False
  resumes: ClassVar[bool] = False
  usual_policy: ClassVar[Policy] = Fixed()

  @property
  @abc.abstractmethod
  def tree(self) -> Tree:
    """The shape of every proposal; where rows have trees of their own, its size."""

  @property
  def depth(self) -> int:
    """The most drafted tokens that can stand together."""
    return self.tree.depth

  @property
  def lengths(self) -> tuple[int, ...]:
    """The lengths of drafts that differ in what they cost, from none to the longest."""
    every = range(self.depth + 1)
    return tuple(every) if self.stops_early else (0, self.depth)

  @property
  def decisions(self) -> int:
    """How many decisions a draft takes uniforms for: by default one a node."""
    return self.tree.size

  @property
  def networks(self) -> Mapping[str, Any]:
    """The networks that it needs beside the target, by name: {"draft": network}.

    Parameters, checkpoints and shardings go by these names.
    """
    return {}

  def derived(self, target: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Returns what it makes of a target's parameters: hashable functions, by name.

    That is made once, before anything is compiled, and goes by its name as the
    parameters of a network do (`Context.params`).
    """
    del target
    return {}

  def check(self, target: Any) -> None:
    """Raises a ValueError where this drafter can't draft for a target network."""
    for name, network in self.networks.items():
      check_same_vocabulary(target, network, name)

  def check_batch(
    self, sampling: Sampling, vocab_size: int, rows: int, inputs: int, slots: int
  ) -> None:
    """Raises a ValueError where this drafter can't draft for so large a batch.

    Args:
      sampling: the adjustment of the target's distributions.
      vocab_size: of the target.
      rows: that decode at once.
      inputs: tokens of a row that the target's encoder reads.
      slots: places of a row's sequence.
    """
    del sampling, vocab_size, rows, inputs, slots

  def start(self, context: Context) -> Any:
    """Returns the first state."""
    del context

  @abc.abstractmethod
  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B C L"]
  ) -> tuple[Proposal, Any]:
    """Drafts what follows the known tokens of each row.

    Args:
      context: of the decode.
      state: where it stands: tokens, lengths, the target's cache, this drafter's state.
      uniforms: independent draws from U[0, 1), L for each of C = `decisions`.

    Returns:
      The proposal, whose q is exactly what its tokens were drawn from, and this
      drafter's state after it.
    """

  def commit(
    self,
    context: Context,
    drafter_state: Any,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> Any:
    """Returns the state once the target has judged the last proposal.

    Args:
      context: of the decode.
      drafter_state: as `propose` left it.
      verdict: what became of the proposal.
      features: the target's, at each node of the tree.
    """
    del context, verdict, features
    return drafter_state

  def counted(self) -> Mapping[str, int]:
    """Returns what it counted outside of programs, for a run's record."""
    return {}
