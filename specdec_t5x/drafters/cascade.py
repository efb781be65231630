"""Drafting by nested speculation: a hierarchy of models of any depth.

Source: Globerson et al., arXiv 2510.19705 (M_0 drafts for M_1, .., for the target).
Windows that end at a correction are the paper's flush policy. An exact rule verifies
the lower draft against the middle network. A window therefore has the middle network's
distribution at every position, and the target verifies a window like a draft of the
middle network (docs/math.md, "Hierarchies"). The middle network may be a cheaper
version of the target. A window then continues the target's cache.

Shapes: B rows, G gamma (the window), H the lower draft's tokens, K = H + 1, M = G + K,
C decisions, L uniforms per decision, V vocabulary, D width of the features.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.knobs import Knob, KnobError, knob
from specdec_t5x.core.rules import rule_at
from specdec_t5x.core.rules.token import Token
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.core.types import (
  Cache,
  ExtendFn,
  Guarantee,
  Proposal,
  Rule,
  check_uniforms,
)
from specdec_t5x.decoding import loop
from specdec_t5x.decoding.contracts import (
  Batch,
  Context,
  Drafter,
  Stops,
  Traits,
  decisions,
)
from specdec_t5x.decoding.decoder import widths_of
from specdec_t5x.decoding.policies import Fixed
from specdec_t5x.decoding.state import DecodeState, write_rows
from specdec_t5x.drafters.draft_model import ChainDrafter, gamma_knob
from specdec_t5x.drafters.of_target import OfTarget
from specdec_t5x.network.net import Net, extend_from


@flax.struct.dataclass
class CascadeState:
  """The drafter's state.

  Attributes:
    cache: the middle network's cache; None if the middle network is the target.
    lower: the lower drafter's state.
    calls: the number of calls of the middle network that each row took part in.
  """

  cache: Cache | None
  lower: Any
  calls: Int[Array, "B"]


@flax.struct.dataclass
class _Window:
  """A window while it fills."""

  # The state of the inner speculation. A row has ended if the row's window has ended.
  state: DecodeState
  # The distribution of each gathered token, garbage beyond; None if tokens are certain.
  probs: Float[Array, "B M V"] | None
  lost: Bool[Array, "B"]  # Rows in which a distribution was NaN.
  iterations: Int[Array, ""]  # The number of inner iterations so far.
  calls: Int[Array, "B"]  # The number of calls of the middle network per row.


@dataclasses.dataclass(frozen=True)
class Cascade(ChainDrafter):
  """Drafts windows of a network's tokens; a lower drafter speeds up the network.

  Each token of a window has the network's distribution, given the tokens before.

  Attributes:
    network: the middle network, over the target's vocabulary; or a `Quantized` or
      `LayerSkip` version of the target (the gamma of that drafter is not used).
    drafter: the lower drafter, which drafts chains for the network: a draft model,
      copying, or another cascade.
    gamma: the most tokens of a window.
    window: 'fixed' gathers gamma tokens; 'flush' ends the window with the first token
      that the network corrects.
    rule: the rule that verifies the lower draft's tokens; EXACT.
  """

  network: Any
  drafter: Drafter
  gamma: int | None = gamma_knob()
  window: str = knob(
    "fixed",
    Knob("one of ('fixed', 'flush')", lambda value: value in ("fixed", "flush")),
    macro="WINDOW",
  )
  rule: Rule = dataclasses.field(default_factory=Token)

  def __post_init__(self):
    super().__post_init__()
    if self.rule.guarantee is not Guarantee.EXACT or self.rule.needs_independent:
      raise ValueError(
        "The rule between two levels of a cascade must keep the middle network's "
        f"distribution of a chain, got {type(self.rule).__name__}. Use 'token', "
        "'block' or 'recursive': with another rule the target would verify with the "
        "wrong distribution."
      )
    drafter, gamma = self.drafter, self.tree.size
    if drafter.traits.reads_target or not drafter.tree.is_chain:
      raise ValueError(
        "A cascade needs a lower drafter of chains without features of the middle "
        f"network, got a {type(drafter).__name__} of {drafter.tree.size} nodes. Use a "
        "DraftModel, Copy or another Cascade."
      )
    if drafter.tree.size >= gamma:
      raise KnobError(
        "A window of {gamma}={length} tokens takes at most {most} tokens of a lower "
        "draft, because the middle network adds a token to every lower draft, got "
        "lower drafts of {size} tokens. Lower {lower_gamma}, or raise {gamma}.",
        length=gamma,
        most=gamma - 1,
        size=drafter.tree.size,
      )

  @property
  def tree(self) -> Tree:
    """A chain of gamma tokens, by default of as many as the middle network drafts."""
    usual = self.network.default_gamma if self.of_target else self.default_gamma
    return chain(self.gamma or usual)

  @property
  def traits(self) -> Traits:
    """Flushed windows are often shorter than gamma.

    A window has the decisions of gamma inner iterations, each with at least one new
    token, and may continue the target's cache.
    """
    return Traits(
      stops=Stops.BY_ITSELF if self.window == "flush" else Stops.NEVER,
      decisions=self.tree.size * decisions(self.drafter),
      reads_target=self.of_target,
    )

  @property
  def of_target(self) -> bool:
    """Whether the middle network is a cheaper version of the target."""
    return isinstance(self.network, OfTarget)

  @property
  def networks(self) -> Mapping[str, Any]:
    """The middle network as 'draft', the networks below as 'draft_2', 'draft_3'.

    If the middle network is the target, the networks below keep their names.
    """
    below = {
      self._above(name): network for name, network in self.drafter.networks.items()
    }
    return below if self.of_target else {"draft": self.network, **below}

  def derive(self, target: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Returns the parameters that the middle network derives from the target's."""
    return self.network.derive(target) if self.of_target else {}

  def check(self, target: Any, batch: Batch | None = None) -> None:
    """Raises a ValueError if a level does not fit the level above."""
    super().check(target, batch)
    if self.of_target:
      self.network.check(target, batch)
    self.drafter.check(target if self.of_target else self.network, batch)

  def start(self, context, caches, source) -> CascadeState:
    """Returns the middle network's first cache, and the lower drafter's state."""
    below = {name: caches[self._above(name)] for name in self.drafter.networks}
    return CascadeState(
      cache=None if self.of_target else caches["draft"],
      lower=self.drafter.start(self._lower_context(context), below, source),
      calls=jnp.zeros(source.shape[:1], jnp.int32),
    )

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B C L"]
  ) -> tuple[Proposal, CascadeState]:
    """Fills a window in each row; see `decoding.contracts.Drafter`."""
    check_uniforms(uniforms, self.traits.decisions)
    drafter_state = state.drafter_state
    lengths = context.draft_lengths(state)
    # The inner speculation's output is the window: at most `lengths` tokens after the
    # known tokens.
    inner = state.replace(
      starts=state.lengths - (self.tree.size - lengths),
      ended=state.ended | (lengths <= 0),
      target_cache=state.target_cache if self.of_target else drafter_state.cache,
      drafter_state=drafter_state.lower,
      policy_state=None,
    )
    probs = None
    if not context.sampling.certain:
      size = self.tree.size + self.drafter.tree.size + 1
      probs = jnp.zeros((lengths.size, size, context.target.vocab_size))
    window = _Window(
      state=inner,
      probs=probs,
      lost=jnp.zeros_like(state.ended),
      iterations=jnp.zeros((), jnp.int32),
      calls=drafter_state.calls,
    )
    window = jax.lax.while_loop(
      lambda window: ~window.state.ended.all(),
      lambda window: self._after_iteration(context, window, uniforms, state.lengths),
      window,
    )
    proposal = self._proposal(window, state.lengths)
    # A cheaper version of the target wrote to the target's cache. These entries are
    # dropped.
    cache = None if self.of_target else window.state.target_cache
    return proposal, CascadeState(cache, window.state.drafter_state, window.calls)

  def _after_iteration(self, context, window, uniforms, lengths) -> _Window:
    """Returns the window after one iteration of the inner speculation."""
    inner = self._lower_context(context)
    if not self.of_target:
      # The root of a block is the last known token. The middle network's cache may lack
      # more tokens.
      extend = _reading_before(inner.target, window.state.sequences, context.behind - 1)
      target = dataclasses.replace(inner.target, extend=extend)
      inner = dataclasses.replace(inner, target=target)
    if context.sampling.coupled:
      draws = loop.draws(inner, window.state)
    else:
      count = decisions(self.drafter)
      draws = jax.lax.dynamic_slice_in_dim(
        uniforms, window.iterations * count, count, axis=1
      )
    state, iteration = loop.step(inner, window.state, draws)
    info = iteration.info
    probs = window.probs
    if probs is not None:
      # The middle network's distributions of the drafted nodes and the next token.
      probs = write_rows(probs, iteration.target_probs, window.state.lengths - lengths)
    if self.window == "flush":
      # A correction is known together with the corrected token. The corrected token
      # counts, whatever the token is, and no later token counts.
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
    """Returns the tokens of a window as a proposal."""
    places = lengths[:, None] + jnp.arange(self.tree.size)
    tokens = jnp.take_along_axis(window.state.sequences, places, axis=1)
    tokens = jnp.where(window.lost[:, None], -1, tokens)
    probs = window.probs if window.probs is None else window.probs[:, : self.tree.size]
    return Proposal.chain(tokens, probs, window.state.lengths - lengths)

  def _lower_context(self, context) -> Context:
    """Returns the lower drafter's context, with the middle network as the target."""
    networks = context.networks
    rule, rule_sampling = rule_at(self.rule, context.sampling)
    policy = Fixed()
    if self.of_target:
      target = Net(self.network.extend(context), context.target.vocab_size)
    else:
      target = networks["draft"]
    return dataclasses.replace(
      context,
      drafter=self.drafter,
      rule=rule,
      rule_sampling=rule_sampling,
      policy=policy,
      max_length=self.tree.size,
      target=target,
      networks={name: networks[self._above(name)] for name in self.drafter.networks},
      widths=widths_of(self.drafter, policy),
      behind=context.behind + 1,
    )

  def _above(self, name: str) -> str:
    """Returns the name in this drafter of a network of the lower drafter."""
    return name if self.of_target else _below(name)


def _below(name: str) -> str:
  """Returns the name of a network, moved down by a level.

  >>> _below("draft"), _below("draft_2")
  ('draft_2', 'draft_3')
  """
  stem, _, number = name.rpartition("_")
  return f"{stem}_{int(number) + 1}" if stem and number.isdigit() else f"{name}_2"


def _reading_before(net: Net, sequences: Int[Array, "B S"], more: int) -> ExtendFn:
  """Returns `extend` that also reads `more` known tokens before each block."""

  def read(cache, block):
    index = cache.index
    size = block.shape[1]
    start = jnp.maximum(index - more, 0)
    window = start[:, None] + jnp.arange(more + size)
    text = write_rows(sequences, block, index)
    tokens = jnp.take_along_axis(text, window, axis=1)
    # If fewer than `more` tokens are known, the last slots hold garbage, which later
    # calls overwrite.
    first = index - start
    logits, features, cache = extend_from(net, cache.at(start), tokens, first, size)
    return logits, features, cache.at(index + size)

  return read
