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
from jaxtyping import Array, Bool, Float

from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.core.types import Proposal, Verdict
from specdec_t5x.decoding.drafter import Context, Drafter
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters import siblings
from specdec_t5x.drafters.siblings import Growing


@flax.struct.dataclass
class HeadState:
  """What the drafter carries.

  Attributes:
    feature: the target's, of the last token that it read and that stands.
    is_known: whether there is one: not before the target's first call.
  """

  feature: Float[Array, "B D"]
  is_known: Bool[Array, "B"]


@dataclasses.dataclass(frozen=True)
class HeadDraft(Drafter):
  """Draws a tree from heads, whose law at depth i is that of head i.

  Attributes:
    network: the heads.
    tree: which nodes to draft, no deeper than there are heads; by default a chain of
      them all.
    siblings: as `TreeDraft.siblings`.
  """

  network: Any
  tree: Tree | None = None
  siblings: str = "distinct"

  def __post_init__(self):
    count = self.network.config.count
    if self.tree is None:
      object.__setattr__(self, "tree", chain(count))
    siblings.check(self.tree, self.siblings)
    if self.tree.depth > count:
      raise ValueError(
        f"A tree of depth {self.tree.depth} needs as many heads, got {count}. Lower "
        "GAMMA (or choose another tree), or train more heads."
      )

  @property
  def independent(self) -> bool:
    """Whether siblings are independent draws from one law."""
    return self.siblings == "independent"

  @property
  def networks(self) -> Mapping[str, Any]:
    """The heads."""
    return {"draft": self.network}

  def check(self, target: Any) -> None:
    """Raises a ValueError where the target has no such features."""
    check_width(target, self.network)

  def start(self, context: Context) -> HeadState:
    """Returns no feature."""
    rows, width = context.source.shape[0], self.network.config.emb_dim
    return HeadState(jnp.zeros((rows, width)), jnp.zeros(rows, bool))

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, HeadState]:
    """Drafts all nodes, none that counts before the target's first call."""
    own = state.drafter_state
    growing = Growing(self.tree, self.siblings, context.sampling, uniforms)
    read = self._path_reader if self.network.reads_path else self._reader
    proposal = growing.grow(read(context, own.feature, state.last_tokens()))
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
    del context, drafter_state
    feature = jnp.take_along_axis(features, verdict.last[:, None, None], axis=1)[:, 0]
    return HeadState(feature.astype(jnp.float32), jnp.ones(len(feature), bool))

  def _reader(self, context, feature, last):
    """Returns how to read heads whose laws do not depend on the path."""
    del last
    logits = context.logits(self._apply(context, "features", feature))

    def read(level, tokens):
      del tokens
      depth = self.tree.depths[level.nodes[0]]
      shape = (feature.shape[0], level.above.size, logits.shape[-1])
      return jnp.broadcast_to(logits[:, depth - 1, None], shape)

    return read

  def _path_reader(self, context, feature, last):
    """Returns how to read heads whose laws do."""
    paths, before = last[:, None, None], None  # [B, P, I], tokens after the feature's.

    def read(level, tokens):
      nonlocal paths, before
      if tokens is not None:
        paths = jnp.concatenate([paths[:, before.parents], tokens[..., None]], axis=2)
      before = level
      shape = (*paths.shape[:2], feature.shape[-1])
      h = jnp.broadcast_to(feature[:, None], shape)
      return context.logits(self._apply(context, "after", h, context.embed(paths)))

    return read

  def _apply(self, context, method, *args):
    return self.network.apply({"params": context.params["draft"]}, *args, method=method)


def check_width(target: Any, heads: Any) -> None:
  """Raises a ValueError where heads do not fit a target's features."""
  widths = target.config.emb_dim, heads.config.emb_dim
  if widths[0] != widths[1]:
    raise ValueError(
      f"Heads draft from the target's own features, whose width is {widths[0]}, got "
      f"heads of width {widths[1]}. Use those that were trained on this target."
    )
