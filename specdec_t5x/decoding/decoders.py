"""Decoders: networks, drafter, rule and loop put together, from inputs to outputs.

What the T5X models and `specdec_t5x.generate` share. Parameters are {target, **the
drafter's networks by their names, and what is derived of all of these}.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.ends import EndTokens
from specdec_t5x.core.greedy import rule_at
from specdec_t5x.core.token import Token
from specdec_t5x.core.types import Cache, ExtendFn, Guarantee, Rule
from specdec_t5x.decoding import baseline, batching, generate, state, widths
from specdec_t5x.decoding.context import Context, Loaded, Target
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.generate import Keeper
from specdec_t5x.decoding.policy import Fixed, Policy
from specdec_t5x.decoding.state import Decoded, DecodeState
from specdec_t5x.decoding.step import Speculation
from specdec_t5x.native import distributions
from specdec_t5x.network import certified, draft_step, functional
from specdec_t5x.network.functional import Network, start_decoding
from specdec_t5x.network.inputs import without_padding


class Decoder(Protocol):
  """A way to decode: a frozen dataclass of networks and settings.

  Attributes:
    target: the network whose distribution, or whose hypotheses, the outputs have.
    networks: all that have parameters, by name, the target first.
    guarantee: what it promises about the outputs.
    alpha_is_mass: whether sum min(p, q) over the tried tokens estimates alpha.
  """

  target: Network
  networks: Mapping[str, Network]
  guarantee: Guarantee
  alpha_is_mass: bool

  def check(self, sampling: Sampling, max_length: int, num_decodes: int) -> None:
    """Raises a ValueError where these settings do not go with this decoder."""

  def decode(
    self,
    params: Mapping[str, Any],
    inputs: Int[Array, "B E"],
    keys: Key[Array, "R"],
    sampling: Sampling,
    max_length: int,
    eos_id: EndTokens,
    is_wanted: Bool[Array, "B"] | None = None,
  ) -> Decoded:
    """Decodes R / B outputs an input.

    Args:
      params: of each network, by its name.
      inputs: encoder tokens, or the prompts of decoder-only networks; zero-padded.
      keys: one a row; the rows of one input stand next to each other.
      sampling: the adjustment of all distributions.
      max_length: the most tokens of an output.
      eos_id: the token that ends a sequence, or all such tokens.
      is_wanted: which inputs' outputs are of use; None is all.
    """


@dataclasses.dataclass(frozen=True)
class Beginning:
  """What networks read before the first iteration; see `functional.start_decoding`.

  Attributes:
    inputs: what encoders read, or prompts, padded.
    num_slots: cache slots of a row, besides those of its prompt.
    num_decodes: rows an input.
    prompts: what stands before the outputs, padded.
  """

  inputs: Int[Array, "B E"]
  num_slots: int
  num_decodes: int
  prompts: Int[Array, "B P"]

  def decoding(self, network: Network, params: Any, **readers: Any) -> tuple[Any, ...]:
    """Returns a network as an `ExtendFn`, and its first cache; see `start_decoding`."""
    return start_decoding(
      network,
      params,
      self.inputs,
      self.num_slots,
      self.num_decodes,
      self.prompts,
      **readers,
    )


@dataclasses.dataclass(frozen=True)
class SpeculativeDecoder:
  """A target that decodes with the help of a draft; a `Decoder`.

  The output has the distribution that the rule guarantees, whatever the draft.

  Attributes:
    target: the network whose distribution is kept.
    drafter: how tokens are drafted.
    rule: which of them stand.
    policy: how many each row drafts next.
    slots: rows that decode at once, of all of a batch; 0 is all. A row that ends takes
      the next input.
    observer: keeps something of the iterations, which is handed out (`training.online`
      learns from it).
    same_bits: whether all calls of the target score blocks of one width, as plain
      decoding's do with the same setting; None leaves it to platform and batch
      (`decoding.widths.is_fixed`).
  """

  target: Network
  drafter: Drafter
  rule: Rule = dataclasses.field(default_factory=Token)
  policy: Policy = dataclasses.field(default_factory=Fixed)
  slots: int = 0
  observer: Keeper | None = None
  same_bits: bool | None = None

  def __post_init__(self):
    check_slots(self.slots)
    tree = self.drafter.tree
    widths.check_same_bits(self.same_bits, tree.size, tree.is_chain)
    if self.observer:
      self.observer.check(self.target)
    self.drafter.check(self.target)
    name = type(self.rule).__name__
    if not self.rule.takes_trees and not tree.is_chain:
      raise ValueError(
        f"The rule {name} judges a single draft, got a {type(self.drafter).__name__} "
        f"that drafts a tree of {tree.size} nodes. Use 'traversal', 'recursive' or "
        "'kseq' (NUM_CANDIDATES=1 drafts a chain)."
      )
    if self.rule.needs_independent and not self.drafter.independent:
      raise ValueError(
        f"The rule {name} needs independent drafts, got a "
        f"{type(self.drafter).__name__}, whose tokens are certain or drawn without "
        "replacement. Use 'traversal' or 'recursive'."
      )
    self.policy.check(self.drafter.lengths)
    for network in self.drafter.networks.values():
      functional.check_same_kind(self.target, network)

  @property
  def networks(self) -> Mapping[str, Network]:
    """All networks, by name."""
    return {"target": self.target, **self.drafter.networks}

  @property
  def guarantee(self) -> Guarantee:
    """What the rule promises about the outputs' distribution."""
    return self.rule.guarantee

  @property
  def alpha_is_mass(self) -> bool:
    """Whether a tried token is accepted with probability sum min(p, q)."""
    return self.rule.alpha_is_mass

  def check(self, sampling: Sampling, max_length: int, num_decodes: int) -> None:
    """Raises a ValueError where these settings do not go together."""
    if self.observer:
      self.observer.check(self.target, num_decodes)
    certified.is_used(self.target.config, self.reads_argmaxes(sampling))
    depth = self.drafter.depth
    if depth >= max_length:
      raise ValueError(
        f"GAMMA={depth} is too long a draft for outputs of {max_length} tokens: at "
        f"most {max_length - 1} drafted tokens can count, since each call of the "
        "target adds one of its own. Lower GAMMA, or let outputs be longer "
        "(TASK_FEATURE_LENGTHS)."
      )

  def drawn(self, sampling: Sampling) -> Sampling:
    """Returns how tokens are drawn: coupled where `sampling` or the rule says so."""
    read = rule_at(self.rule, sampling)[1]
    return read if read.coupled else sampling

  def reads_argmaxes(self, sampling: Sampling) -> bool:
    """Returns whether of the target's logits nothing but the largest is read."""
    return not (rule_at(self.rule, sampling)[0].reads_probs or self.observer)

  def first_policy_state(self, rows: int) -> Any:
    """Returns what the policy knows before a first batch, a row each, if anything."""
    return self.policy.start(rows)

  def decode(
    self,
    params,
    inputs,
    keys,
    sampling,
    max_length,
    eos_id,
    is_wanted=None,
    *,
    policy_state: Any = None,
  ) -> Decoded:
    """Decodes with speculation; see `Decoder`.

    With the `policy_state` that the batch before ended with, drafts begin as its drafts
    left off.
    """
    if not self.policy.pays(self.drafter.lengths):
      # Plain decoding's own program: it costs what plain decoding costs.
      plain = PlainDecoder(self.target, slots=self.slots, same_bits=self.same_bits)
      decoded = plain.decode(
        params, inputs, keys, self.drawn(sampling), max_length, eos_id, is_wanted
      )
      observed = self._nothing_observed(keys.shape[0], max_length)
      return decoded.replace(observed=observed, policy_state=policy_state)

    def prepare(inputs, keys, has_room=True):
      return self.prepare(params, inputs, keys, sampling, max_length, eos_id, has_room)

    def run(spec, start, queue=None):
      known = queue.policy_state if queue else policy_state
      start = start.replace(policy_state=self._carried_over(known, start))
      return generate.generate(spec, start, queue=queue, observe=self.observer)

    request = _request(inputs, keys, is_wanted, policy_state)
    return _decode(prepare, run, request, self.slots, max_length)

  def _carried_over(self, known: Any, start: DecodeState) -> Any:
    """Returns the policy's first state, given its state before, if there was one."""
    rows = start.lengths.shape[0]
    fresh = self.policy.start(rows)
    if known is None:
      return fresh
    return self.policy.refilled(fresh, jax.tree.map(lambda x: x[:rows], known))

  def is_fixed(self, rows: int) -> bool:
    """Returns whether all blocks of the target have one width in such a batch."""
    rows = min(rows, self.slots or rows)
    tree = self.drafter.tree
    return widths.is_fixed(self.same_bits, rows, tree.size, tree.is_chain)

  def _extend_fn(self, name: str, params: Mapping[str, Any]) -> ExtendFn:
    """Returns a network of the drafter's, over the tokens that the drafter asks for."""
    network = self.networks[name]
    extend = functional.extend_fn(network, params[name])
    if (weights := params.get(draft_step.name_of(name))) is not None:
      extend = draft_step.extend_fn(network, weights, extend)
    if self.drafter.has_own_tokens:
      return extend
    vocab_size = self.target.config.vocab_size
    return functional.resized_extend_fn(network, extend, vocab_size)

  def prepare(
    self, params, inputs, keys, sampling, max_length, eos_id, has_room=True
  ) -> tuple[Speculation, DecodeState]:
    """Returns what the loop needs: how to step and where to start; as for `decode`.

    Caches that are to be copied into others need no room for outputs.
    """
    rows, drafter = keys.shape[0], self.drafter
    sampling = self.drawn(sampling)
    overrun = widths.FIXED_WIDTH - 1 if self.is_fixed(rows) else drafter.tree.size
    prompts = functional.prompts_of(inputs, self.target)
    beginning = Beginning(
      inputs,
      num_slots=state.num_slots(max_length, overrun) if has_room else 0,
      num_decodes=rows // inputs.shape[0],
      prompts=prompts,
    )
    target_cache, first_caches = self._first_caches(params, beginning, has_room)
    context = Context(
      sampling=sampling,
      adjust=distributions.adjusted_probs,
      max_length=max_length,
      eos_id=eos_id,
      target=self._loaded_target(params, sampling, rows),
      networks={
        name: Loaded(self._extend_fn(name, params), start, params[name])
        for name, start in first_caches.items()
      },
      source=self._source(inputs, beginning.num_decodes),
      policy=self.policy,
    )
    rule, read_as = rule_at(self.rule, sampling)
    first_state = state.initial_state(
      target_cache,
      drafter.start(context),
      keys,
      max_length,
      drafter.tree.size,
      prompts,
      policy_state=self.policy.start(rows),
      observed=self._nothing_observed(rows, max_length),
    )
    return Speculation(drafter, rule, read_as, context), first_state

  def _first_caches(
    self, params: Mapping[str, Any], beginning: Beginning, has_room: bool
  ) -> tuple[Cache, dict[str, Callable[..., Cache]]]:
    """Returns the target's first cache, and what makes those of the drafter's networks.

    What lacks an encoder reads the target's, so inputs are encoded once.
    """
    networks = self.drafter.networks
    readers = [
      name for name, each in networks.items() if functional.lacks_encoder(each)
    ]
    _, target_cache, *read = beginning.decoding(
      self.target,
      params["target"],
      readers=[(networks[name], params[name]) for name in readers],
    )
    caches = dict(zip(readers, read, strict=True))

    def first_cache(name, change=lambda beginning: beginning):
      cache = caches.get(name)
      if cache is None:
        _, cache = change(beginning).decoding(networks[name], params[name])
      if draft_step.name_of(name) in params:
        cache = draft_step.with_scratch(networks[name], cache, has_room)
      return cache

    starts = {name: functools.partial(first_cache, name) for name in networks}
    return target_cache, starts

  def _loaded_target(
    self, params: Mapping[str, Any], sampling: Sampling, rows: int
  ) -> Target:
    """Returns the target as functions, with what is derived of its parameters."""
    network, own = self.target, params["target"]
    extend, is_fixed = _reading(self, params, sampling), self.is_fixed(rows)
    others = {*self.networks, *map(draft_step.name_of, self.drafter.networks)}
    return Target(
      extend=widths.of_fixed_width(extend) if is_fixed else extend,
      vocab_size=network.config.vocab_size,
      logits=functional.logits_fn(network, own),
      embed=functional.embed_fn(network, own),
      without=functional.without_fn(network, own),
      derived={name: x for name, x in params.items() if name not in others},
      is_fixed=is_fixed,
    )

  def _source(self, inputs: Int[Array, "B E"], num_decodes: int) -> Int[Array, "R _"]:
    """Returns what an encoder reads, a row each; prompts are in the sequences."""
    is_prompt = functional.is_decoder_only(self.target)
    source = without_padding(inputs[:, :0] if is_prompt else inputs)
    return jnp.repeat(source, num_decodes, axis=0)

  def _nothing_observed(self, rows, max_length) -> Any:
    return self.observer and self.observer.start(rows, max_length)


@dataclasses.dataclass(frozen=True)
class PlainDecoder:
  """A target that decodes one token a call: the baseline; a `Decoder`.

  Attributes:
    target: the network.
    block: tokens that a call scores, of which the first counts: N for the strict
      baseline of a speculation that scores N (`decoding.baseline`).
    slots: as for `SpeculativeDecoder`.
    same_bits: likewise.
  """

  target: Network
  block: int = 1
  slots: int = 0
  same_bits: bool | None = None

  guarantee = Guarantee.EXACT
  alpha_is_mass = False

  def __post_init__(self):
    check_slots(self.slots)
    if not is_whole(self.block, 1):
      raise ValueError(
        f"BLOCK must be a whole number of at least 1, got {self.block!r}. 1 is plain "
        "decoding, GAMMA + 1 the strict baseline of a speculative run."
      )
    widths.check_same_bits(self.same_bits, self.block - 1, is_chain=True)

  def is_fixed(self, rows: int) -> bool:
    """As `SpeculativeDecoder.is_fixed`."""
    rows = min(rows, self.slots or rows)
    return widths.is_fixed(self.same_bits, rows, self.block - 1)

  @property
  def networks(self) -> Mapping[str, Network]:
    """The target alone, by its name."""
    return {"target": self.target}

  def check(self, sampling: Sampling, max_length: int, num_decodes: int) -> None:
    """Raises a ValueError where the head can't be what was asked for."""
    del max_length, num_decodes
    certified.is_used(self.target.config, self.reads_argmaxes(sampling))

  def reads_argmaxes(self, sampling: Sampling) -> bool:
    """As `SpeculativeDecoder.reads_argmaxes`."""
    return sampling.greedy

  def decode(
    self, params, inputs, keys, sampling, max_length, eos_id, is_wanted=None
  ) -> Decoded:
    """Decodes one token a call; see `Decoder`."""
    extend = _reading(self, params, sampling)
    if self.is_fixed(keys.shape[0]):
      extend = widths.of_fixed_width(extend)

    def prepare(inputs, keys, has_room=True):
      return self.prepare(params, inputs, keys, max_length, has_room)

    def run(_, start, queue=None):
      return baseline.generate_plain(
        extend,
        sampling,
        start,
        max_length,
        eos_id,
        distributions.adjusted_probs,
        self.block,
        queue=queue,
      )

    request = _request(inputs, keys, is_wanted)
    return _decode(prepare, run, request, self.slots, max_length)

  def prepare(
    self, params, inputs, keys, max_length, has_room=True
  ) -> tuple[ExtendFn, DecodeState]:
    """Returns what the plain loop needs; as `SpeculativeDecoder.prepare`."""
    # A block overruns the output as a draft of block - 1 tokens does.
    over = self.block - 1
    wide = widths.FIXED_WIDTH - 1 if self.is_fixed(keys.shape[0]) else over
    prompts = functional.prompts_of(inputs, self.target)
    beginning = Beginning(
      inputs,
      num_slots=state.num_slots(max_length, wide) if has_room else 0,
      num_decodes=keys.shape[0] // inputs.shape[0],
      prompts=prompts,
    )
    extend, cache = beginning.decoding(self.target, params["target"])
    return extend, state.initial_state(cache, None, keys, max_length, over, prompts)


def derived_of(
  decoder: Any, sampling: Sampling, name: str = "target"
) -> dict[str, Callable[[Any], Any]]:
  """Returns what a decode makes of a network's parameters beforehand, if anything.

  Args:
    decoder: what decodes.
    sampling: the adjustment of all distributions.
    name: the network's, among the decoder's.

  Raises:
    ValueError: if settings ask for something that can't be made of them.
  """
  if name != "target":
    # A tree's levels are blocks of several tokens, which XLA scores.
    is_chain = isinstance(decoder, SpeculativeDecoder) and decoder.drafter.tree.is_chain
    return draft_step.derived(name, decoder.networks[name]) if is_chain else {}
  target = decoder.target
  reads = getattr(decoder, "reads_argmaxes", lambda sampling: False)
  found = {}
  if isinstance(decoder, SpeculativeDecoder):
    found |= decoder.drafter.derived(target)
  if certified.is_used(target.config, reads(sampling)):
    found[certified.NAME] = certified.screen
  return found


def _reading(decoder, params, sampling) -> ExtendFn:
  """Returns the target's `extend`, of what is read of logits and features."""
  own, taps = params["target"], getattr(decoder, "drafter", Drafter).taps
  if certified.NAME in params and decoder.reads_argmaxes(sampling):
    own = certified.within(own, params[certified.NAME])
  return functional.extend_fn(decoder.target, own, taps=taps)


def check_slots(slots: Any) -> None:
  """Raises a ValueError where `slots` is no number of rows."""
  if not is_whole(slots, 0):
    raise ValueError(
      f"SLOTS must be a whole number of at least 0, got {slots!r}. It is how many rows "
      "of a batch decode at once; 0 is all."
    )


def _request(inputs, keys, is_wanted, policy_state=None) -> batching.Request:
  is_wanted = jnp.ones(len(inputs), bool) if is_wanted is None else is_wanted
  return batching.Request(inputs, keys, is_wanted, policy_state)


def _decode(prepare, run, request, slots, max_length) -> Decoded:
  """Decodes all that is requested, `slots` rows at once; 0 is all."""
  if not slots or slots >= request.keys.shape[0]:
    return run(*prepare(request.inputs, request.keys))
  return batching.decode(prepare, run, request, slots, max_length)
