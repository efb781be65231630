"""Drafting from the target's features by heads (blockwise, Medusa) or a layer (DART).

h is the target's feature at the last token that the target has read. The next token x_1
is known when heads draft; head i gives the distribution of x_{i+1}. A call of the
target verifies a draft and computes the feature for the next draft, so m tokens take at
least m / (H + 1) + 1 calls (Stern et al., section 4). DART's layer drafts many
positions in one pass.

Sources: Stern et al., arXiv 1811.03115 (blockwise); Cai et al., arXiv 2401.10774
(Medusa); DART, arXiv 2601.19278.

Shapes: B rows, G drafted nodes, N = G + 1, D width of the features, H heads, K the
depth of a draft plus 1, V vocabulary, L uniforms per decision.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.knobs import KnobError
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.core.tree_per_row import TreePerRow
from specdec_t5x.core.types import Cache, Proposal, Verdict
from specdec_t5x.decoding.contracts import Batch, Context, Drafter, Stops, Traits
from specdec_t5x.decoding.state import DecodeState, num_slots
from specdec_t5x.drafters import siblings
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.network.functional import resized


@flax.struct.dataclass
class LayerState:
  """The state of a drafter that uses a decoder layer.

  Attributes:
    cache: the layer's cache; entry i belongs to the output's i-th position.
    features: the target's features along the last accepted path.
    tree: the tree of the last proposal.
    source: the rows' inputs, which `Pruned` trees read; None for chains of EAGLE.
  """

  cache: Cache
  features: Float[Array, "B K D"]
  tree: Tree
  source: Int[Array, "B E"] | None = None


class FeatureDraft(Drafter):
  """The base of drafters that read the target's features.

  Attributes:
    network: the drafting network, which reads the target's features.
  """

  network: Any

  @property
  def networks(self) -> Mapping[str, Any]:
    """The drafting network, by name."""
    return {"draft": self.network}

  def check(self, target: Any, batch: Batch | None = None) -> None:
    """Raises a ValueError if the network does not fit the target's features."""
    super().check(target, batch)
    check_width(target, self.network)

  def apply(self, context: Context, method: str, *args: Any) -> Any:
    """Calls a method of the network."""
    params = {"params": context.networks["draft"].params}
    return self.network.apply(params, *args, method=method)

  def logits(
    self, context: Context, features: Float[Array, "*B D"]
  ) -> Float[Array, "*B V"]:
    """Returns the logits of drafted features.

    The network projects to its hot tokens, if the configuration has hot tokens.
    Otherwise the target projects to all tokens.
    """
    if self.network.config.hot:
      logits = self.apply(context, "logits", features)
      return resized(logits, context.target.vocab_size)
    return context.target.logits(features)


class LayerDraft(FeatureDraft):
  """The base of drafters that apply a decoder layer to the target's features."""

  def check(self, target: Any, batch: Batch | None = None) -> None:
    """Raises a ValueError if the layer does not fit the target's features and keys."""
    super().check(target, batch)
    if not self.network.config.attends_as(target.config):
      raise ValueError(
        "A draft layer attends to the target's keys and values, but the heads and "
        f"widths differ: expected the heads and widths of {target.config}, got "
        f"{self.network.config}. Use a layer that was trained on the target."
      )

  def next_embedded(
    self, context: Context, state: DecodeState
  ) -> Float[Array, "B K D"]:
    """Returns the embedding of the token after each feature of the drafter's state."""
    layer_state = state.drafter_state
    first = state.starts + layer_state.cache.index
    at = first[:, None] + jnp.arange(layer_state.features.shape[1])
    tokens = jnp.take_along_axis(state.sequences, at, axis=1, mode="clip")
    return context.target.embed(tokens)

  def commit(
    self,
    context: Context,
    drafter_state: LayerState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> LayerState:
    """Returns the state with the target's features along the accepted path."""
    width = drafter_state.features.shape[1]
    # Entries beyond the path are arbitrary.
    path = drafter_state.tree.path(verdict.last)[:, :width]
    path = jnp.pad(path, ((0, 0), (0, width - path.shape[1])))
    features = jnp.take_along_axis(features, path[..., None], axis=1)
    return drafter_state.replace(features=features.astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class Headed(FeatureDraft):
  """The base of drafters with one feature per depth.

  Attributes:
    network: the drafting network, which reads the target's features.
    shape: the nodes to draft: a tree with at most one level per head, by default a
      chain of all heads; or `Pruned`, if each row chooses a tree.
    siblings: the kind of siblings in a tree, as in `TreeDraft.siblings`.
  """

  network: Any
  shape: Tree | Pruned | None = None
  siblings: str = "distinct"

  def __post_init__(self):
    count = self.network.config.count
    if isinstance(self.shape, Pruned):
      self.shape.check(count)
      return
    siblings.check(self.tree, self.siblings)
    if self.tree.depth > count:
      raise KnobError(
        "A tree of depth {depth} needs {depth} heads, got {count}. Lower {gamma} (or "
        "choose another tree), or train more heads.",
        depth=self.tree.depth,
        count=count,
      )

  @property
  def traits(self) -> Traits:
    """A chain stops at a length; later tokens are drafted, but not scored."""
    has_tree = not isinstance(self.shape, Pruned)
    is_chain = has_tree and self.tree.is_chain
    return Traits(
      independent=has_tree and self.siblings == "independent",
      stops=Stops.AT_LENGTH if is_chain else Stops.NEVER,
      reads_target=True,
      auto="named",
    )

  @property
  def tree(self) -> Tree:
    """The shape of every proposal; of `Pruned` trees only the size is meaningful."""
    if isinstance(self.shape, Pruned):
      return Tree((0,) * self.shape.nodes)
    return chain(self.network.config.count) if self.shape is None else self.shape

  @property
  def depth(self) -> int:
    """The most drafted tokens on one path."""
    if isinstance(self.shape, Pruned):
      return min(self.network.config.count, self.shape.nodes)
    return self.tree.depth

  @property
  def networks(self) -> Mapping[str, Any]:
    """The heads, and the table that prunes trees, if there is a table."""
    networks = super().networks
    if isinstance(self.shape, Pruned) and self.shape.table:
      return {**networks, "ngrams": self.shape.table}
    return networks

  def proposal(
    self,
    context: Context,
    state: DecodeState,
    uniforms: Float[Array, "B G L"],
    features: Float[Array, "B H D"],
  ) -> Proposal:
    """Returns a draft, with no valid node before the target's first call.

    Nodes of the same depth have the same distribution.
    """
    logits = self.logits(context, features)

    def read(level, _):
      depth = self.tree.depths[level.nodes[0]] - 1
      return logits[:, [depth]]

    if isinstance(self.shape, Pruned):
      source = state.drafter_state.source
      proposal = self.shape.propose(context, state, uniforms, logits, source)
    else:
      proposal = siblings.grow(self.tree, self.siblings, context, uniforms, read)
    return without_early_drafts(state, proposal)


@flax.struct.dataclass
class HeadState:
  """The drafter's state.

  Attributes:
    feature: the target's feature at the last accepted token that the target has read.
    source: the rows' inputs, which `Pruned` trees read.
  """

  feature: Float[Array, "B D"]
  source: Int[Array, "B E"]


@dataclasses.dataclass(frozen=True)
class HeadDraft(Headed):
  """Drafts from one feature. Head i gives the distribution at depth i."""

  def start(self, context, caches, source) -> HeadState:
    """Returns a state without a feature, as the target was not called yet."""
    feature = jnp.zeros((source.shape[0], self.network.config.emb_dim))
    return HeadState(feature, source)

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, HeadState]:
    """Drafts all nodes; see `decoding.contracts.Drafter`."""
    features = self.apply(context, "features", state.drafter_state.feature)
    return self.proposal(context, state, uniforms, features), state.drafter_state

  def commit(
    self,
    context: Context,
    drafter_state: HeadState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> HeadState:
    """Returns the state with the feature of the last accepted node."""
    feature = jnp.take_along_axis(features, verdict.last[:, None, None], axis=1)[:, 0]
    return drafter_state.replace(feature=feature.astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class ParallelDraft(LayerDraft, Headed):
  """Drafts by one pass of a parallel drafter."""

  def start(self, context, caches, source) -> LayerState:
    """Returns an empty cache and zero features, as the target was not called yet."""
    cfg = self.network.config
    rows = source.shape[0]
    # The masks of the last block may overrun the output.
    slots = num_slots(context.max_length, 2 * cfg.count)
    cache = self.network.empty_cache(rows, slots)
    features = jnp.zeros((rows, cfg.count + 1, cfg.emb_dim))
    tree = self.tree
    if isinstance(self.shape, Pruned):  # A placeholder until the first proposal.
      tree = TreePerRow(jnp.zeros((rows, tree.size), jnp.int32))
    return LayerState(cache, features, tree, source)

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, LayerState]:
    """Drafts all nodes; see `decoding.contracts.Drafter`."""
    drafter_state = state.drafter_state
    cache = drafter_state.cache
    # The entry of output position i combines the target's feature at i and the next
    # token.
    features, cache = self.apply(
      context,
      "extend",
      cache,
      drafter_state.features,
      self.next_embedded(context, state),
      state.lengths - state.starts - cache.index,
      state.target_cache,
    )
    proposal = self.proposal(context, state, uniforms, features)
    return proposal, drafter_state.replace(cache=cache, tree=proposal.tree)


def without_early_drafts(state: DecodeState, proposal: Proposal) -> Proposal:
  """Returns the proposal, with no valid token before the target's first call.

  Before the first call there is no feature to draft from.
  """
  has_feature = state.lengths > state.starts
  return proposal.replace(is_valid=proposal.is_valid & has_feature[:, None])


def check_width(target: Any, heads: Any) -> None:
  """Raises a ValueError if heads do not fit a target's features."""
  expected = target.config.emb_dim
  width = heads.config.emb_dim
  if width != expected:
    raise ValueError(
      f"Heads draft from the target's features of width {expected}, got heads of width "
      f"{width}. Use heads that were trained on the target."
    )
