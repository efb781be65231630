"""The base class of drafters, and the networks and settings that drafters are given.

The class is the base of those of `specdec_t5x.drafters`, and of your own.

Shapes: B rows, E input length, G drafted nodes, N = G + 1, V vocabulary, D width of the
features, C decisions, L uniforms a decision.
"""

import abc
import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.distributions import AdjustFn, Sampling
from specdec_t5x.core.knobs import check_knobs
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Cache, EndTokens, ExtendFn, Proposal, Verdict
from specdec_t5x.decoding.policy import Fixed, Policy
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.network.vocabulary import check_same_vocabulary


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
    start: returns the first cache, which lacks the last token before the output.
    params: the parameters.
  """

  extend: ExtendFn
  start: Callable[[], Cache]
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


class Stops(enum.Enum):
  """When drafts end before their trees do."""

  NEVER = "never: a policy chooses the whole draft or none"
  BY_ITSELF = "often, under every policy: the target's blocks are as wide as needed"
  AT_LENGTH = "at the length that the policy gives: shorter drafts cost less"


class DefaultGamma(int):
  """Marks a drafter's gamma as the default, not the user's choice.

  `dataclasses.replace` keeps the type, so a copy of a drafter keeps the mark.
  """


class Drafter(abc.ABC):
  """A way to propose tokens: a frozen dataclass of its knobs.

  A drafter defines `tree` and `propose`; a drafter with networks or a state (any
  pytree) also defines `networks`, `start` and `commit`. Everything else has a default.

  Attributes:
    independent: whether siblings are independent draws from one distribution. Otherwise
      siblings are certain, or drawn without replacement.
    stops: when a draft ends before its tree does.
    resumes: whether the drafter can draft again after an iteration without a draft.
      Otherwise the batch does not draft again until all its present rows have ended.
    taps: number of target layers with features for `commit`, side by side.
    reads_target: whether the drafter reads the target's features or cache.
    prior_alpha: the acceptance rate that policies expect before the first draft; None
      leaves the rate to the policy.
  """

  independent: ClassVar[bool] = True
  stops: ClassVar[Stops] = Stops.NEVER
  resumes: ClassVar[bool] = False
  taps: ClassVar[int] = 1
  reads_target: ClassVar[bool] = False
  prior_alpha: ClassVar[float | None] = None

  def __post_init__(self):
    check_knobs(self)

  @property
  @abc.abstractmethod
  def tree(self) -> Tree:
    """The shape of proposals; only the size matters if rows choose trees."""

  @property
  def networks(self) -> Mapping[str, Any]:
    """The networks beside the target, by name: {"draft": network}.

    Parameters, checkpoints and shardings have the same names.
    """
    return {}

  def start(self, context: Context) -> Any:
    """Returns the first state."""
    del context

  @abc.abstractmethod
  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B C L"]
  ) -> tuple[Proposal, Any]:
    """Drafts the continuation of each row.

    Args:
      context: the decode's networks and settings.
      state: the decode's state: tokens, lengths, the target's cache, and the state of
        this drafter.
      uniforms: independent draws from U[0, 1), L for each of C = `decisions`. If draws
        are coupled, the i-th belong to the i-th position after the known tokens, and
        the argmax of `core.distributions.perturbed` is likely the target's token.

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

    Args:
      context: the decode's networks and settings.
      drafter_state: the state after `propose`.
      verdict: the accepted path and the next token.
      features: the target's features at each node of the tree.
    """
    del context, verdict, features
    return drafter_state

  def check(self, target: Any) -> None:
    """Raises a ValueError if this drafter can't draft for a target network."""
    for name, network in self.networks.items():
      check_same_vocabulary(target, network, name)

  @property
  def depth(self) -> int:
    """The most drafted tokens that can be accepted together."""
    return self.tree.depth

  @property
  def has_default_length(self) -> bool:
    """Whether the draft length is a default; the outputs may then be shorter."""
    return isinstance(getattr(self, "gamma", None), DefaultGamma)

  @property
  def lengths(self) -> tuple[int, ...]:
    """The draft lengths of different cost, from 0 to the longest."""
    if self.stops is Stops.AT_LENGTH:
      return tuple(range(self.depth + 1))
    return 0, self.depth

  @property
  def decisions(self) -> int:
    """The number of decisions of a draft: by default the number of nodes."""
    return self.tree.size

  def default_policy(self, is_named: bool) -> str:
    """Returns the name of the default policy.

    Args:
      is_named: whether a gin file or a name asked for the drafter; otherwise it was
        built in Python.
    """
    del is_named
    return "fixed"

  def derived(self, target: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Returns hashable functions of the target's parameters, by name.

    The results are computed once, before anything is compiled, and are parameters of
    the decode with these names (`Target.derived`).
    """
    del target
    return {}

  def counted(self) -> Mapping[str, Any]:
    """Returns further counts of this process, for a run's record."""
    return {}

  def check_batch(
    self, sampling: Sampling, vocab_size: int, rows: int, input_length: int, slots: int
  ) -> None:
    """Raises a ValueError if the drafter can't draft for batches of this size.

    Args:
      sampling: the adjustment of all distributions.
      vocab_size: size of the target's vocabulary.
      rows: rows of a batch.
      input_length: tokens of a row's encoder input.
      slots: cache slots of a row.
    """
    del sampling, vocab_size, rows, input_length, slots
