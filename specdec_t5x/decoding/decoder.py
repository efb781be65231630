"""The decoder: networks, drafter, rule and policy put together, from inputs to outputs.

Parameters are a mapping: "target", the names of the drafter's networks, and the names
of derived arrays.

Shapes: B inputs, R rows (the outputs of all inputs), E input length.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import KnobError, invalid
from specdec_t5x.core.rules import rule_at
from specdec_t5x.core.rules.token import Token
from specdec_t5x.core.types import EndTokens, Rule
from specdec_t5x.decoding import batching
from specdec_t5x.decoding.contracts import (
  Context,
  Drafter,
  Observer,
  Policy,
  Stops,
  lengths_of,
)
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.decoding.state import Decoded, DecodeState, initial_state, num_slots
from specdec_t5x.native import distributions, platforms
from specdec_t5x.native.cuda import step as draft_step
from specdec_t5x.network import certified, functional
from specdec_t5x.network.functional import Network
from specdec_t5x.network.inputs import without_padding
from specdec_t5x.network.net import block_widths, first_caches, nets_of

# On GPUs and TPUs a product of eight rows costs as much as a product of a single row.
FIXED_WIDTH = 8


@dataclasses.dataclass(frozen=True)
class Decoder:
  """A target that decodes, plainly or with the help of a draft.

  Attributes:
    target: the network with the distribution of the outputs.
    drafter: proposes tokens; None is plain decoding, a token for each call.
    rule: accepts drafted tokens; in plain decoding a rule with equal outputs, which
      says whether draws are coupled.
    policy: decides how many tokens each row drafts next.
    slots: rows that decode at once; 0 is all rows. A row that ends takes the next
      input.
    observer: records the iterations, for `contrib.online` to learn from.
    same_bits: whether every block of the target has `FIXED_WIDTH` tokens, as in plain
      decoding with this setting; None is the default of `is_fixed`.
    block: tokens of a call in plain decoding; only the first token counts. GAMMA + 1 is
      the strict baseline (docs/math.md).
  """

  target: Network
  drafter: Drafter | None = None
  rule: Rule = dataclasses.field(default_factory=Token)
  policy: Policy = dataclasses.field(default_factory=Fixed)
  slots: int = 0
  observer: Observer | None = None
  same_bits: bool | None = None
  block: int = 1

  def __post_init__(self):
    if self.same_bits not in (None, True, False):
      raise invalid("same_bits", "True, False or None", self.same_bits)
    if self.same_bits and not self._fits_fixed_width:
      raise KnobError(
        "{same_bits}=True needs chains of at most {most} tokens, got {drafted} "
        "tokens{shape}: every call of the target scores {width} tokens. Lower {gamma}, "
        "or leave {same_bits} out.",
        most=FIXED_WIDTH - 1,
        drafted=self._drafted,
        shape="" if self._is_chain else " as a tree",
        width=FIXED_WIDTH,
      )
    if (drafter := self.drafter) is None:
      return
    drafter.check(self.target)
    kind, rule = type(drafter).__name__, type(self.rule).__name__
    if not self.rule.takes_trees and not self._is_chain:
      raise KnobError(
        "The rule {rule_kind} judges a single draft, got a {kind} that drafts a tree "
        "of {size} nodes. Use 'traversal', 'recursive' or 'kseq' ({num_candidates}=1 "
        "drafts a chain).",
        rule_kind=rule,
        kind=kind,
        size=drafter.tree.size,
      )
    if self.rule.needs_independent and not drafter.traits.independent:
      raise ValueError(
        f"The rule {rule} needs independent drafts, got a {kind} with tokens that are "
        "certain or drawn without replacement. Use 'traversal' or 'recursive'."
      )
    if isinstance(self.policy, CostAware):
      self.policy.check(lengths_of(drafter))
    for network in drafter.networks.values():
      functional.check_same_kind(self.target, network)

  @property
  def networks(self) -> Mapping[str, Network]:
    """All networks with parameters, by name, the target first."""
    return {"target": self.target, **(self.drafter.networks if self.drafter else {})}

  @property
  def _drafted(self) -> int:
    """Tokens of a block beside the last known token."""
    return self.drafter.tree.size if self.drafter else self.block - 1

  @property
  def _is_chain(self) -> bool:
    return self.drafter is None or self.drafter.tree.is_chain

  @property
  def _fits_fixed_width(self) -> bool:
    return self._is_chain and self._drafted < FIXED_WIDTH

  def at(self, sampling: Sampling) -> tuple[Rule, Sampling, Sampling]:
    """Returns the rule, how tokens are drawn, and the adjustment of p for the rule."""
    rule, rule_sampling = rule_at(self.rule, sampling)
    return rule, rule_sampling if rule_sampling.coupled else sampling, rule_sampling

  def _reads_argmaxes(self, sampling: Sampling) -> bool:
    """Returns whether only the argmax of the target's logits is used."""
    return self.at(sampling)[0].reads == "argmax" and not self.observer

  def is_fixed(self, rows: int) -> bool:
    """Returns whether every call of the target scores `FIXED_WIDTH` tokens.

    Plain and speculative decoding then compute equal bits. The default is True for one
    row at once on GPUs and TPUs.
    """
    if self.same_bits is not None:
      return self.same_bits
    is_one = self.rows_at_once(rows) == 1
    return is_one and self._fits_fixed_width and not platforms.wide_blocks_cost_more()

  def check(self, sampling: Sampling, max_length: int, num_decodes: int) -> None:
    """Raises a ValueError if these settings do not go together."""
    if self.observer:
      self.observer.check(self.target, num_decodes)
    self.derive(sampling)  # Arrays that can't be derived are refused here, too.
    # Without a chosen length, only as many tokens are drafted as can count.
    chosen = getattr(self.drafter, "gamma", getattr(self.drafter, "shape", 0))
    if self.drafter and chosen is not None and self.drafter.depth >= max_length:
      raise KnobError(
        "{gamma}={depth} is too long a draft for outputs of {room} tokens: at most "
        "{most} drafted tokens can count, because every call of the target adds a "
        "token. Lower {gamma}, or allow longer outputs ({max_length}).",
        depth=self.drafter.depth,
        room=max_length,
        most=max_length - 1,
      )

  def derive(
    self, sampling: Sampling, name: str = "target"
  ) -> dict[str, Callable[[Any], Any]]:
    """Returns functions of a named network's parameters that the decode needs."""
    if name != "target":
      # The levels of a tree are blocks of several tokens: XLA scores them.
      return draft_step.derived(name, self.networks[name]) if self._is_chain else {}
    made = dict(self.drafter.derive(self.target)) if self.drafter else {}
    if certified.is_used(self.target.config, self._reads_argmaxes(sampling)):
      made[certified.NAME] = certified.screen
    return made

  def decode(
    self,
    params: Mapping[str, Any],
    inputs: Int[Array, "B E"],
    keys: Key[Array, "R"],
    sampling: Sampling,
    max_length: int,
    eos_id: EndTokens,
    is_wanted: Bool[Array, "B"] | None = None,
    *,
    policy_state: Any = None,
  ) -> Decoded:
    """Decodes R / B outputs for each input.

    Args:
      params: the networks' parameters, by name.
      inputs: encoder tokens, or the prompts of decoder-only networks; zero-padded.
      keys: random keys of the rows; the rows of an input are neighbours.
      sampling: the adjustment of all distributions.
      max_length: the most tokens of an output.
      eos_id: the EOS token, or several.
      is_wanted: marks the inputs to decode; by default every input.
      policy_state: the policy's state at the end of the batch before, to go on from.
    """
    rows = self.rows_at_once(keys.shape[0])
    ctx = self.context(params, rows, sampling, max_length, eos_id)
    state, queue = begin(self, ctx, inputs, keys, is_wanted, policy_state)
    return generate(ctx, state, queue=queue, observe=self.observer)

  def rows_at_once(self, outputs: int) -> int:
    """Returns the number of rows that decode so many outputs."""
    return min(outputs, self.slots or outputs)

  def context(
    self,
    params: Mapping[str, Any],
    rows: int,
    sampling: Sampling,
    max_length: int,
    eos_id: EndTokens,
  ) -> Context:
    """Returns how to decode a number of rows; the arguments are as for `decode`."""
    rule, drawn, rule_sampling = self.at(sampling)
    is_fixed = self.is_fixed(rows)
    overrun = FIXED_WIDTH - 1 if is_fixed else self._drafted
    nets = nets_of(
      self.networks,
      params,
      taps=self.drafter.traits.taps if self.drafter else 1,
      width=FIXED_WIDTH if is_fixed else self.block,
      reads_argmaxes=self._reads_argmaxes(sampling),
    )
    return Context(
      drafter=self.drafter,
      rule=rule,
      rule_sampling=rule_sampling,
      policy=self.policy if self.drafter else Fixed(),
      sampling=drawn,
      adjust=distributions.adjusted_probs,
      max_length=max_length,
      eos_id=eos_id,
      target=nets.pop("target"),
      networks=nets,
      widths=() if is_fixed else widths_of(self.drafter, self.policy),
      room=num_slots(max_length, overrun),
      encode=self._encode,
      stops_early=platforms.conditions_are_free(),
    )

  def _encode(
    self, ctx: Context, inputs: Int[Array, "B E"], keys: Key[Array, "R"]
  ) -> DecodeState:
    """See `Context.first_state`."""
    rows, per_input = keys.shape[0], keys.shape[0] // inputs.shape[0]
    # Inputs are prompts if there is no encoder.
    size = inputs.shape[1] if functional.is_decoder_only(self.target) else 0
    prompts, source = inputs[:, :size], inputs[:, size:]
    nets = {"target": ctx.target, **ctx.networks}
    networks = {name: (network, nets[name]) for name, network in self.networks.items()}
    caches = first_caches(networks, inputs, prompts, ctx.room, per_input)
    target_cache = caches.pop("target")
    drafter_state = None
    if self.drafter:
      source = jnp.repeat(without_padding(source), per_input, axis=0)
      drafter_state = self.drafter.start(ctx, caches, source)
    state = initial_state(
      target_cache, drafter_state, keys, ctx.max_length, self._drafted, prompts
    )
    observed = self.observer and self.observer.start(rows, ctx.max_length)
    return state.replace(policy_state=self.policy.start(rows), observed=observed)


def begin(
  decoder: Decoder,
  ctx: Context,
  inputs: Int[Array, "B E"],
  keys: Key[Array, "R"],
  is_wanted: Bool[Array, "B"] | None,
  policy_state: Any,
) -> tuple[DecodeState, batching.Queue | None]:
  """Returns the rows before the first turn, and the queue of further inputs."""
  outputs, per_input = keys.shape[0], keys.shape[0] // inputs.shape[0]
  rows = decoder.rows_at_once(outputs)
  if is_wanted is None:
    is_wanted = jnp.ones(len(inputs), bool)
  if rows == outputs:
    state, queue = ctx.first_state(inputs, keys), None
    is_filler = ~jnp.repeat(is_wanted, per_input)
    state = state.replace(ended=state.ended | is_filler)
  else:
    state = batching.blank(ctx, inputs, keys, rows)
    queue = batching.queue_of(ctx, inputs, keys, is_wanted, state)
  before = jax.tree.map(lambda x: x[:rows], policy_state)
  return state.replace(policy_state=decoder.policy.start(rows, before)), queue


def widths_of(drafter: Drafter | None, policy: Policy) -> tuple[int, ...]:
  """Returns the widths of the target's blocks; empty if no draft ends early."""
  if drafter is None or not drafter.tree.is_chain:
    return ()
  # A policy that may rest does so when no row drafts: a width of 1 is not needed.
  if policy.may_rest:
    return block_widths(drafter.tree.size, 2)
  ends_early = drafter.traits.stops is Stops.BY_ITSELF
  return block_widths(drafter.tree.size) if ends_early else ()
