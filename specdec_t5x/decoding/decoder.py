"""The decoder: networks, drafter, rule and policy put together, from inputs to outputs.

The T5X models and `specdec_t5x.generate` share the decoder. Parameters are a mapping:
"target", the names of the drafter's networks, and the names of derived arrays.

Shapes: B inputs, R rows (the outputs of all inputs), E input length.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import KnobError, invalid, is_whole
from specdec_t5x.core.rules import rule_at
from specdec_t5x.core.rules.token import Token
from specdec_t5x.core.types import EndTokens, ExtendFn, Rule
from specdec_t5x.decoding import batching
from specdec_t5x.decoding.contracts import (
  Context,
  Drafter,
  Keeper,
  Net,
  Policy,
  Stops,
  has_default_length,
  lengths_of,
)
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.decoding.state import Decoded, DecodeState, initial_state, num_slots
from specdec_t5x.native import distributions, platforms
from specdec_t5x.native.cuda import step as draft_step
from specdec_t5x.network import certified, functional
from specdec_t5x.network.functional import Network
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.network.inputs import without_padding

# The fixed width of blocks: on GPUs and TPUs a product of eight rows costs as much as a
# product of a single row.
FIXED_WIDTH = 8


@dataclasses.dataclass(frozen=True)
class Decoder:
  """A target that decodes, plainly or with the help of a draft.

  The outputs have the distribution that the rule guarantees, whatever the draft.

  Attributes:
    target: the network with the distribution of the outputs.
    drafter: proposes tokens; None is plain decoding, a token for each call.
    rule: accepts drafted tokens; in plain decoding a rule with equal outputs, which
      says whether draws are coupled.
    policy: decides how many tokens each row drafts next.
    slots: rows that decode at once, over a whole batch; 0 is all rows. A row that ends
      takes the next input.
    observer: records the iterations, for `contrib.online` to learn from.
    same_bits: whether blocks of the target have a fixed width, as in plain decoding
      with this setting; None leaves the choice to the platform and the batch size
      (`is_fixed`).
    block: tokens of a call in plain decoding; only the first token counts. GAMMA + 1 is
      the strict baseline: every call of the target has the shape of a call of
      speculation, and both compute the same arithmetic on the same numbers, as far as
      machine and compiler permit (docs/math.md, "The strict baseline").
  """

  target: Network
  drafter: Drafter | None = None
  rule: Rule = dataclasses.field(default_factory=Token)
  policy: Policy = dataclasses.field(default_factory=Fixed)
  slots: int = 0
  observer: Keeper | None = None
  same_bits: bool | None = None
  block: int = 1

  def __post_init__(self):
    if not is_whole(self.slots, 0):
      fix = "{slots} is the number of rows that decode at once; 0 is the whole batch."
      raise invalid("slots", "a whole number of at least 0", self.slots, fix)
    if not is_whole(self.block, 1) or (self.drafter and self.block > 1):
      fix = "1 is plain decoding, {gamma} + 1 the strict baseline of a speculative run."
      raise invalid("block", "a whole number of at least 1", self.block, fix)
    self._check_same_bits()
    if self.observer:
      self.observer.check(self.target)
    if self.drafter:
      self._check_drafter(self.drafter)

  def _check_same_bits(self) -> None:
    """Raises a ValueError if blocks can't all have `FIXED_WIDTH` tokens."""
    if self.same_bits not in (None, True, False):
      raise invalid("same_bits", "True, False or None", self.same_bits)
    if self.same_bits and not self._fits_fixed_width:
      shape = " as a tree" if self.drafter and not self.drafter.tree.is_chain else ""
      raise KnobError(
        "{same_bits}=True needs chains of at most {most} tokens, got {drafted} "
        "tokens{shape}: every call of the target scores {width} tokens. Lower {gamma}, "
        "or leave {same_bits} out.",
        most=FIXED_WIDTH - 1,
        drafted=self._drafted,
        shape=shape,
        width=FIXED_WIDTH,
      )

  def _check_drafter(self, drafter: Drafter) -> None:
    """Raises a ValueError if drafter, rule, policy and networks do not go together."""
    drafter.check(self.target)
    tree, name = drafter.tree, type(self.rule).__name__
    if not self.rule.takes_trees and not tree.is_chain:
      raise KnobError(
        "The rule {name} judges a single draft, got a {kind} that drafts a tree of "
        "{size} nodes. Use 'traversal', 'recursive' or 'kseq' ({num_candidates}=1 "
        "drafts a chain).",
        name=name,
        kind=type(drafter).__name__,
        size=tree.size,
      )
    if self.rule.needs_independent and not drafter.traits.independent:
      raise ValueError(
        f"The rule {name} needs independent drafts, got a {type(drafter).__name__} "
        "with tokens that are certain or drawn without replacement. Use 'traversal' or "
        "'recursive'."
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
  def _fits_fixed_width(self) -> bool:
    is_chain = self.drafter is None or self.drafter.tree.is_chain
    return is_chain and self._drafted < FIXED_WIDTH

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
    if self.same_bits is None:
      is_cheap = min(rows, self.slots or rows) == 1
      is_cheap = is_cheap and not platforms.wide_blocks_cost_more()
      return is_cheap and self._fits_fixed_width
    return self.same_bits

  def check(self, sampling: Sampling, max_length: int, num_decodes: int) -> None:
    """Raises a ValueError if these settings do not go together."""
    if self.observer:
      self.observer.check(self.target, num_decodes)
    certified.is_used(self.target.config, self._reads_argmaxes(sampling))
    if self.drafter is None or has_default_length(self.drafter):
      return
    if self.drafter.depth >= max_length:
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
    """Returns functions of a network's parameters that the decode needs.

    Args:
      sampling: the adjustment of all distributions.
      name: the name of the network.

    Raises:
      ValueError: if settings ask for arrays that can't be derived.
    """
    if name != "target":
      # The levels of a tree are blocks of several tokens: XLA scores them.
      is_chain = self.drafter.tree.is_chain
      return draft_step.derived(name, self.networks[name]) if is_chain else {}
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
    if is_wanted is None:
      is_wanted = jnp.ones(len(inputs), bool)
    request = batching.Request(inputs, keys, is_wanted, policy_state)

    def run(request, ctx, state, queue=None):
      rows = state.lengths.shape[0]
      before = jax.tree.map(lambda x: x[:rows], request.policy_state)
      state = state.replace(policy_state=self.policy.start(rows, before))
      return generate(ctx, state, queue=queue, observe=self.observer)

    def decode_part(request, slots):
      count = -(-slots // request.per_input) * request.per_input
      ctx = self.context(params, count, sampling, max_length, eos_id)
      encode = functools.partial(self.encode, ctx)
      return run(request, ctx, *batching.queued(encode, request, slots, max_length))

    if 0 < self.slots < keys.shape[0]:
      return batching.by_shard(decode_part, request, self.slots)
    ctx = self.context(params, keys.shape[0], sampling, max_length, eos_id)
    state = self.encode(ctx, inputs, keys)
    is_filler = ~jnp.repeat(is_wanted, request.per_input)
    return run(request, ctx, state.replace(ended=state.ended | is_filler))

  def context(
    self,
    params: Mapping[str, Any],
    rows: int,
    sampling: Sampling,
    max_length: int,
    eos_id: EndTokens,
  ) -> Context:
    """Returns how to decode; arguments as for `decode`, and the number of rows."""
    rule, drawn, rule_sampling = self.at(sampling)
    networks = self.drafter.networks if self.drafter else {}
    is_fixed = self.is_fixed(rows)
    return Context(
      drafter=self.drafter,
      rule=rule,
      rule_sampling=rule_sampling,
      policy=self.policy if self.drafter else Fixed(),
      sampling=drawn,
      adjust=distributions.adjusted_probs,
      max_length=max_length,
      eos_id=eos_id,
      target=self._target_net(
        params, sampling, FIXED_WIDTH if is_fixed else self.block
      ),
      networks={name: self._net(name, params) for name in networks},
      widths=() if is_fixed else widths_of(self.drafter, self.policy),
    )

  def encode(
    self,
    ctx: Context,
    inputs: Int[Array, "B E"],
    keys: Key[Array, "R"],
    has_room: bool = True,
  ) -> DecodeState:
    """Returns the first state of the outputs of inputs, each encoded once.

    Args:
      ctx: how to decode.
      inputs: as for `decode`.
      keys: as for `decode`.
      has_room: whether caches have slots for outputs. A cache that is copied into
        another needs none (`decoding.batching`).
    """
    rows, networks = keys.shape[0], self.drafter.networks if self.drafter else {}
    overrun = FIXED_WIDTH - 1 if self.is_fixed(rows) else self._drafted
    prompts = functional.prompts_of(inputs, self.target)
    start = functools.partial(
      functional.start_decoding,
      inputs=inputs,
      num_slots=num_slots(ctx.max_length, overrun) if has_room else 0,
      num_decodes=rows // inputs.shape[0],
      prompts=prompts,
    )
    # Networks without an encoder read the target's, so inputs are encoded once.
    readers = [name for name, x in networks.items() if functional.lacks_encoder(x)]
    _, target_cache, *caches = start(
      self.target,
      ctx.target.params,
      readers=[(networks[name], ctx.networks[name].params) for name in readers],
    )
    caches = dict(zip(readers, caches, strict=True))
    for name, network in networks.items():
      if isinstance(network, FeatureDrafter):
        continue  # Heads read no input, and their drafters make the caches.
      if name not in caches:
        _, caches[name] = start(network, ctx.networks[name].params)
      if ctx.networks[name].derived:
        caches[name] = draft_step.with_scratch(network, caches[name], has_room)
    drafter_state = None
    if self.drafter:
      # Prompts are in the sequences.
      is_prompt = functional.is_decoder_only(self.target)
      source = without_padding(inputs[:, :0] if is_prompt else inputs)
      source = jnp.repeat(source, rows // inputs.shape[0], axis=0)
      drafter_state = self.drafter.start(ctx, caches, source)
    return initial_state(
      target_cache,
      drafter_state,
      keys,
      ctx.max_length,
      self._drafted,
      prompts,
      policy_state=self.policy.start(rows),
      observed=self.observer and self.observer.start(rows, ctx.max_length),
    )

  def _target_net(
    self, params: Mapping[str, Any], sampling: Sampling, width: int
  ) -> Net:
    """Returns the target as functions, in blocks of at least `width` tokens."""
    network, own = self.target, params["target"]
    scored = own
    if certified.NAME in params and self._reads_argmaxes(sampling):
      scored = certified.within(own, params[certified.NAME])
    taps = self.drafter.traits.taps if self.drafter else 1
    extend = functional.extend_fn(network, scored, taps=taps)
    names = {*self.networks, *map(draft_step.name_of, self.networks)}
    return Net(
      in_blocks_of(width, extend) if width > 1 else extend,
      network.config.vocab_size,
      own,
      {name: x for name, x in params.items() if name not in names},
      logits=functional.logits_fn(network, own),
      embed=functional.embed_fn(network, own),
      without=functional.without_fn(network, own),
    )

  def _net(self, name: str, params: Mapping[str, Any]) -> Net:
    """Returns a network of the drafter as functions, over the target's tokens."""
    network, own = self.networks[name], params[name]
    vocab_size = self.target.config.vocab_size
    extend = functional.extend_fn(network, own)
    step = draft_step.name_of(name)
    derived = {step: params[step]} if step in params else {}
    if derived:
      extend = draft_step.extend_fn(network, params[step], extend)
    extend = functional.resized_extend_fn(network, extend, vocab_size)
    return Net(extend, vocab_size, own, derived)


def in_blocks_of(width: int, extend: ExtendFn) -> ExtendFn:
  """Returns `extend` that computes blocks of at least `width` tokens, by fillers.

  Fillers follow the tokens. The cache needs room for the fillers; the next block
  overwrites their entries.
  """

  def extend_wide(cache, tokens):
    count = tokens.shape[1]
    surplus = max(width - count, 0)
    logits, features, cache = extend(cache, jnp.pad(tokens, ((0, 0), (0, surplus))))
    # Behind a barrier, or the compiler may drop the fillers' rows from the products.
    logits, features = jax.lax.optimization_barrier((logits, features))
    # Entries of fillers do not count.
    cache = cache.at(cache.index - surplus)
    return logits[:, :count], features[:, :count], cache

  return extend_wide


def widths_of(drafter: Drafter | None, policy: Policy) -> tuple[int, ...]:
  """Returns the widths of the target's blocks; empty if no draft ends early."""
  if drafter is None or not drafter.tree.is_chain:
    return ()
  # A policy that may rest does so when no row drafts: a width of 1 is not needed.
  if policy.may_rest:
    return block_widths(drafter.tree.size, 2)
  ends_early = drafter.traits.stops is Stops.BY_ITSELF
  return block_widths(drafter.tree.size) if ends_early else ()


def block_widths(gamma: int, least: int = 1) -> tuple[int, ...]:
  """Returns the possible widths of blocks, none below `least`.

  On CPUs a call of the target costs more the wider its block is. Shapes are static, so
  there are a few widths to choose from, each with a copy of the network in the program:
  the powers of two up to gamma, and gamma + 1; on other devices 1 and gamma + 1.
  """
  exponents = range(gamma + 1) if platforms.wide_blocks_cost_more() else range(1)
  powers = [2**i for i in exponents if least <= 2**i < gamma + 1]
  return (*powers, gamma + 1)
