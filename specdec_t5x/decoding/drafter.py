"""What a way to draft is: the base class of `specdec_t5x.drafters`, and of your own.

Shapes: B rows, G drafted nodes, N = G + 1, E input length, C decisions, L uniforms a
decision.
"""

import abc
import enum
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from jaxtyping import Array, Float

from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal, Verdict
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.network.functional import check_same_vocabulary


class Stops(enum.Enum):
  """When a drafter's drafts end before their trees do."""

  NEVER = "never: a policy chooses the whole draft or none"
  BY_ITSELF = "often, whatever the policy: the target's blocks are no wider than needed"
  AT_LENGTH = "at the length that the policy gives: shorter drafts cost less"


class Drafter(abc.ABC):
  """A way to propose tokens: a frozen dataclass of its knobs.

  Its state is any pytree; the loop only carries it.

  Attributes:
    independent: whether siblings are independent draws from one distribution. Else they
      are certain, or drawn without replacement.
    stops: when a draft ends before its tree does.
    resumes: whether it drafts on after tokens that the target decoded by itself. Else
      a batch that rests goes on so until its rows have ended.
    taps: depths of the target whose features `commit` gets side by side.
    has_own_tokens: whether its networks' tokens are others than the target's, which the
      drafter maps itself.
    prior_alpha: the acceptance rate that policies expect before the first draft; None
      is the policy's own.
  """

  independent: ClassVar[bool] = True
  stops: ClassVar[Stops] = Stops.NEVER
  resumes: ClassVar[bool] = False
  taps: ClassVar[int] = 1
  has_own_tokens: ClassVar[bool] = False
  prior_alpha: ClassVar[float | None] = None

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
    return tuple(every) if self.stops is Stops.AT_LENGTH else (0, self.depth)

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
    parameters of a network do (`Target.derived`).
    """
    del target
    return {}

  def default_policy(self, is_named: bool) -> str:
    """Returns the name of the policy that applies where none is asked for.

    Args:
      is_named: whether a gin file or a name asked for the drafter; else it was built in
        Python.
    """
    del is_named
    return "fixed"

  def check(self, target: Any) -> None:
    """Raises a ValueError where this drafter can't draft for a target network."""
    for name, network in self.networks.items():
      check_same_vocabulary(target, network, name)

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
      uniforms: independent draws from U[0, 1), L for each of C = `decisions`. Where
        draws are coupled the i-th is of the i-th place to come, and a token that is the
        argmax of `core.distributions.perturbed` with it is likely the target's.

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
