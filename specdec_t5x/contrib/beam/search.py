"""Beam search with speculation: the hypotheses of plain beam search in fewer calls.

In each iteration the draft grows a tree from the target's W live hypotheses, and a
single call of the target scores the tree. The target's beam search takes steps from
these scores. The first step always succeeds. Each further step needs all W live
hypotheses to be nodes of the tree. With gamma = 0 there is no tree, and the search is
plain beam search.

Source: Leviathan et al., ICML 2023, appendix A.4. See docs/math.md, 'Beam search'.
Shapes: B rows, W beam width, U draft's width, G gamma, N = W + U G nodes, L levels, T
output length, V vocabulary.
"""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.contrib.beam import hypotheses, tree
from specdec_t5x.contrib.beam.hypotheses import Beam, BeamExtendFn, BeamSettings
from specdec_t5x.contrib.beam.tree import Layout, Level
from specdec_t5x.core.types import Cache
from specdec_t5x.decoding.state import LoopFn


@dataclasses.dataclass(frozen=True)
class BeamSearch:
  """The static configuration of a search, fixed when the program is compiled.

  Attributes:
    settings: the settings of the beam search.
    layout: the widths, gamma, and the layout of the caches.
    extend: the target model.
    draft_extend: the draft model; None if gamma is 0.
  """

  settings: BeamSettings
  layout: Layout
  extend: BeamExtendFn
  draft_extend: BeamExtendFn | None = None


@flax.struct.dataclass
class BeamInfo:
  """The statistics of each row, of an iteration or of all iterations.

  Attributes:
    target_calls: the number of target calls that the row took part in.
    steps: the number of steps; each step adds a token to every live hypothesis.
    drafted: the number of levels that counted: gamma, or fewer if fewer remain.
    tried: the number of levels that the search reached: the accepted levels and the
      first level that lacked a live hypothesis.
    accepted: the number of levels that held all W live hypotheses, so that a step
      followed.
  """

  target_calls: Int[Array, "B"]
  steps: Int[Array, "B"]
  drafted: Int[Array, "B"]
  tried: Int[Array, "B"]
  accepted: Int[Array, "B"]


@flax.struct.dataclass
class SearchState:
  """The state of the loop.

  Attributes:
    beam: the hypotheses.
    paths: the rank of each live hypothesis in each level, -1 beyond the last token.
    target_cache: the target's cache, with all levels before the roots.
    draft_cache: the draft's cache, which may lack the last of these levels; None
      without a draft.
    info: the totals so far.
  """

  beam: Beam
  paths: Int[Array, "B W L"]
  target_cache: Cache
  draft_cache: Any
  info: BeamInfo


@flax.struct.dataclass
class BeamDecoded:
  """The result of a search, by increasing score.

  Attributes:
    tokens: the hypotheses, zeros after EOS.
    scores: the log-probability over the brevity penalty; the plain log-probability in a
      row without ended hypotheses.
    info: the totals.
  """

  tokens: Int[Array, "B W T"]
  scores: Float[Array, "B W"]
  info: BeamInfo


@flax.struct.dataclass
class _Advance:
  """The state between two steps on the target's scores.

  Attributes:
    beam: the hypotheses.
    paths: the paths of the live hypotheses.
    nodes: the node, of N nodes, of each live hypothesis.
    active: the rows that take the next step.
    info: the statistics of the iteration.
  """

  beam: Beam
  paths: Int[Array, "B W L"]
  nodes: Int[Array, "B W"]
  active: Bool[Array, "B"]
  info: BeamInfo


def search(
  spec: BeamSearch,
  target_cache: Cache,
  draft_cache: Cache | None,
  rows: int,
  loop: LoopFn = jax.lax.while_loop,
) -> BeamDecoded:
  """Searches until no row's result can change.

  Args:
    spec: the static configuration.
    target_cache: the target's empty cache, with `spec.layout.num_slots` slots.
    draft_cache: the draft's empty cache of the same size; None if gamma is 0.
    rows: the number of inputs.
    loop: `jax.lax.while_loop`, or an equivalent loop that can be watched.

  Returns:
    The result of plain beam search with the target, for any draft.
  """
  layout = spec.layout
  state = SearchState(
    beam=hypotheses.start(rows, layout.width, layout.max_length),
    paths=layout.start_paths(rows),
    target_cache=target_cache,
    draft_cache=draft_cache,
    info=_no_info(rows),
  )

  def unfinished(state):
    return hypotheses.searching(spec.settings, state.beam).any()

  state = loop(unfinished, lambda state: iterate(spec, state), state)
  tokens, scores = hypotheses.result(state.beam)
  return BeamDecoded(tokens, scores, state.info)


def iterate(spec: BeamSearch, state: SearchState) -> SearchState:
  """Advances every unfinished row by one to gamma + 1 steps of beam search."""
  layout = spec.layout
  beam = state.beam
  levels = None
  draft_cache = state.draft_cache
  if layout.gamma:
    levels, draft_cache = tree.draft(
      layout, spec.draft_extend, draft_cache, beam, state.paths, spec.settings.eos_id
    )
  log_probs, target_cache = _score(spec, state, levels)
  advance, nodes = _advance(spec, state, levels, log_probs)
  if layout.gamma:
    # Nodes of rejected levels are copied, too. The next call overwrites these nodes.
    first_slot = layout.root_slots(beam.num_steps)
    sources = first_slot[:, None] + nodes.swapaxes(0, 1).reshape(nodes.shape[1], -1)
    destination = first_slot + layout.width
    target_cache = target_cache.gathered(sources, destination)
    draft_cache = draft_cache.gathered(sources, destination)
  return SearchState(
    beam=advance.beam,
    paths=advance.paths,
    target_cache=target_cache,
    draft_cache=draft_cache,
    info=jax.tree.map(jnp.add, state.info, advance.info),
  )


def _score(
  spec: BeamSearch, state: SearchState, levels: Level | None
) -> tuple[Float[Array, "B N V"], Cache]:
  """Scores the roots and the tree in one call of the target."""
  layout = spec.layout
  steps = state.beam.num_steps
  start = tree.roots(layout, state.beam, state.paths)
  tokens = start.tokens
  visible = start.visible
  if levels is not None:
    tokens = jnp.concatenate([tokens, _by_row(levels.tokens)], axis=1)
    visible = jnp.concatenate([visible, _by_row(levels.visible)], axis=1)
  logits, cache = spec.extend(
    state.target_cache.at(layout.root_slots(steps)),
    tokens,
    layout.key_positions(steps),
    visible,
  )
  return jax.nn.log_softmax(logits.astype(jnp.float32)), cache


def _by_row(levels: Array) -> Array:
  """Reshapes [G, B, U, ...] to [B, G U, ...]."""
  rows = levels.shape[1]
  return levels.swapaxes(0, 1).reshape(rows, -1, *levels.shape[3:])


def _advance(
  spec: BeamSearch,
  state: SearchState,
  levels: Level | None,
  log_probs: Float[Array, "B N V"],
) -> tuple[_Advance, Int[Array, "G B W"]]:
  """Takes the steps that the scores allow; also returns the nodes of each level."""
  layout = spec.layout
  beam = state.beam
  active = hypotheses.searching(spec.settings, beam)
  remaining = layout.max_length - beam.num_steps
  info = _no_info(active.size).replace(
    target_calls=active.astype(jnp.int32),
    drafted=active * jnp.clip(remaining - 1, 0, layout.gamma),
  )
  nodes = jnp.broadcast_to(jnp.arange(layout.width), beam.live_scores.shape)
  start = _Advance(beam, state.paths, nodes, active, info)
  # An empty level follows the last level, so that all steps are alike.
  tokens = jnp.full((1, active.size, layout.draft_width), -1)
  parents = tokens
  if levels is not None:
    tokens = jnp.concatenate([levels.tokens, tokens])
    parents = jnp.concatenate([levels.parents, parents])

  def next_level(advance, level):
    depth, tokens, parents = level
    advance = _step(spec, advance, log_probs, depth, tokens, parents)
    return advance, advance.nodes

  depths = jnp.arange(layout.gamma + 1)
  advance, nodes = jax.lax.scan(next_level, start, (depths, tokens, parents))
  return advance, nodes[:-1]


def _step(spec: BeamSearch, advance: _Advance, log_probs, depth, tokens, parents):
  """Takes a step in the active rows, and looks up the result in the next level.

  `tokens` and `parents` are those of the next level. At depth 0 this level is directly
  below the roots.
  """
  layout = spec.layout
  nodes = advance.nodes
  node_log_probs = hypotheses.take(log_probs, nodes)
  beam, extension = hypotheses.step(spec.settings, advance.beam, node_log_probs)
  paths = _follow(advance.paths, extension.parents, beam.num_steps)
  beam, paths = jax.tree.map(
    lambda new, old: jax.vmap(jnp.where)(advance.active, new, old),
    (beam, paths),
    (advance.beam, advance.paths),
  )
  # The nodes of the parents' level are numbered after the roots and earlier levels.
  first = layout.width + (depth - 1) * layout.draft_width
  parents = jnp.where(depth == 0, parents, parents + first)
  extended = jnp.take_along_axis(nodes, extension.parents, axis=1)
  same_parent = extended[..., None] == parents[:, None]
  same_token = extension.tokens[..., None] == tokens[:, None]
  same = same_parent & same_token
  reached = advance.active & hypotheses.searching(spec.settings, beam)
  reached = reached & (depth < layout.gamma)
  accepted = reached & same.any(axis=2).all(axis=1)
  info = advance.info.replace(
    steps=advance.info.steps + advance.active,
    tried=advance.info.tried + reached,
    accepted=advance.info.accepted + accepted,
  )
  nodes = layout.width + depth * layout.draft_width + same.argmax(axis=2)
  return _Advance(beam, paths, nodes, accepted, info)


def _follow(paths, parents, num_steps):
  """Returns the parents' paths, each extended by the new hypothesis's rank."""
  ranks = jnp.arange(paths.shape[1])

  def extend(path, parent, level):
    return path[parent].at[:, level].set(ranks)

  return jax.vmap(extend)(paths, parents, num_steps + 1)


def _no_info(rows: int) -> BeamInfo:
  count = jnp.zeros(rows, jnp.int32)
  return BeamInfo(count, count, count, count, count)
