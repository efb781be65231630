"""The vocabulary of speculative decoding: proposals, verdicts, guarantees, rules.

The letters are those of Leviathan et al., ICML 2023: p is the target's distribution
(`target_probs`), q is the draft's (`draft_probs`).

Randomness enters as uniforms in [0, 1), L per decision. The test of a drafted token
reads the last uniform, the draw of a token the last `distributions.draws_per_token(V)`.

Shapes: B batch, G drafted tokens (of a chain: gamma), N = G + 1 nodes of a draft's tree
(of a chain: positions), V vocabulary, D width of the features, L uniforms per decision.
"""

import abc
import enum
import functools
from collections.abc import Callable
from typing import ClassVar, Literal, Protocol, runtime_checkable

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import check_knobs
from specdec_t5x.core.tree import Tree, chain


class Guarantee(enum.Enum):
  """The promise of a verification rule about the output's distribution."""

  EXACT = "the target's distribution"
  GREEDY_EXACT = "the target's own greedy output"
  BOUNDED = "no token's probability above p / lenience (greedy: p >= lenience max p)"
  LOSSY = "nothing of the target's distribution"

  @property
  def keeps_distribution(self) -> bool:
    """Whether output and target agree, in distribution or token for token."""
    return self in (Guarantee.EXACT, Guarantee.GREEDY_EXACT)


@flax.struct.dataclass
class Proposal:
  """Drafted tokens on a tree, with the exact distribution of each draw.

  Attributes:
    tokens: the tokens of the drafted nodes.
    draft_probs: q, the distribution of each node's token, given the earlier tokens of
      the path, and the earlier siblings in draws without replacement; None if the
      tokens are certain, not drawn.
    is_valid: whether each node counts; the parent of a valid node is valid, too.
    tree: the tree of the nodes.
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
    """Returns a draft without branches; the first `num_valid` tokens count."""
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    is_valid = places < jnp.asarray(num_valid).reshape(-1, 1)
    return cls(tokens, draft_probs, is_valid, chain(tokens.shape[1]))

  @property
  def num_valid(self) -> Int[Array, "B"]:
    """The number of valid nodes per row; in a chain the first nodes are valid."""
    return self.is_valid.sum(axis=1)

  def drafted_probs(self) -> Float[Array, "B G"]:
    """Returns q(x) of each drafted token x; `rules.token.drafted_probs` is p(x)."""
    if self.draft_probs is None:
      return jnp.ones(self.tokens.shape)
    tokens = self.tokens[..., None]
    return jnp.take_along_axis(self.draft_probs, tokens, axis=-1)[..., 0]


@flax.struct.dataclass
class Verdict:
  """The result of verifying a proposal.

  Attributes:
    last: the last accepted node; the root if no token was accepted. In a chain, `last`
      is the number of accepted tokens.
    next_token: the recovered token, or the bonus token after full acceptance.
  """

  last: Int[Array, "B"]
  next_token: Int[Array, "B"]


class Rule(abc.ABC):
  """A verification rule: a frozen dataclass of knobs, and a pure function.

  Attributes:
    guarantee: the promise about the output's distribution; may depend on knobs.
    takes_trees: whether the rule verifies any tree, or only chains.
    needs_independent: whether siblings must be independent draws from one distribution.
    alpha_is_mass: whether alpha is the mean of sum_x min(p(x), q(x)).
    reads: what the rule reads of p: "probs", or "argmax": logits may then stand in for
      p, and the draft's distribution is not read.
  """

  guarantee: ClassVar[Guarantee]
  takes_trees: ClassVar[bool] = False
  needs_independent: ClassVar[bool] = False
  alpha_is_mass: ClassVar[bool] = False
  reads: ClassVar[Literal["probs", "argmax"]] = "probs"

  def __post_init__(self):
    check_knobs(self)

  @abc.abstractmethod
  def verify(
    self,
    target_probs: Float[Array, "B N V"],
    proposal: Proposal,
    uniforms: Float[Array, "B N L"],
  ) -> Verdict:
    """Decides which drafted tokens are accepted, and which token follows.

    Args:
      target_probs: p after each node, the root first.
      proposal: the draft.
      uniforms: independent draws from U[0, 1): L for the test of each drafted node, and
        the last L for the next token.
    """

  def at(self, sampling: Sampling) -> tuple["Rule", Sampling]:
    """Returns the rule and the settings for p that decode with the user's `sampling`.

    Raises:
      ValueError: if the rule does not support `sampling`.
    """
    return self, sampling


@runtime_checkable
class Cache(Protocol):
  """The interface of a model's cache: rollback, and selection among drafts."""

  index: Int[Array, "B"]  # The number of committed entries per row.

  def at(self, index: Int[Array, "B"]) -> "Cache":
    """Returns the cache with `index` committed entries per row."""

  def gathered(
    self, sources: Int[Array, "B M"], destination: Int[Array, "B"]
  ) -> "Cache":
    """Returns the cache with M entries of each row copied to consecutive slots.

    Every slot of `sources` is read before any slot from `destination` on is written.
    """


# (cache, tokens [B, N], positions=None, tree=None) -> (logits [B, N, V], features
# [B, N, D], cache): scores N tokens per row after the committed tokens. `tree`
# [B, N, M] states which of the last M entries, with the N new entries, each new token
# sees. `positions` [B, M] are the M entries' positions. The default is a chain.
ExtendFn = Callable[..., tuple[Float[Array, "B N V"], Float[Array, "B N D"], Cache]]

# (cache, tokens [B], steps, noise [N, B, V] or None, temperature) -> (chosen [N, B],
# cache): scores one token per row after the committed tokens, in each of N steps. A
# step chooses the argmax of logits / temperature + noise, without noise the argmax of
# the logits, and -1 if a logit is NaN or infinity. The next step scores that token.
DraftFn = Callable[..., tuple[Int[Array, "N B"], Cache]]

# One EOS token, or several.
EndTokens = int | tuple[int, ...]


def is_end(tokens: Int[Array, "*B"], eos_id: EndTokens) -> Bool[Array, "*B"]:
  """Returns whether each token is an EOS token."""
  ids = eos_id if isinstance(eos_id, tuple) else (eos_id,)
  return functools.reduce(jnp.logical_or, [tokens == token for token in ids])


def check_uniforms(uniforms: Float[Array, "B C L"], decisions: int) -> None:
  """Raises a ValueError if the number of uniforms differs from that of decisions.

  JAX clamps an index beyond an array's end, so a draw would be used twice.
  """
  if uniforms.ndim != 3 or uniforms.shape[1] != decisions:
    raise ValueError(
      f"Expected uniforms of {decisions} decisions, [B, {decisions}, L], got an array "
      f"of shape {uniforms.shape}. A drafter states the number in `Traits.decisions`."
    )
