"""The vocabulary of speculative decoding: proposals, verdicts, guarantees, rules.

Letters, everywhere in this project (Leviathan et al., ICML 2023): p is the target's
law (`target_probs`), q the draft's (`draft_probs`). Accepted tokens are drafted tokens
that the target let pass; the recovered token replaces the first rejected one; the bonus
token follows a draft that was accepted whole.

Randomness comes as uniforms in [0, 1), L of them a decision. To draw a token takes the
last ones, as many as `distributions.sample` has levels; an accept test reads the last.

Shapes: B batch, G drafted tokens (gamma), K = G + 1 scored positions, C candidates, V
vocabulary, L uniforms a decision (`distributions.LEVELS` in the loop).
"""

import enum
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import flax.struct
from jaxtyping import Array, Float, Int


class Guarantee(enum.Enum):
  """What a verification rule promises about the output's law."""

  EXACT = "the target's distribution"
  GREEDY_EXACT = "the target's own greedy output, or beam"
  BOUNDED = "no token's probability above p / lenience (greedy: p >= lenience max p)"
  LOSSY = "nothing of the target's distribution"

  @property
  def keeps_the_law(self) -> bool:
    """Whether the output is the target's own, in law or token for token."""
    return self in (Guarantee.EXACT, Guarantee.GREEDY_EXACT)


@flax.struct.dataclass
class Proposal:
  """Drafted tokens with exactly the law that they were drawn from.

  Attributes:
    tokens: the draft of each row.
    draft_probs: q, the law of each token given those before it.
    num_valid: how many of the G tokens count: fewer where a row has no room left or
      the draft itself ended the sequence.
  """

  tokens: Int[Array, "B G"]
  draft_probs: Float[Array, "B G V"]
  num_valid: Int[Array, "B"]


@flax.struct.dataclass
class Candidates:
  """C drafts of each row, drawn independently from the same law.

  Attributes:
    tokens: the drafts of each row.
    draft_probs: q, the law of each token given those before it in its draft.
    num_valid: how many tokens of each draft count, as in `Proposal`.
  """

  tokens: Int[Array, "B C G"]
  draft_probs: Float[Array, "B C G V"]
  num_valid: Int[Array, "B C"]


@flax.struct.dataclass
class Verdict:
  """What the target made of a proposal.

  Attributes:
    num_accepted: length of the accepted prefix, at most `num_valid`.
    next_token: the recovered token, or the bonus token after a whole acceptance.
    candidate: the draft that the accepted prefix is of; None where there was but one.
  """

  num_accepted: Int[Array, "B"]
  next_token: Int[Array, "B"]
  candidate: Int[Array, "B"] | None = None


@runtime_checkable
class Rule(Protocol):
  """A verification rule: a pure function, its randomness given as uniforms.

  Attributes:
    guarantee: what it promises about the output's law.
    takes_candidates: whether it judges `Candidates` (target_probs [B, C, K, V],
      uniforms [B, C G + 1, L], draft by draft) or a single `Proposal`.
    accepts_by_mass: whether it accepts a drafted token that it tries with probability
      sum_x min(p, q), so that alpha may be estimated by that mass.
  """

  guarantee: Guarantee
  takes_candidates: bool
  accepts_by_mass: bool

  def verify(
    self,
    target_probs: Float[Array, "B K V"] | Float[Array, "B C K V"],
    proposal: Proposal | Candidates,
    uniforms: Float[Array, "B U L"],
  ) -> Verdict:
    """Decides how much of `proposal` stands, and which token follows.

    Args:
      target_probs: p at each drafted position and at the one after the last.
      proposal: the draft, or drafts.
      uniforms: independent draws from U[0, 1), L a drafted token to test it, and L
        for the next token.

    Returns:
      The verdict.
    """
    ...


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

  def moved(
    self, source: Int[Array, "B"], destination: Int[Array, "B"], size: int
  ) -> "Cache":
    """Returns the cache with `size` entries of each row copied to another slot."""
    ...

  def of_rows(self, rows: Int[Array, "B"]) -> "Cache":
    """Returns the cache whose row i has the entries of row `rows[i]`.

    Rows trade entries with rows of the same input alone.
    """
    ...


# (cache, tokens [B, N], positions=None, tree=None) -> (logits [B, N, V], features
# [B, N, D], cache): scores N tokens a row after the committed ones. How models reach
# drafters and the loop. `tree` [B, N, N] says which tokens of the block each one sees
# and `positions` [B, N] where each stands; by default the block is a chain.
ExtendFn = Callable[..., tuple[Float[Array, "B N V"], Float[Array, "B N D"], Cache]]


@runtime_checkable
class Drafter(Protocol):
  """A way to propose tokens. Its state is any pytree; the loop only carries it."""

  def propose(
    self,
    state: Any,
    sequences: Int[Array, "B S"],
    lengths: Int[Array, "B"],
    uniforms: Float[Array, "B G L"],
  ) -> tuple[Proposal, Any]:
    """Drafts the tokens that follow the first `lengths` of each sequence.

    Args:
      state: of this drafter.
      sequences: start token and output so far, of any content beyond `lengths`.
      lengths: how many tokens of each row are known, at least 1.
      uniforms: independent draws from U[0, 1), L a drafted token.

    Returns:
      The proposal and the state after it.
    """
    ...

  def commit(
    self, state: Any, verdict: Verdict, features: Float[Array, "B K D"]
  ) -> Any:
    """Returns the state once the target has judged the last proposal.

    Args:
      state: as `propose` left it.
      verdict: what became of the proposal.
      features: the target's, at the last known token and at each drafted one.
    """
    ...
