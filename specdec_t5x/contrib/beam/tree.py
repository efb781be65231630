"""The draft's part of a beam search, and the layout of the caches.

Both caches hold all hypotheses of an input in one row, level by level. A level has the
tokens of the W live hypotheses at one step: rank r of level l has slot l W + r. Level 0
is blank, level 1 has the start token, and level n + 1 has the last tokens of hypotheses
of n steps (the roots of a tree). A hypothesis is a path: the hypothesis's rank in each
level. A step that reorders hypotheses therefore moves no keys and values. The nodes of
the tree, G levels of U nodes, follow the roots; accepted nodes then move to levels.

Source: Leviathan et al., ICML 2023, appendix A.4.
Shapes: B rows, W beam width, U draft's width, G gamma, N = W + U G nodes (roots first,
then level by level), L levels, S slots, V vocabulary.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.contrib.beam.hypotheses import Beam, BeamExtendFn, take
from specdec_t5x.core.types import Cache, EndTokens, as_tuple


@dataclasses.dataclass(frozen=True)
class Layout:
  """The map from tokens to slots of the caches.

  Attributes:
    width: W, the width of the target's beam.
    draft_width: U, the width of the draft's beam; at least W.
    gamma: the number of drafted levels per iteration; 0 without a draft.
    max_length: the most tokens of the output.
  """

  width: int
  draft_width: int
  gamma: int
  max_length: int

  @property
  def num_levels(self) -> int:
    """L: the blank level, the start token's level, and one level per step."""
    return self.max_length + 2

  @property
  def num_slots(self) -> int:
    """S: all levels, and a tree behind the last level."""
    return self.num_levels * self.width + self.draft_width * self.gamma

  def root_slots(self, num_steps: Int[Array, "B"]) -> Int[Array, "B"]:
    """Returns the first slot of the roots, the start of the target's block."""
    return (num_steps + 1) * self.width

  def key_positions(self, num_steps: Int[Array, "B"]) -> Int[Array, "B S"]:
    """Returns each slot's position in the sequence; the start token has position 0."""
    slots = jnp.arange(self.num_slots)
    roots = self.root_slots(num_steps)[:, None]
    depth = 1 + (slots - roots - self.width) // self.draft_width
    committed = jnp.minimum(slots // self.width - 1, num_steps[:, None])
    return committed + jnp.maximum(depth, 0)

  def start_paths(self, rows: int) -> Int[Array, "B W L"]:
    """Returns the paths of hypotheses with only the start token."""
    paths = jnp.full((rows, self.width, self.num_levels), -1)
    return paths.at[:, :, 1].set(jnp.arange(self.width))

  def seen(self, paths: Int[Array, "B W L"]) -> Bool[Array, "B W S"]:
    """Returns whether each slot is on each path; the rank -1 has no slot."""
    is_rank = paths[..., None] == jnp.arange(self.width)
    committed = is_rank.reshape(*paths.shape[:2], -1)
    return jnp.pad(committed, ((0, 0), (0, 0), (0, self.draft_width * self.gamma)))

  def with_own(
    self, seen: Bool[Array, "B M S"], first: Int[Array, "B"]
  ) -> Bool[Array, "B M S"]:
    """Returns `seen` with each node's slot added: slots first, first + 1, ..."""
    node_slots = first[:, None] + jnp.arange(seen.shape[1])
    return seen | (jnp.arange(self.num_slots) == node_slots[..., None])


@flax.struct.dataclass
class Level:
  """A level of the tree; stacked levels have another axis in front.

  Attributes:
    tokens: the nodes' tokens; the first W are the draft's beam, most likely first.
    parents: the rank of each node's parent in the level before.
    scores: the target's log-probability of the root, plus the draft's log-probability
      of the path from the root to the node.
    visible: the slots that each node sees in either cache.
  """

  tokens: Int[Array, "*G B U"]
  parents: Int[Array, "*G B U"]
  scores: Float[Array, "*G B U"]
  visible: Bool[Array, "*G B U S"]


def roots(layout: Layout, beam: Beam, paths: Int[Array, "B W L"]) -> Level:
  """Returns the roots of the next tree: the last tokens of the live hypotheses."""
  ranks = jnp.broadcast_to(jnp.arange(layout.width), beam.live_scores.shape)
  return Level(beam.last_tokens, ranks, beam.live_scores, layout.seen(paths))


def draft(
  layout: Layout,
  extend: BeamExtendFn,
  cache: Cache,
  beam: Beam,
  paths: Int[Array, "B W L"],
  eos_id: EndTokens,
) -> tuple[Level, Cache]:
  """Extends the live hypotheses with the draft by gamma levels.

  Args:
    layout: the layout of the caches.
    extend: the draft model.
    cache: the draft's cache; the roots' level and the level before may be missing.
    beam: the target's beam.
    paths: the paths of the live hypotheses.
    eos_id: the EOS tokens, which are excluded because an ended hypothesis has no
      continuation.

  Returns:
    The levels of the tree below the roots, stacked [G, B, U, ...], and the cache.
  """
  start = roots(layout, beam, paths)
  first_slot = layout.root_slots(beam.num_steps)
  key_positions = layout.key_positions(beam.num_steps)

  def grow(cache, block, level, depth):
    logits, cache = extend(cache, block.tokens, key_positions, block.visible)
    logits = logits[:, -level.tokens.shape[1] :]
    new_slot = first_slot + layout.width + depth * layout.draft_width
    return _grow(layout, level, logits, new_slot, eos_id), cache

  before = _level_before(layout, beam, paths)
  both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), before, start)
  first, cache = grow(cache.at(first_slot - layout.width), both, start, 0)

  def grow_next(carry, depth):
    level, cache = carry
    level, cache = grow(cache, level, level, depth)
    return (level, cache), level

  (_, cache), later = jax.lax.scan(
    grow_next, (first, cache), jnp.arange(1, layout.gamma)
  )
  levels = jax.tree.map(
    lambda head, tail: jnp.concatenate([head[None], tail]), first, later
  )
  return levels, cache


def _level_before(layout, beam, paths) -> Level:
  """Returns the nodes of the level before the roots that live hypotheses pass through.

  The draft never read the last level that the draft grew, and needs the level if the
  level was accepted. Ranks that no live hypothesis passes through have arbitrary
  content, as no node sees these ranks.
  """
  steps = beam.num_steps
  passes = _at(paths, steps)[:, None] == jnp.arange(layout.width)[:, None]
  owner = passes.argmax(axis=2)
  # Before the first step the level is blank, as the token at index -1 is 0.
  tokens = take(_at(beam.live_tokens, steps - 1), owner)
  is_older = jnp.arange(layout.num_levels) < steps[:, None, None]
  older = jnp.where(is_older, take(paths, owner), -1)
  visible = layout.with_own(layout.seen(older), layout.root_slots(steps - 1))
  return Level(tokens, owner, jnp.zeros(tokens.shape), visible)


def _at(array: Array, place: Int[Array, "B"]) -> Array:
  """Returns [B, W, ...] of [B, W, L, ...] at one place per row."""
  return jax.vmap(lambda row, i: row[:, i])(array, place)


def _grow(layout, level: Level, logits, first_slot, eos_id: EndTokens) -> Level:
  """Returns the level after `level`: the draft's beam of W, then the best others.

  The beam of W nodes is separate from the other nodes, so a draft that equals the
  target finds the target's beam at any width U. A single pool of U could lose the beam
  to children of the other nodes.
  """
  rows, _, vocab = logits.shape
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  log_probs = log_probs.at[:, :, jnp.array(as_tuple(eos_id))].set(-jnp.inf)
  scores = (level.scores[..., None] + log_probs).reshape(rows, -1)
  _, flat = jax.lax.top_k(scores[:, : layout.width * vocab], layout.width)
  others = scores.at[jnp.arange(rows)[:, None], flat].set(-jnp.inf)
  _, flat_others = jax.lax.top_k(others, layout.draft_width - layout.width)
  flat = jnp.concatenate([flat, flat_others], axis=1)
  parents = flat // vocab
  return Level(
    tokens=(flat % vocab).astype(jnp.int32),
    parents=parents,
    scores=take(scores, flat),
    visible=layout.with_own(take(level.visible, parents), first_slot),
  )
