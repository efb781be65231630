"""The vocabulary of speculative decoding: proposals, verdicts, guarantees, rules.

Letters, everywhere in this project (Leviathan et al., ICML 2023): p is the target's
distribution (`target_probs`), q the draft's (`draft_probs`). Accepted tokens are
drafted tokens that the target let pass; the recovered token replaces the first rejected
one; the bonus token follows a draft that was accepted whole.

Randomness comes as uniforms in [0, 1), L of them a decision. To draw a token takes the
last ones, as many as `distributions.sample` has levels; an accept test reads the last.

Shapes: B batch, G drafted tokens (of a chain: gamma), N = G + 1 nodes of a draft's tree
(of a chain: positions), V vocabulary, D width of the features, L uniforms a decision
(`distributions.LEVELS` in the loop).
"""

import abc
import enum
from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import check_knobs
from specdec_t5x.core.tree import Tree, chain


class Guarantee(enum.Enum):
  """What a verification rule promises about the output's distribution."""

  EXACT = "the target's distribution"
  GREEDY_EXACT = "the target's own greedy output, or beam"
  BOUNDED = "no token's probability above p / lenience (greedy: p >= lenience max p)"
  LOSSY = "nothing of the target's distribution"

  @property
  def keeps_distribution(self) -> bool:
    """Whether the output is the target's own, in distribution or token for token."""
    return self in (Guarantee.EXACT, Guarantee.GREEDY_EXACT)


@flax.struct.dataclass
class Proposal:
  """Drafted tokens on a tree, with exactly the distribution that each was drawn from.

  Siblings may be independent draws from one distribution; or drawn without replacement,
  the distribution of each then being what the ones before it left; or certain.

  Attributes:
    tokens: of the drafted nodes.
    draft_probs: q, the distribution of each node's token given the tokens before it on
      its path and its earlier siblings; None where the tokens are certain, no draws.
    is_valid: which nodes count; the parent of one that does counts, too.
    tree: of the nodes.
  """

  tokens: Int[Array, "B G"]
  draft_probs: Float[Array, "B G V"] | None
  is_valid: Bool[Array, "B G"]
  tree: Tree

  @classmethod
  def chain(
    cls,
    tokens: Int[Array, "B G"],
    draft_probs: Float[Array, "B G V"] | None,
    num_valid: Int[Array, "B"] | int,
  ) -> "Proposal":
    """Returns a single draft, of which the first `num_valid` tokens count."""
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    is_valid = places < jnp.asarray(num_valid).reshape(-1, 1)
    return cls(tokens, draft_probs, is_valid, chain(tokens.shape[1]))

  @property
  def num_valid(self) -> Int[Array, "B"]:
    """How many nodes of each row count: of a chain, the first ones."""
    return self.is_valid.sum(axis=1)

  def distributions(self, vocab_size: int) -> Float[Array, "B G V"]:
    """Returns q, written out where the tokens are certain."""
    if self.draft_probs is None:
      return jax.nn.one_hot(self.tokens, vocab_size)
    return self.draft_probs

  def drafted_probs(self) -> Float[Array, "B G"]:
    """Returns what q gives to each drafted token."""
    if self.draft_probs is None:
      return jnp.ones(self.tokens.shape)
    tokens = self.tokens[..., None]
    return jnp.take_along_axis(self.draft_probs, tokens, axis=-1)[..., 0]


@flax.struct.dataclass
class Verdict:
  """What the target made of a proposal.

  Attributes:
    last: the last accepted node; the root where nothing was accepted. Of a chain, how
      many tokens were accepted.
    next_token: the recovered token, or the bonus token after a whole acceptance.
  """

  last: Int[Array, "B"]
  next_token: Int[Array, "B"]


class Rule(abc.ABC):
  """A verification rule: a frozen dataclass of its knobs, and a pure function.

  Attributes:
    guarantee: what it promises about the output's distribution; a property where it
      depends on the rule's knobs.
    takes_trees: whether it judges any tree, or chains alone.
    needs_independent: whether siblings must be independent draws from one distribution;
      else they may be certain, too, or drawn without replacement.
    alpha_is_mass: whether a tried token is accepted with probability sum min(p, q).
    reads_probs: whether it reads more of p than argmaxes; else logits will do for p,
      and no distribution of the draft is read.
  """

  guarantee: ClassVar[Guarantee]
  takes_trees: ClassVar[bool] = False
  needs_independent: ClassVar[bool] = False
  alpha_is_mass: ClassVar[bool] = False
  reads_probs: ClassVar[bool] = True

  def __post_init__(self):
    check_knobs(self)

  @abc.abstractmethod
  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Decides how much of `proposal` stands, and which token follows.

    Args:
      target_probs: p after each node, the root first.
      proposal: the draft.
      uniforms: independent draws from U[0, 1): L to test each drafted node, and the
        last L for the next token.

    Returns:
      The verdict.
    """

  def at(self, sampling: Sampling) -> tuple["Rule", Sampling]:
    """Returns what decides under `sampling`, and the adjustment of p that it reads.

    Raises:
      ValueError: where the rule does not go with this way of sampling.
    """
    return self, sampling


@runtime_checkable
class Cache(Protocol):
  """What the loop needs of a model's cache: rollback, and choices among drafts.

  Attributes:
    index: how many committed entries each row has.
  """

  index: Int[Array, "B"]

  def at(self, index: Int[Array, "B"]) -> "Cache":
    """Returns the cache with `index` committed entries a row."""
    ...

  def gathered(
    self, sources: Int[Array, "B M"], destination: Int[Array, "B"]
  ) -> "Cache":
    """Returns the cache with entries of each row copied from anywhere in it.

    Args:
      sources: the slots to copy, all read before the first is written.
      destination: the M copies go to slots destination .. destination + M - 1.
    """
    ...


# (cache, tokens [B, N], positions=None, tree=None) -> (logits [B, N, V], features
# [B, N, D], cache): scores N tokens a row after the committed ones. How models reach
# drafters and the loop. `tree` [B, N, M] says which of the last M entries, these N
# among them, each of the N sees, and `positions` [B, M] where the entries stand; by
# default the block is a chain.
ExtendFn = Callable[..., tuple[Float[Array, "B N V"], Float[Array, "B N D"], Cache]]
