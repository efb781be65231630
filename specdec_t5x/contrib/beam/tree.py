"""The draft's part of a beam search, and where everything lies in the caches.

Both caches hold all hypotheses of an input in one row, level by level. A level is what
the W live hypotheses said at one step: rank r of level l has slot l W + r. Level 0 is
blank, level 1 the start token, and the last tokens of hypotheses of n steps (the roots
of a tree) are level n + 1. A hypothesis is a path, its rank in each level, so a step
that reorders hypotheses moves no keys and values. Behind the roots lie the nodes of
the tree, G levels of U, until those that were accepted move to levels of their own.

Source: Leviathan et al., ICML 2023, appendix A.4.
Shapes: B rows, W beam width, U draft's width, G gamma, N = W + U G nodes (roots first,
then level by level), L levels, S slots, V vocabulary.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.contrib.beam.hypotheses import Beam, BeamExtendFn
from specdec_t5x.core.ends import EndTokens, as_tuple
from specdec_t5x.core.types import Cache


@dataclasses.dataclass(frozen=True)
class Layout:
  """Which token has which slot.

  Attributes:
    width: W, of the target's beam.
    draft_width: U, of the draft's; at least W.
    gamma: levels drafted an iteration; 0 without a draft.
    max_length: the most tokens of the output.
  """

  width: int
  draft_width: int
  gamma: int
  max_length: int

  @property
  def num_levels(self) -> int:
    """L: the blank one, the start token's, and one a step."""
    return self.max_length + 2

  @property
  def num_slots(self) -> int:
    """S: all levels, and a tree behind the last one."""
    return self.num_levels * self.width + self.draft_width * self.gamma

  def root_slots(self, num_steps: Int[Array, "B"]) -> Int[Array, "B"]:
    """Returns the first slot of the roots, where the target's block starts."""
    return (num_steps + 1) * self.width

  def key_positions(self, num_steps: Int[Array, "B"]) -> Int[Array, "B S"]:
    """Returns the place of each slot's token in its sequence, the start token's 0."""
    slots, roots = jnp.arange(self.num_slots), self.root_slots(num_steps)[:, None]
    depth = 1 + (slots - roots - self.width) // self.draft_width
    committed = jnp.minimum(slots // self.width - 1, num_steps[:, None])
    return committed + jnp.maximum(depth, 0)

  def start_paths(self, rows: int) -> Int[Array, "B W L"]:
    """Returns the paths of hypotheses that are the start token alone."""
    paths = jnp.full((rows, self.width, self.num_levels), -1)
    return paths.at[:, :, 1].set(jnp.arange(self.width))

  def seen(self, paths: Int[Array, "B W L"]) -> Bool[Array, "B W S"]:
    """Returns the slots of each path; -1 is no slot's rank."""
    is_rank = paths[..., None] == jnp.arange(self.width)
    committed = is_rank.reshape(*paths.shape[:2], -1)
    return jnp.pad(committed, ((0, 0), (0, 0), (0, self.draft_width * self.gamma)))

  def with_own(
    self, seen: Bool[Array, "B M S"], first: Int[Array, "B"]
  ) -> Bool[Array, "B M S"]:
    """Returns `seen` with each node's own slot: slots first, first + 1, ..."""
    own = first[:, None] + jnp.arange(seen.shape[1])
    return seen | (jnp.arange(self.num_slots) == own[..., None])


@flax.struct.dataclass
class Level:
  """A level of the tree; stacked levels have another axis in front.

  Attributes:
    tokens: of its nodes; the first W are the draft's own beam, most likely first.
    parents: each node's parent, by its rank in the level before.
    scores: the target's log-probability of the root, plus the draft's down to here.
    visible: the slots that each node sees, in either cache.
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
  """Lets the draft go on from the live hypotheses for gamma steps.

  Args:
    layout: where tokens lie.
    extend: the draft model.
    cache: the draft's; the roots' level and the one before may be missing.
    beam: the target's.
    paths: of its live hypotheses.
    eos_id: excluded, for what has ended is no node to go on from.

  Returns:
    The levels of the tree below the roots, stacked [G, B, U, ...], and the cache.
  """
  start = roots(layout, beam, paths)
  first_slot = layout.root_slots(beam.num_steps)
  key_positions = layout.key_positions(beam.num_steps)

  def grow(cache, block, level, depth):
    logits, cache = extend(cache, block.tokens, key_positions, block.visible)
    logits = logits[:, -level.tokens.shape[1] :]
    own_slots = first_slot + layout.width + depth * layout.draft_width
    return _grow(layout, level, logits, own_slots, eos_id), cache

  before = _level_before(layout, beam, paths)
  both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), before, start)
  first, cache = grow(cache.at(first_slot - layout.width), both, start, 0)

  def grow_next(carry, depth):
    level, cache = carry
    level, cache = grow(cache, level, level, depth)
    return (level, cache), level

  (_, cache), rest = jax.lax.scan(
    grow_next, (first, cache), jnp.arange(1, layout.gamma)
  )
  stack = lambda head, tail: jnp.concatenate([head[None], tail])
  return jax.tree.map(stack, first, rest), cache


def _level_before(layout, beam, paths) -> Level:
  """Returns the level before the roots, as far as live hypotheses pass through it.

  The draft never read the last level that it drafted, and needs it where that was
  accepted. Ranks that no live hypothesis passes get any content: no one sees them.
  """
  steps = beam.num_steps
  at = lambda array, place: jax.vmap(lambda row, i: row[:, i])(array, place)
  passes = at(paths, steps)[:, None] == jnp.arange(layout.width)[:, None]
  owner = passes.argmax(axis=2)
  of_owner = jax.vmap(lambda array, i: array[i])
  # Before the first step that level is the blank one: index -1 of the tokens is a zero.
  tokens = of_owner(at(beam.live_tokens, steps - 1), owner)
  is_older = jnp.arange(layout.num_levels) < steps[:, None, None]
  older = jnp.where(is_older, of_owner(paths, owner), -1)
  visible = layout.with_own(layout.seen(older), layout.root_slots(steps - 1))
  return Level(tokens, owner, jnp.zeros(tokens.shape), visible)


def _grow(layout, level: Level, logits, own_slots, eos_id: EndTokens) -> Level:
  """Returns the level after `level`: the draft's beam of W, then the best others.

  With the beam of W nodes apart from the rest, a draft that is the target finds the
  target's beam at any width; one pool of U could lose it to children of the others.
  """
  rows, _, vocab = logits.shape
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  log_probs = log_probs.at[:, :, jnp.array(as_tuple(eos_id))].set(-jnp.inf)
  scores = (level.scores[..., None] + log_probs).reshape(rows, -1)
  _, flat = jax.lax.top_k(scores[:, : layout.width * vocab], layout.width)
  others = scores.at[jnp.arange(rows)[:, None], flat].set(-jnp.inf)
  _, rest = jax.lax.top_k(others, layout.draft_width - layout.width)
  flat = jnp.concatenate([flat, rest], axis=1)
  parents = flat // vocab
  take = jax.vmap(lambda array, i: array[i])
  return Level(
    tokens=(flat % vocab).astype(jnp.int32),
    parents=parents,
    scores=take(scores, flat),
    visible=layout.with_own(take(level.visible, parents), own_slots),
  )
