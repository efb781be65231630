"""Drafting by nested speculation: a hierarchy of models of any depth.

Source: Globerson et al., arXiv 2510.19705 (M_0 drafts for M_1, .., for the target).
Windows that end at a correction are the paper's flush policy. Token verification tests
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
from jaxtyping import Array, Float, Int

from specdec_t5x.core.knobs import Knob, KnobError, knob
from specdec_t5x.core.rules import rule_at
from specdec_t5x.core.rules.token import Token
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.core.types import Cache, ExtendFn, Proposal, check_uniforms
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
from specdec_t5x.decoding.state import DecodeState, StepInfo, write_rows
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
  """

  network: Any
  drafter: Drafter
  gamma: int | None = gamma_knob()
  window: str = knob(
    "fixed",
    Knob("one of ('fixed', 'flush')", lambda value: value in ("fixed", "flush")),
    macro="WINDOW",
  )

  def __post_init__(self):
    super().__post_init__()
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
    # known tokens. A row has ended if the row's window has ended.
    inner = state.replace(
      starts=state.lengths - (self.tree.size - lengths),
      ended=state.ended | (lengths <= 0),
      iteration=jnp.zeros_like(state.iteration),
      statistics=StepInfo.zeros(lengths.size),
      target_cache=state.target_cache if self.of_target else drafter_state.cache,
      drafter_state=drafter_state.lower,
      policy_state=None,
    )
    # The distribution of each gathered token, garbage beyond; None if tokens are
    # certain.
    probs = None
    if not context.sampling.certain:
      size = self.tree.size + self.drafter.tree.size + 1
      probs = jnp.zeros((lengths.size, size, context.target.vocab_size))

    def iterate(window):
      inner, probs = window
      return self._after_iteration(context, inner, probs, uniforms, state.lengths)

    inner, probs = jax.lax.while_loop(
      lambda window: ~window[0].ended.all(), iterate, (inner, probs)
    )
    proposal = self._proposal(inner, probs, state.lengths)
    # A cheaper version of the target wrote to the target's cache. These entries are
    # dropped.
    cache = None if self.of_target else inner.target_cache
    calls = drafter_state.calls + inner.statistics.target_calls
    return proposal, CascadeState(cache, inner.drafter_state, calls)

  def _after_iteration(self, context, state, probs, uniforms, lengths):
    """Returns the state and `probs` after one iteration of the inner speculation."""
    inner = self._lower_context(context)
    if not self.of_target:
      # The root of a block is the last known token. The middle network's cache may lack
      # more tokens.
      extend = _reading_before(inner.target, state.sequences, context.behind - 1)
      target = dataclasses.replace(inner.target, extend=extend)
      inner = dataclasses.replace(inner, target=target)
    if context.sampling.coupled:
      draws = loop.draws(inner, state)
    else:
      count = decisions(self.drafter)
      first = state.iteration[0] * count
      draws = jax.lax.dynamic_slice_in_dim(uniforms, first, count, axis=1)
    after, iteration = loop.step(inner, state, draws)
    if probs is not None:
      # The middle network's distributions of the drafted nodes and the next token.
      probs = write_rows(probs, iteration.target_probs, state.lengths - lengths)
    if self.window == "flush":
      # A correction is known together with the corrected token. The corrected token
      # counts, whatever the token is, and no later token counts.
      corrected = iteration.verdict.last < iteration.proposal.num_valid
      after = after.replace(ended=after.ended | corrected)
    return after, probs

  def _proposal(self, state, probs, lengths) -> Proposal:
    """Returns a window as a proposal, with the tokens -1 if a distribution has NaN."""
    places = lengths[:, None] + jnp.arange(self.tree.size)
    tokens = jnp.take_along_axis(state.sequences, places, axis=1)
    counts = state.statistics
    is_lost = jnp.isnan(counts.acceptance_mass) | jnp.isnan(counts.log_prob)
    tokens = jnp.where(is_lost[:, None], -1, tokens)
    probs = None if probs is None else probs[:, : self.tree.size]
    return Proposal.chain(tokens, probs, state.lengths - lengths)

  def _lower_context(self, context) -> Context:
    """Returns the lower drafter's context, with the middle network as the target."""
    networks = context.networks
    rule, rule_sampling = rule_at(Token(), context.sampling)
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
    if self.of_target:
      return name
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
