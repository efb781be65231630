"""Drafting by heads on the target's own features: no draft model, no second cache.

Sources: Stern et al., arXiv 1811.03115; Cai et al. (Medusa), arXiv 2401.10774; Ankner
et al. (Hydra), arXiv 2402.05109. A call of the target verifies a draft and gives the
feature that the next one is made from, so m tokens take at least m / (H + 1) + 1 calls
(Stern et al., section 4).

Shapes: B rows, G drafted nodes, N = G + 1, D width of the features, H heads, L uniforms
a decision.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.core.types import Proposal, Verdict
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.drafter import Drafter, Stops
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters import siblings
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.drafters.siblings import Growing
from specdec_t5x.network.functional import resized


@flax.struct.dataclass
class HeadState:
  """What the drafter carries.

  Attributes:
    feature: the target's, of the last token that it read and that stands.
    is_known: whether there is one: not before the target's first call.
    source: the row's input, which `Pruned` trees look at.
  """

  feature: Float[Array, "B D"]
  is_known: Bool[Array, "B"]
  source: Int[Array, "B E"]


@dataclasses.dataclass(frozen=True)
class Headed(Drafter):
  """What drafters from the target's features have in common.

  Attributes:
    network: makes drafts of the target's features.
    shape: which nodes to draft: a tree no deeper than there are heads, by default a
      chain of them all; or `Pruned`, which gives each row its own.
    siblings: of a tree, as `TreeDraft.siblings`.
  """

  network: Any
  shape: Tree | Pruned | None = None
  siblings: str = "distinct"

  def __post_init__(self):
    count = self.network.config.count
    if self.shape is None:
      object.__setattr__(self, "shape", chain(count))
    if isinstance(self.shape, Pruned):
      self.shape.check(count)
      return
    siblings.check(self.shape, self.siblings)
    if self.shape.depth > count:
      raise ValueError(
        f"A tree of depth {self.shape.depth} needs as many heads, got {count}. Lower "
        "GAMMA (or choose another tree), or train more heads."
      )

  def default_policy(self, is_named: bool) -> str:
    """Returns 'auto' for a named drafter, which drafts as much as pays."""
    return "auto" if is_named else "fixed"

  @property
  def tree(self) -> Tree:
    """The shape of every proposal; where rows have their own, of as many nodes."""
    return self.shape if isinstance(self.shape, Tree) else Tree((0,) * self.shape.nodes)

  @property
  def depth(self) -> int:
    """The most drafted tokens that can stand together."""
    if isinstance(self.shape, Tree):
      return self.shape.depth
    return min(self.network.config.count, self.shape.nodes)

  @property
  def stops(self) -> Stops:
    """A chain stops at a length: tokens beyond it are drafted, but not scored."""
    return Stops.AT_LENGTH if self._is_chain else Stops.NEVER

  @property
  def _is_chain(self) -> bool:
    return isinstance(self.shape, Tree) and self.shape.is_chain

  @property
  def independent(self) -> bool:
    """Whether siblings are independent draws from one distribution."""
    return isinstance(self.shape, Tree) and self.siblings == "independent"

  @property
  def networks(self) -> Mapping[str, Any]:
    """The heads, and the table that prunes their trees."""
    table = getattr(self.shape, "table", None)
    return {"draft": self.network, **({"ngrams": table} if table else {})}

  def check(self, target: Any) -> None:
    """Raises a ValueError where the target has no such features."""
    super().check(target)
    check_width(target, self.network)

  def first_tree(self, rows: int) -> Tree:
    """Returns a tree that no proposal had."""
    if isinstance(self.shape, Tree):
      return self.shape
    return Tree(jnp.zeros((rows, self.shape.nodes), jnp.int32))

  def proposal(
    self,
    context: Context,
    state: DecodeState,
    uniforms: Float[Array, "B G L"],
    features: Float[Array, "B H D"],
  ) -> Proposal:
    """Returns a draft from the feature of each depth, the same after all tokens.

    But for the bias of each token's own predecessor, where the network has one.
    """
    logits = self.logits(context, features)

    def read(depth, tokens, parents):
      at = logits[:, [depth]]
      if not self.network.config.rank:
        return at
      before = state.last_tokens()[:, None] if tokens is None else tokens
      return at + self.apply(context, "bias", before)

    return self.grown(context, state, uniforms, read)

  def grown(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"], read
  ) -> Proposal:
    """Returns a draft.

    Args:
      context: of the decode.
      state: where it stands.
      uniforms: of the nodes.
      read: gives a level's logits, a `pruned.Read`.
    """
    levels = []

    def of_shape(level, tokens):
      levels.append(level)
      if tokens is None:
        return read(0, None, None)
      parents = jnp.broadcast_to(levels[-2].parents, tokens.shape)
      return read(len(levels) - 1, tokens, parents)

    if isinstance(self.shape, Pruned):
      given = read, self.network.config.count, state.drafter_state.source
      return self.shape.propose(context, state, uniforms, *given)
    return Growing(self.shape, self.siblings, context, uniforms).grow(of_shape)

  def logits(self, context: Context, features: Float[Array, "*B D"]):
    """Returns the logits of drafted features."""
    return draft_logits(self.network, context, features)

  def apply(self, context: Context, method: str, *args: Any) -> Any:
    """Returns what a method of the network's gives."""
    return apply_draft(self.network, context, method, *args)


@dataclasses.dataclass(frozen=True)
class HeadDraft(Headed):
  """Drafts from one feature, by heads: the probs at depth i is that of head i."""

  def start(self, context: Context) -> HeadState:
    """Returns a state without a feature: the target was not called yet."""
    rows, width = context.source.shape[0], self.network.config.emb_dim
    return HeadState(jnp.zeros((rows, width)), jnp.zeros(rows, bool), context.source)

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, HeadState]:
    """Drafts all nodes, none that counts before the target's first call."""
    own = state.drafter_state
    if self.network.reads_path:
      read = self._path_reader(context, own.feature, state.last_tokens())
      proposal = self.grown(context, state, uniforms, read)
    else:
      features = self.apply(context, "features", own.feature)
      proposal = self.proposal(context, state, uniforms, features)
    is_valid = proposal.is_valid & own.is_known[:, None]
    return proposal.replace(is_valid=is_valid), own

  def commit(
    self,
    context: Context,
    drafter_state: HeadState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> HeadState:
    """Returns the feature of the last accepted node."""
    del context
    feature = jnp.take_along_axis(features, verdict.last[:, None, None], axis=1)[:, 0]
    return drafter_state.replace(
      feature=feature.astype(jnp.float32), is_known=jnp.ones(len(feature), bool)
    )

  def _path_reader(self, context, feature, last):
    """Returns how to read heads whose distributions depend on the tokens before."""
    paths = last[:, None, None]  # [B, P, I], tokens after the feature's.

    def read(depth, tokens, parents):
      nonlocal paths
      if tokens is not None:
        above = jnp.take_along_axis(paths, parents[..., None], axis=1)
        paths = jnp.concatenate([above, tokens[..., None]], axis=2)
      shape = (*paths.shape[:2], feature.shape[-1])
      h = jnp.broadcast_to(feature[:, None], shape)
      path = context.target.embed(paths).astype(h.dtype)
      drafted = self.apply(context, "after", h, path)
      return self.logits(context, drafted)

    return read


def apply_draft(network: Any, context: Context, method: str, *args: Any) -> Any:
  """Returns what a method of what drafts from features gives."""
  params = {"params": context.networks["draft"].params}
  found = network.apply(params, *args, method=method)
  missing = {"bias": 0.0, "logits": -jnp.inf}
  if method in missing:
    return resized(found, context.target.vocab_size, missing[method])
  return found


def draft_logits(network: Any, context: Context, features: Float[Array, "*B D"]):
  """Returns the logits of drafted features, of hot tokens or, the target's, of all."""
  if network.config.hot:
    return apply_draft(network, context, "logits", features)
  return context.target.logits(features)


def features_along(
  tree: Tree, verdict: Verdict, features: Float[Array, "B N D"], width: int
) -> Float[Array, "B K D"]:
  """Returns the features of the accepted path's nodes, the root's first, K = `width`.

  What stands behind the last of them is of no use.
  """
  path = tree.path(verdict.last)[:, :width]
  path = jnp.pad(path, ((0, 0), (0, width - path.shape[1])))
  return jnp.take_along_axis(features, path[..., None], axis=1).astype(jnp.float32)


def check_width(target: Any, heads: Any) -> None:
  """Raises a ValueError where heads do not fit a target's features."""
  widths = target.config.emb_dim, heads.config.emb_dim
  if widths[0] != widths[1]:
    raise ValueError(
      f"Heads draft from the target's own features, whose width is {widths[0]}, got "
      f"heads of width {widths[1]}. Use those that were trained on this target."
    )


def check_layer(target: Any, drafter: Any) -> None:
  """Raises a ValueError where a layer does not fit a target's features and keys."""
  check_width(target, drafter)
  if not drafter.config.attends_as(target.config):
    raise ValueError(
      "A layer that drafts attends to its target's keys and values, whose heads and "
      f"widths differ: expected those of {target.config}, got {drafter.config}. Use "
      "one that was trained on this target."
    )
