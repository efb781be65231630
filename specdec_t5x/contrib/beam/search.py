"""Beam search with speculation: the hypotheses of plain beam search in fewer calls.

Each iteration the draft grows a tree from the target's W live hypotheses, one call of
the target scores it, and the target's own beam search takes steps from those scores:
the first for certain, each further one while all W live hypotheses are nodes of the
tree. With gamma = 0 there is no tree, and this is plain beam search.

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
  """How to search: everything that is fixed when the program is compiled.

  Attributes:
    settings: what is searched for.
    layout: widths, gamma, and what lies where in the caches.
    extend: the target model.
    draft_extend: the draft model; None where gamma is 0.
  """

  settings: BeamSettings
  layout: Layout
  extend: BeamExtendFn
  draft_extend: BeamExtendFn | None = None


@flax.struct.dataclass
class BeamInfo:
  """What happened to each row, in one iteration or in all.

  Attributes:
    target_calls: calls of the target that the row took part in.
    steps: steps of beam search; each adds a token to every live hypothesis.
    drafted: levels that counted: gamma, or fewer where fewer remain.
    tried: levels that the search reached: the accepted ones and the first that lacked
      a live hypothesis.
    accepted: levels that held all W live hypotheses, so that a step was taken there.
  """

  target_calls: Int[Array, "B"]
  steps: Int[Array, "B"]
  drafted: Int[Array, "B"]
  tried: Int[Array, "B"]
  accepted: Int[Array, "B"]


@flax.struct.dataclass
class SearchState:
  """What the loop carries.

  Attributes:
    beam: the hypotheses.
    paths: the rank of each live hypothesis in each level, -1 beyond its last token.
    target_cache: holds all levels before the roots.
    draft_cache: may lack the last one of those; None without a draft.
    info: totals so far.
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
    tokens: the hypotheses, zeros after the end of sequence.
    scores: log-probability over the brevity penalty; plain log-probability in a row
      where no hypothesis ended.
    info: totals.
  """

  tokens: Int[Array, "B W T"]
  scores: Float[Array, "B W"]
  info: BeamInfo


@flax.struct.dataclass
class _Advance:
  """What a step on the target's scores leaves for the next.

  Attributes:
    beam: the hypotheses.
    paths: of the live ones.
    nodes: which of the N nodes each live hypothesis is.
    active: the rows that take the next step.
    info: of this iteration.
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
    spec: how to search; static.
    target_cache: the target's, empty, with `spec.layout.num_slots` slots.
    draft_cache: the draft's, alike; None where gamma is 0.
    rows: how many inputs.
    loop: `jax.lax.while_loop`, or what does the same and can be watched.

  Returns:
    What plain beam search with the target returns, whatever the draft.
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
  layout, beam = spec.layout, state.beam
  levels, draft_cache = None, state.draft_cache
  if layout.gamma:
    levels, draft_cache = tree.draft(
      layout, spec.draft_extend, draft_cache, beam, state.paths, spec.settings.eos_id
    )
  log_probs, target_cache = _score(spec, state, levels)
  advance, nodes = _advance(spec, state, levels, log_probs)
  if layout.gamma:
    # Nodes of levels that were not accepted come along: the next call overwrites them.
    first_slot = layout.root_slots(beam.num_steps)
    sources = first_slot[:, None] + nodes.swapaxes(0, 1).reshape(nodes.shape[1], -1)
    target_cache, draft_cache = (
      cache.gathered(sources, first_slot + layout.width)
      for cache in (target_cache, draft_cache)
    )
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
  layout, steps = spec.layout, state.beam.num_steps
  start = tree.roots(layout, state.beam, state.paths)
  tokens, visible = start.tokens, start.visible
  if levels is not None:
    flat = lambda x: x.swapaxes(0, 1).reshape(x.shape[1], -1, *x.shape[3:])
    tokens = jnp.concatenate([tokens, flat(levels.tokens)], axis=1)
    visible = jnp.concatenate([visible, flat(levels.visible)], axis=1)
  logits, cache = spec.extend(
    state.target_cache.at(layout.root_slots(steps)),
    tokens,
    layout.key_positions(steps),
    visible,
  )
  return jax.nn.log_softmax(logits.astype(jnp.float32)), cache


def _advance(
  spec: BeamSearch,
  state: SearchState,
  levels: Level | None,
  log_probs: Float[Array, "B N V"],
) -> tuple[_Advance, Int[Array, "G B W"]]:
  """Takes the steps that the scores allow; also returns the nodes of each level."""
  layout, beam = spec.layout, state.beam
  active = hypotheses.searching(spec.settings, beam)
  remaining = layout.max_length - beam.num_steps
  info = _no_info(active.size).replace(
    target_calls=active.astype(jnp.int32),
    drafted=active * jnp.clip(remaining - 1, 0, layout.gamma),
  )
  nodes = jnp.broadcast_to(jnp.arange(layout.width), beam.live_scores.shape)
  start = _Advance(beam, state.paths, nodes, active, info)
  # After the last level comes one that holds nothing, so that all steps are alike.
  tokens, parents = (
    _nowhere(layout, active.size, None if levels is None else getattr(levels, name))
    for name in ("tokens", "parents")
  )

  def next_level(advance, level):
    advance = _step(spec, advance, log_probs, *level)
    return advance, advance.nodes

  depths = jnp.arange(layout.gamma + 1)
  advance, nodes = jax.lax.scan(next_level, start, (depths, tokens, parents))
  return advance, nodes[:-1]


def _step(spec: BeamSearch, advance: _Advance, log_probs, depth, tokens, parents):
  """Takes a step in the active rows, and looks for its outcome in the next level."""
  layout, nodes = spec.layout, advance.nodes
  here = jax.vmap(lambda array, i: array[i])(log_probs, nodes)
  beam, extension = hypotheses.step(spec.settings, advance.beam, here)
  paths = _follow(advance.paths, extension.parents, beam.num_steps)
  beam, paths = jax.tree.map(
    lambda new, old: jax.vmap(jnp.where)(advance.active, new, old),
    (beam, paths),
    (advance.beam, advance.paths),
  )
  # Nodes of a level stand behind the roots and the levels before; its parents' too.
  first = layout.width + (depth - 1) * layout.draft_width
  parents = jnp.where(depth == 0, parents, parents + first)
  extended = jnp.take_along_axis(nodes, extension.parents, axis=1)
  same = (extended[..., None] == parents[:, None]) & (
    extension.tokens[..., None] == tokens[:, None]
  )
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
  """Returns the paths of hypotheses that extend `parents` by their own rank."""
  ranks = jnp.arange(paths.shape[1])
  extend = lambda path, parent, level: path[parent].at[:, level].set(ranks)
  return jax.vmap(extend)(paths, parents, num_steps + 1)


def _nowhere(layout, rows, of_levels):
  nothing = jnp.full((1, rows, layout.draft_width), -1)
  return nothing if of_levels is None else jnp.concatenate([of_levels, nothing])


def _no_info(rows: int) -> BeamInfo:
  count = jnp.zeros(rows, jnp.int32)
  return BeamInfo(count, count, count, count, count)
