"""Drafting by a speculation of its own: a hierarchy of models, however deep.

Source: Globerson et al., arXiv 2510.19705 (M_0 drafts for M_1, .., for the target); the
windows that a correction ends are the flush policy. What a lower level proposes, an
exact rule judges by the middle network's distribution; so the window that goes up has
the middle network's distribution at every place, and the target judges it as it would
the network's own draft (docs/math.md, "Hierarchies"). The middle one may be the target
itself, less some of what it is: then a window goes on from the target's cache.

Shapes: B rows, G gamma (the window), H the lower draft's tokens, K = H + 1, M = G + K,
C decisions, L uniforms a decision, V vocabulary, D width of the features.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.checks import check_uniforms
from specdec_t5x.core.greedy import rule_at
from specdec_t5x.core.knobs import knob, one_of
from specdec_t5x.core.token import Token
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.core.types import Cache, ExtendFn, Guarantee, Proposal, Rule
from specdec_t5x.decoding import step
from specdec_t5x.decoding.context import Context, Target
from specdec_t5x.decoding.drafter import Drafter, Stops
from specdec_t5x.decoding.policy import Fixed
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.decoding.step import Speculation
from specdec_t5x.drafters.of_target import OfTarget
from specdec_t5x.drafters.stepwise import gamma_knob

WINDOWS = ("fixed", "flush")
DEFAULT_WINDOW = 8


@flax.struct.dataclass
class CascadeState:
  """What the drafter carries.

  Attributes:
    cache: the middle network's; None where that is the target itself.
    lower: the state of what drafts for it.
    calls: calls of the middle network that each row took part in.
  """

  cache: Cache | None
  lower: Any
  calls: Int[Array, "B"]


@flax.struct.dataclass
class _Window:
  """A window while it fills.

  Attributes:
    state: of the inner speculation; a row has ended where its window has.
    probs: the distribution of each gathered token, garbage beyond; None of certain
      ones.
    lost: rows where a distribution was no number.
    iterations: inner iterations so far.
    calls: of the middle network, a row.
  """

  state: DecodeState
  probs: Float[Array, "B M V"] | None
  lost: Bool[Array, "B"]
  iterations: Int[Array, ""]
  calls: Int[Array, "B"]


@dataclasses.dataclass(frozen=True)
class Cascade(Drafter):
  """Drafts windows of a network's tokens, which another drafter speeds up.

  The distribution of a window's token is the network's own, given what comes before.

  Attributes:
    network: the middle one, over the target's vocabulary; or the target itself, less
      what a `Quantized` or `LayerSkip` says (whose gamma is not used).
    drafter: drafts chains for it: a draft model, copying, or another cascade.
    gamma: most tokens of a window.
    window: 'fixed' gathers gamma tokens; 'flush' ends the window with the first token
      that the network had to correct.
    rule: which of the lower draft's tokens stand before the network; EXACT.
  """

  network: Any
  drafter: Drafter
  gamma: int = gamma_knob(DEFAULT_WINDOW)
  window: str = knob("fixed", one_of(WINDOWS), "when a window ends", "WINDOW")
  rule: Rule = dataclasses.field(default_factory=Token)

  def __post_init__(self):
    super().__post_init__()
    if self.rule.guarantee is not Guarantee.EXACT or self.rule.needs_independent:
      raise ValueError(
        "The rule between two levels of a cascade must keep the middle network's "
        "distribution "
        f"of a chain, got {type(self.rule).__name__}. Use 'token', 'block' or "
        "'recursive': else the target would judge by a distribution that nothing was "
        "drawn from."
      )
    _check_lower(self.drafter, self.gamma)

  @property
  def stops(self) -> Stops:
    """Windows that are flushed are often shorter than gamma."""
    return Stops.BY_ITSELF if self.window == "flush" else Stops.NEVER

  @property
  def tree(self) -> Tree:
    """A chain of gamma tokens."""
    return chain(self.gamma)

  @property
  def decisions(self) -> int:
    """Those of gamma inner iterations, each of which gathers a token at least."""
    return self.gamma * step.decisions(self.drafter)

  @property
  def of_target(self) -> bool:
    """Whether the middle network is the target itself, made cheaper."""
    return isinstance(self.network, OfTarget)

  @property
  def reads_target(self) -> bool:
    """Whether the window goes on from the target's cache."""
    return self.of_target

  @property
  def networks(self) -> Mapping[str, Any]:
    """The middle network as 'draft'; those below it as 'draft_2', 'draft_3'.

    Where the middle one is the target itself, those below it by their own names.
    """
    below = {self._above(name): x for name, x in self.drafter.networks.items()}
    return below if self.of_target else {"draft": self.network, **below}

  def derived(self, target: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Returns what the middle network makes of the target's parameters."""
    return self.network.derived(target) if self.of_target else {}

  def check(self, target: Any) -> None:
    """Raises a ValueError where a level does not go with the one that judges it."""
    super().check(target)
    if self.of_target:
      self.network.check(target)
    self.drafter.check(target if self.of_target else self.network)

  def start(self, context: Context) -> CascadeState:
    """Returns the middle network's first cache, and the lower drafter's state."""
    cache = None if self.of_target else context.networks["draft"].start()
    lower = self.drafter.start(self._lower_context(context))
    return CascadeState(cache, lower, jnp.zeros(context.source.shape[:1], jnp.int32))

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B C L"]
  ) -> tuple[Proposal, CascadeState]:
    """Fills a window in each row; see `decoding.drafter.Drafter`."""
    check_uniforms(uniforms, self.decisions)
    own, most = state.drafter_state, context.draft_lengths(state, self.lengths)
    # The window is an output of its own, of at most `most` tokens after the known.
    inner = state.replace(
      starts=state.lengths - (self.gamma - most),
      ended=state.ended | (most <= 0),
      scores=jnp.zeros_like(state.scores),
      target_cache=state.target_cache if self.of_target else own.cache,
      drafter_state=own.lower,
      policy_state=None,
    )
    window = _Window(
      state=inner,
      probs=self._no_probs(context, most.size),
      lost=jnp.zeros_like(state.ended),
      iterations=jnp.zeros((), jnp.int32),
      calls=own.calls,
    )
    window = jax.lax.while_loop(
      lambda window: ~window.state.ended.all(),
      lambda window: self._grown(context, window, uniforms, state.lengths),
      window,
    )
    proposal = self._proposal(window, state.lengths)
    found = window.state
    # What the target less some of what it is wrote in the target's cache is dropped.
    cache = None if self.of_target else found.target_cache
    return proposal, CascadeState(cache, found.drafter_state, window.calls)

  def _grown(self, context, window, uniforms, lengths) -> _Window:
    """Returns the window after one iteration of the inner speculation."""
    spec = self._speculation(context, window.state)
    if context.sampling.coupled:
      draws = step.draws(spec, window.state)
    else:
      count = step.decisions(self.drafter)
      draws = jax.lax.dynamic_slice_in_dim(
        uniforms, window.iterations * count, count, axis=1
      )
    state, iteration = step.step(spec, window.state, draws)
    info, probs = iteration.info, window.probs
    if probs is not None:
      # The middle network's distribution at each place; of the drafted nodes and what
      # follows.
      probs = _written(probs, iteration.target_probs, window.state.lengths - lengths)
    if self.window == "flush":
      # Known with the token: it counts, whatever it is, and what would follow does not.
      corrected = iteration.verdict.last < iteration.proposal.num_valid
      state = state.replace(ended=state.ended | corrected)
    return _Window(
      state=state,
      probs=probs,
      lost=window.lost | jnp.isnan(info.acceptance_mass) | jnp.isnan(info.log_prob),
      iterations=window.iterations + 1,
      calls=window.calls + info.target_calls,
    )

  def _proposal(self, window, lengths) -> Proposal:
    """Returns what a window gathered."""
    places = lengths[:, None] + jnp.arange(self.gamma)
    tokens = jnp.take_along_axis(window.state.sequences, places, axis=1)
    tokens = jnp.where(window.lost[:, None], -1, tokens)
    probs = window.probs if window.probs is None else window.probs[:, : self.gamma]
    return Proposal.chain(tokens, probs, window.state.lengths - lengths)

  def _no_probs(self, context, rows) -> Float[Array, "B M V"] | None:
    if context.sampling.certain:
      return None
    size = self.gamma + self.drafter.tree.size + 1
    return jnp.zeros((rows, size, context.target.vocab_size))

  def _speculation(self, context, state) -> Speculation:
    """Returns how the middle network decodes with the lower draft's help."""
    lower = self._lower_context(context)
    if not self.of_target:
      # The root of a block is the last known token; its own cache may lack more.
      read = _reading_before(lower.target.extend, state.sequences, context.behind - 1)
      target = dataclasses.replace(lower.target, extend=read)
      lower = dataclasses.replace(lower, target=target)
    return Speculation(self.drafter, *rule_at(self.rule, context.sampling), lower)

  def _lower_context(self, context) -> Context:
    """Returns what the lower drafter is given: the middle network is its target."""
    networks = context.networks
    below = {name: networks[self._above(name)] for name in self.drafter.networks}
    of_target = self.of_target
    middle = self.network.extend(context) if of_target else networks["draft"].extend
    return dataclasses.replace(
      context,
      max_length=self.gamma,
      target=Target(middle, context.target.vocab_size),
      networks=below,
      policy=Fixed(),
      behind=context.behind + 1,
    )

  def _above(self, name: str) -> str:
    """Returns what a network of the lower drafter is called here."""
    return name if self.of_target else _below(name)


def _check_lower(drafter: Any, gamma: int) -> None:
  """Raises a ValueError where `drafter` can't draft for the middle network."""
  if drafter.reads_target or not drafter.tree.is_chain:
    raise ValueError(
      "A cascade needs a lower drafter of chains that reads nothing of the network "
      f"that it drafts for, got a {type(drafter).__name__} of {drafter.tree.size} "
      "nodes. Use a DraftModel, Copy or another Cascade."
    )
  if drafter.tree.size >= gamma:
    raise ValueError(
      f"A window of GAMMA={gamma} tokens takes at most {gamma - 1} of a lower draft, "
      "since the middle network adds one to each, got lower drafts of "
      f"{drafter.tree.size}. Lower LOWER_GAMMA, or raise GAMMA."
    )


def _below(name: str) -> str:
  """Returns what a network is called one level further down.

  >>> _below("draft"), _below("draft_2")
  ('draft_2', 'draft_3')
  """
  stem, _, number = name.rpartition("_")
  return f"{stem}_{int(number) + 1}" if stem and number.isdigit() else f"{name}_2"


def _reading_before(
  extend: ExtendFn, sequences: Int[Array, "B S"], more: int
) -> ExtendFn:
  """Returns a network that reads `more` of the known tokens before each block, too."""

  def read(cache, block):
    index, size = cache.index, block.shape[1]
    start = jnp.maximum(index - more, 0)
    window = start[:, None] + jnp.arange(more + size)
    text = _written(sequences, block, index)
    tokens = jnp.take_along_axis(text, window, axis=1)
    *found, cache = extend(cache.at(start), tokens)
    # Where there are fewer, the last slots hold garbage, to be overwritten.
    cut = jax.vmap(lambda x, at: jax.lax.dynamic_slice_in_dim(x, at, size))
    return *(cut(x, index - start) for x in found), cache.at(index + size)

  return read


def _written(rows: Array, new: Array, at: Int[Array, "B"]) -> Array:
  """Returns the rows with new entries, each row's from a place of its own on."""
  write = lambda row, new, at: jax.lax.dynamic_update_slice_in_dim(row, new, at, 0)
  return jax.vmap(write)(rows, new, at)
