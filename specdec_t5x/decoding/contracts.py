"""The contracts of a decode: drafters, policies, observers.

A policy knows no token of the next draft, so every rule keeps its guarantee.

Shapes: B rows, E input length, G drafted nodes, N = G + 1, V vocabulary, D width of the
features, C decisions, L uniforms a decision.
"""

import abc
import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from specdec_t5x.core.distributions import AdjustFn, Sampling
from specdec_t5x.core.knobs import check_knobs
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Cache, EndTokens, Proposal, Rule, Verdict
from specdec_t5x.decoding.state import DecodeState, Iteration, StepInfo
from specdec_t5x.network.functional import check_same_vocabulary
from specdec_t5x.network.net import Net


@dataclasses.dataclass(frozen=True)
class Context:
  """How to decode: everything that is fixed when the program is compiled.

  Attributes:
    drafter: proposes tokens; None in plain decoding.
    rule: accepts drafted tokens, for these settings of sampling (`Rule.at`).
    rule_sampling: the adjustment of the target's distribution for the rule.
    policy: decides how many tokens each row drafts.
    sampling: the adjustment of target and draft where tokens are drawn.
    adjust: computes the adjusted distribution.
    max_length: the most tokens of the output.
    eos_id: the EOS token, or several.
    target: verifies drafts.
    networks: the drafter's own networks, by name.
    widths: the widths of the target's blocks to choose from; at most one for whole
      blocks.
    behind: the most known tokens that a draft's cache may lack: two, and one for each
      outer speculation.
    room: a row's cache slots for the output.
    encode: the function of `first_state`; None if nothing is encoded.
    stops_early: whether a loop over drafted tokens ends when all rows have stopped.
      Otherwise the loop has a known number of turns.
  """

  drafter: "Drafter | None"
  rule: Rule
  rule_sampling: Sampling
  policy: "Policy"
  sampling: Sampling
  adjust: AdjustFn
  max_length: int
  eos_id: EndTokens
  target: Net
  networks: Mapping[str, Net] = dataclasses.field(default_factory=dict)
  widths: tuple[int, ...] = ()
  behind: int = 2
  room: int = 0
  encode: Callable[..., DecodeState] | None = None
  stops_early: bool = True

  def first_state(
    self, inputs: Int[Array, "B E"], keys: Key[Array, "R"]
  ) -> DecodeState:
    """Returns the first state of the outputs of inputs, each encoded once."""
    return self.encode(self, inputs, keys)

  def draft_lengths(self, state: DecodeState) -> Int[Array, "B"]:
    """Returns the most drafted tokens of each row that count in the next iteration."""
    lengths = self.policy.lengths(state.policy_state, lengths_of(self.drafter))
    # The last token is the target's own.
    room = jnp.where(state.ended, 0, state.remaining(self.max_length) - 1)
    return jnp.minimum(lengths, jnp.maximum(room, 0))


class Stops(enum.Enum):
  """When drafts end before their trees do."""

  NEVER = "never: a policy chooses the whole draft or none"
  BY_ITSELF = "often, under every policy: the target's blocks are as wide as needed"
  AT_LENGTH = "at the length that the policy gives: shorter drafts cost less"


@dataclasses.dataclass(frozen=True)
class Traits:
  """The declared facts about a drafter.

  Attributes:
    independent: whether siblings are independent draws from one distribution.
    stops: when a draft ends before its tree does.
    resumes: whether the drafter can draft again after an iteration without a draft.
      Otherwise the batch does not draft again until all its present rows have ended.
    taps: number of target layers with features for `commit`, side by side.
    reads_target: whether the drafter reads the target's features or cache.
    decisions: the number of decisions of a draft; None is the number of nodes.
    prior_alpha: the acceptance rate that policies expect before the first draft; None
      leaves the rate to the policy.
    auto: when 'auto' is the default policy, instead of 'fixed': if a gin file or a name
      asked for the drafter ('named'), or in Python, too.
  """

  independent: bool = True
  stops: Stops = Stops.NEVER
  resumes: bool = False
  taps: int = 1
  reads_target: bool = False
  decisions: int | None = None
  prior_alpha: float | None = None
  auto: Literal["never", "named", "always"] = "never"


@dataclasses.dataclass(frozen=True)
class Batch:
  """The rows, input length, cache slots and sampling of a batch, for checks."""

  sampling: Sampling
  rows: int
  input_length: int
  slots: int


class Drafter(abc.ABC):
  """A way to propose tokens: a frozen dataclass of its knobs.

  A drafter defines `tree` and `propose`; a drafter with networks or a state (any
  pytree) also defines `networks`, `start` and `commit`.
  """

  traits: ClassVar[Traits] = Traits()

  def __post_init__(self):
    check_knobs(self)

  @property
  @abc.abstractmethod
  def tree(self) -> Tree:
    """The shape of proposals; only the size matters if rows choose trees."""

  @property
  def depth(self) -> int:
    """The most drafted tokens that can be accepted together."""
    return self.tree.depth

  @property
  def networks(self) -> Mapping[str, Any]:
    """The networks beside the target, by the names of their parameters."""
    return {}

  def derive(self, target: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Returns hashable functions of the target's parameters, by name.

    The results are computed once, before anything is compiled (`Net.derived`).
    """
    return {}

  def start(
    self, context: Context, caches: Mapping[str, Cache], source: Int[Array, "B E"]
  ) -> Any:
    """Returns the first state.

    Args:
      context: how to decode.
      caches: the networks' first caches, by name, without the last known token.
      source: the encoder's inputs of the rows, zero-padded; empty without an encoder.
    """
    return None

  @abc.abstractmethod
  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B C L"]
  ) -> tuple[Proposal, Any]:
    """Drafts the continuation of each row.

    Args:
      context: how to decode.
      state: the decode's state, with the state of this drafter.
      uniforms: independent draws from U[0, 1), L for each of C decisions. Of coupled
        draws the i-th belong to the i-th position after the known tokens
        (`core.noise.perturbed`).

    Returns:
      The proposal, with exactly the distributions q that the tokens were drawn from,
      and the new state of this drafter.
    """

  def commit(
    self,
    context: Context,
    drafter_state: Any,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> Any:
    """Returns the state after the target has verified the last proposal.

    `features` are the target's features at each node of the tree.
    """
    return drafter_state

  def check(self, target: Any, batch: Batch | None = None) -> None:
    """Raises a ValueError if this drafter can't draft for a target network."""
    for name, network in self.networks.items():
      check_same_vocabulary(target, network, name)


def decisions_of(drafter: Drafter) -> int:
  """Returns the number of decisions of a draft."""
  return drafter.traits.decisions or drafter.tree.size


def decisions(drafter: Drafter | None) -> int:
  """Returns the number of decisions of an iteration: draws, tests, the next token."""
  return 1 if drafter is None else decisions_of(drafter) + drafter.tree.size + 1


def lengths_of(drafter: Drafter) -> tuple[int, ...]:
  """Returns the draft lengths of different cost, from 0 to the longest."""
  if drafter.traits.stops is Stops.AT_LENGTH:
    return tuple(range(drafter.depth + 1))
  return 0, drafter.depth


class Policy(abc.ABC):
  """How many tokens each row drafts next: a frozen dataclass of its knobs.

  The state is any pytree of arrays with an entry for each row of the batch.

  Attributes:
    may_rest: whether `lengths` may be 0 in rows that are still decoded. If no row
      drafts, the target decodes a token by itself.
  """

  may_rest: ClassVar[bool] = False

  def start(
    self, rows: int, before: Any = None, is_new: Bool[Array, "B"] | None = None
  ) -> Any:
    """Returns the state before the first draft of outputs.

    Args:
      rows: B.
      before: the rows' state after earlier outputs; None before the first outputs.
      is_new: the rows that begin another output; None is every row.
    """
    return before

  @abc.abstractmethod
  def lengths(self, policy_state: Any, choices: tuple[int, ...]) -> Int[Array, "#B"]:
    """Returns how many tokens each row drafts next, for `choices` of `lengths_of`."""

  def update(self, policy_state: Any, info: StepInfo) -> Any:
    """Returns the state after one more iteration of every row."""
    return policy_state


@runtime_checkable
class Observer(Protocol):
  """Records iterations, in arrays with a row for each output.

  A decoder's also has `check` and `auxiliary` (`contrib.online.rejections`).
  """

  def start(self, rows: int, max_length: int) -> Any:
    """Returns the record before the first iteration."""

  def observe(self, record: Any, before: DecodeState, iteration: Iteration) -> Any:
    """Returns the record after an iteration from the state `before`."""
