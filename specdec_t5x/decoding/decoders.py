"""Decoders: networks, drafter, rule and loop put together, from inputs to outputs.

The T5X models and `specdec_t5x.generate` share the decoders. Parameters are a mapping:
"target", the names of the drafter's networks, and the names of derived arrays.

Shapes: B inputs, R rows (the outputs of all inputs), E input length, P prompt length.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import is_whole
from specdec_t5x.core.rules import rule_at
from specdec_t5x.core.rules.token import Token
from specdec_t5x.core.types import Cache, EndTokens, ExtendFn, Guarantee, Rule
from specdec_t5x.decoding import batching, widths
from specdec_t5x.decoding.baseline import Plain
from specdec_t5x.decoding.drafter import Context, Drafter, Loaded, Target
from specdec_t5x.decoding.generate import Observer, generate, generate_plain
from specdec_t5x.decoding.policy import Fixed, Policy
from specdec_t5x.decoding.state import Decoded, DecodeState, initial_state, num_slots
from specdec_t5x.decoding.step import Speculation
from specdec_t5x.native import distributions
from specdec_t5x.native.cuda import step as draft_step
from specdec_t5x.network import certified, functional
from specdec_t5x.network.functional import Network, start_decoding
from specdec_t5x.network.inputs import without_padding


@runtime_checkable
class Keeper(Observer, Protocol):
  """An observer that a decoder holds (`SpeculativeDecoder.observer`)."""

  def check(self, target: Any, num_decodes: int = 1) -> None:
    """Raises a ValueError if the observer can't watch such decodes."""

  def auxiliary(self, kept: Any, given: Mapping[str, Array]) -> dict[str, Array]:
    """Returns auxiliary values for T5X's models.

    Args:
      kept: the record of the outputs, by row.
      given: 'encoder_inputs' [B, E], and under T5X's `infer` the examples of the rows.
    """


@dataclasses.dataclass(frozen=True)
class _Beginning:
  """The inputs of networks before the first iteration.

  Attributes:
    inputs: encoder inputs, or prompts, padded.
    num_slots: cache slots of a row, besides the slots of the prompt.
    num_decodes: rows of an input.
    prompts: the tokens before the outputs, padded.
  """

  inputs: Int[Array, "B E"]
  num_slots: int
  num_decodes: int
  prompts: Int[Array, "B P"]


class Decoder(abc.ABC):
  """A way to decode: a frozen dataclass of networks and settings.

  Attributes:
    target: the network with the distribution of the outputs.
    guarantee: the promise about the outputs.
    alpha_is_mass: whether sum min(p, q) over the tried tokens estimates alpha.
    slots: rows that decode at once, over a whole batch; 0 is all rows. A row that ends
      takes the next input.
    drafter: proposes tokens; None in plain decoding.
    policy: decides draft lengths; None in plain decoding.
    observer: records iterations, or None.
  """

  target: Network
  guarantee: ClassVar[Guarantee]
  alpha_is_mass: ClassVar[bool] = False
  # Annotated attributes would be fields of the decoders.
  slots = 0
  drafter = None
  policy = None
  observer = None

  @property
  def networks(self) -> Mapping[str, Network]:
    """All networks with parameters, by name, the target first."""
    return {"target": self.target}

  def rows_at_once(self, rows: int) -> int:
    """Returns the number of rows of a batch that decode at once."""
    return min(rows, self.slots or rows)

  @abc.abstractmethod
  def check(self, sampling: Sampling, max_length: int, num_decodes: int) -> None:
    """Raises a ValueError if the decoder can't decode with these settings."""

  @abc.abstractmethod
  def reads_argmaxes(self, sampling: Sampling) -> bool:
    """Returns whether only the argmax of the target's logits is used."""

  def derived(
    self, sampling: Sampling, name: str = "target"
  ) -> dict[str, Callable[[Any], Any]]:
    """Returns functions of a network's parameters that the decode needs.

    Args:
      sampling: the adjustment of all distributions.
      name: the name of the network.

    Raises:
      ValueError: if settings ask for arrays that can't be derived.
    """
    reads_argmaxes = self.reads_argmaxes(sampling)
    if name == "target" and certified.is_used(self.target.config, reads_argmaxes):
      return {certified.NAME: certified.screen}
    return {}

  def first_policy_state(self, rows: int) -> Any:
    """Returns the policy's state before a first batch; None if there is no policy."""
    del rows

  @abc.abstractmethod
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


@dataclasses.dataclass(frozen=True)
class SpeculativeDecoder(Decoder):
  """A target that decodes with the help of a draft.

  The outputs have the distribution that the rule guarantees, whatever the draft.

  Attributes:
    target: the network with the distribution of the outputs.
    drafter: proposes tokens.
    rule: accepts drafted tokens.
    policy: decides how many tokens each row drafts next.
    slots: see `Decoder`.
    observer: records the iterations, for `contrib.online` to learn from.
    same_bits: whether blocks of the target have a fixed width, as in plain decoding
      with this setting; None leaves the choice to the platform and the batch size
      (`decoding.widths.is_fixed`).
  """

  target: Network
  drafter: Drafter = dataclasses.field()  # No default, unlike `Decoder.drafter`.
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
        f"{type(self.drafter).__name__} with tokens that are certain or drawn without "
        "replacement. Use 'traversal' or 'recursive'."
      )
    self.policy.check(self.drafter.lengths)
    for network in self.drafter.networks.values():
      functional.check_same_kind(self.target, network)

  @property
  def networks(self) -> Mapping[str, Network]:
    """The networks, by name."""
    return {"target": self.target, **self.drafter.networks}

  @property
  def guarantee(self) -> Guarantee:
    """The promise of the rule about the distribution of outputs."""
    return self.rule.guarantee

  @property
  def alpha_is_mass(self) -> bool:
    """Whether a tried token is accepted with probability sum min(p, q)."""
    return self.rule.alpha_is_mass

  def check(self, sampling: Sampling, max_length: int, num_decodes: int) -> None:
    """Raises a ValueError if these settings do not go together."""
    if self.observer:
      self.observer.check(self.target, num_decodes)
    certified.is_used(self.target.config, self.reads_argmaxes(sampling))
    depth = self.drafter.depth
    if depth >= max_length and not self.drafter.has_default_length:
      raise ValueError(
        f"GAMMA={depth} is too long a draft for outputs of {max_length} tokens: at "
        f"most {max_length - 1} drafted tokens can count, because every call of the "
        "target adds a token. Lower GAMMA, or allow longer outputs "
        "(TASK_FEATURE_LENGTHS)."
      )

  def drawn(self, sampling: Sampling) -> Sampling:
    """Returns how tokens are drawn: coupled if `sampling` or the rule says so."""
    _, rule_sampling = rule_at(self.rule, sampling)
    return rule_sampling if rule_sampling.coupled else sampling

  def reads_argmaxes(self, sampling: Sampling) -> bool:
    """Returns whether only the argmax of the target's logits is used."""
    rule, _ = rule_at(self.rule, sampling)
    return not (rule.reads_probs or self.observer)

  def derived(
    self, sampling: Sampling, name: str = "target"
  ) -> dict[str, Callable[[Any], Any]]:
    """Returns functions of a network's parameters; see `Decoder.derived`."""
    if name == "target":
      return {**self.drafter.derived(self.target), **super().derived(sampling)}
    if not self.drafter.tree.is_chain:
      return {}  # The levels of a tree are blocks of several tokens: XLA scores them.
    return draft_step.derived(name, self.networks[name])

  def first_policy_state(self, rows: int) -> Any:
    """Returns the policy's state before a first batch."""
    return self.policy.start(rows)

  def without_drafts(self) -> "PlainDecoder":
    """Returns a decoder without drafts, with equal outputs."""
    return PlainDecoder(self.target, 1, self.slots, self.same_bits, self.rule)

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
    """Decodes with speculation; see `Decoder`."""

    def prepare(inputs, keys, has_room=True):
      return self.prepare(params, inputs, keys, sampling, max_length, eos_id, has_room)

    def run(spec, start, queue=None):
      state_before = queue.policy_state if queue else policy_state
      start = start.replace(policy_state=self._policy_state(state_before, start))
      return generate(spec, start, queue=queue, observe=self.observer)

    request = batching.Request.of(inputs, keys, is_wanted, policy_state)
    return batching.decode(prepare, run, request, self.slots, max_length)

  def _policy_state(self, before: Any, start: DecodeState) -> Any:
    """Returns the policy's first state, given its state after the batch before."""
    rows = start.lengths.shape[0]
    fresh = self.policy.start(rows)
    if before is None:
      return fresh
    return self.policy.refill(fresh, jax.tree.map(lambda x: x[:rows], before))

  def is_fixed(self, rows: int) -> bool:
    """Returns whether blocks of the target have a fixed width."""
    tree, at_once = self.drafter.tree, self.rows_at_once(rows)
    return widths.is_fixed(self.same_bits, at_once, tree.size, tree.is_chain)

  def prepare(
    self, params, inputs, keys, sampling, max_length, eos_id, has_room=True
  ) -> tuple[Speculation, DecodeState]:
    """Returns how to decode and where to start; arguments as for `decode`.

    Caches that a queue copies into its rows need no slots for outputs (`has_room`).
    """
    rows, size = keys.shape[0], self.drafter.tree.size
    sampling = self.drawn(sampling)
    rule, rule_sampling = rule_at(self.rule, sampling)
    room = max_length if has_room else None
    overrun = widths.FIXED_WIDTH - 1 if self.is_fixed(rows) else size
    beginning = _beginning(self.target, inputs, rows, room, overrun)
    target_cache, networks = self._started(params, beginning, has_room)
    context = Context(
      sampling=sampling,
      adjust=distributions.adjusted_probs,
      max_length=max_length,
      eos_id=eos_id,
      target=self._target_functions(params, sampling, rows),
      networks=networks,
      source=self._source(beginning),
      policy=self.policy,
    )
    state = initial_state(
      target_cache,
      self.drafter.start(context),
      keys,
      max_length,
      size,
      beginning.prompts,
      policy_state=self.policy.start(rows),
      observed=self.observer and self.observer.start(rows, max_length),
    )
    return Speculation(self.drafter, rule, rule_sampling, context), state

  def _started(
    self, params: Mapping[str, Any], beginning: _Beginning, has_room: bool
  ) -> tuple[Cache, dict[str, Loaded]]:
    """Returns the target's first cache, and the drafter's networks as functions.

    Networks without an encoder read the target's, so inputs are encoded once.
    """
    networks = self.drafter.networks
    readers = [
      name for name, network in networks.items() if functional.lacks_encoder(network)
    ]
    _, target_cache, *reader_caches = _start(
      self.target,
      params["target"],
      beginning,
      readers=[(networks[name], params[name]) for name in readers],
    )
    shared = dict(zip(readers, reader_caches, strict=True))

    def first_cache(name):
      cache = shared.get(name)
      if cache is None:
        _, cache = _start(networks[name], params[name], beginning)
      if draft_step.name_of(name) in params:
        cache = draft_step.with_scratch(networks[name], cache, has_room)
      return cache

    return target_cache, {
      name: Loaded(
        self._extend_fn(name, params),
        functools.partial(first_cache, name),
        params[name],
      )
      for name in networks
    }

  def _extend_fn(self, name: str, params: Mapping[str, Any]) -> ExtendFn:
    """Returns a network of the drafter, over the target's tokens."""
    network = self.networks[name]
    extend = functional.extend_fn(network, params[name])
    if (weights := params.get(draft_step.name_of(name))) is not None:
      extend = draft_step.extend_fn(network, weights, extend)
    vocab_size = self.target.config.vocab_size
    return functional.resized_extend_fn(network, extend, vocab_size)

  def _target_functions(
    self, params: Mapping[str, Any], sampling: Sampling, rows: int
  ) -> Target:
    """Returns the target as functions, with the arrays derived of its parameters."""
    network, is_fixed = self.target, self.is_fixed(rows)
    extend = _target_extend_fn(self, params, sampling, self.drafter.taps)
    names = {*self.networks, *map(draft_step.name_of, self.drafter.networks)}
    return Target(
      extend=widths.of_fixed_width(extend) if is_fixed else extend,
      vocab_size=network.config.vocab_size,
      logits=functional.logits_fn(network, params["target"]),
      embed=functional.embed_fn(network, params["target"]),
      without=functional.without_fn(network, params["target"]),
      derived={name: x for name, x in params.items() if name not in names},
      is_fixed=is_fixed,
    )

  def _source(self, beginning: _Beginning) -> Int[Array, "R _"]:
    """Returns the encoder's inputs of the rows; prompts are in the sequences."""
    is_prompt = functional.is_decoder_only(self.target)
    inputs = beginning.inputs[:, :0] if is_prompt else beginning.inputs
    return jnp.repeat(without_padding(inputs), beginning.num_decodes, axis=0)


@dataclasses.dataclass(frozen=True)
class PlainDecoder(Decoder):
  """Plain decoding, the baseline: a token for each call of the target.

  Attributes:
    target: the network.
    block: tokens of a call; only the first token counts. N is the strict baseline of a
      speculation with blocks of N tokens (`decoding.baseline`).
    slots: see `Decoder`.
    same_bits: as for `SpeculativeDecoder`.
    rule: the rule of a speculation with equal outputs, if known. The rule decides
      whether draws are coupled.
  """

  target: Network
  block: int = 1
  slots: int = 0
  same_bits: bool | None = None
  rule: Rule | None = None

  guarantee = Guarantee.EXACT

  def __post_init__(self):
    check_slots(self.slots)
    if not is_whole(self.block, 1):
      raise ValueError(
        f"BLOCK must be a whole number of at least 1, got {self.block!r}. 1 is plain "
        "decoding, GAMMA + 1 the strict baseline of a speculative run."
      )
    widths.check_same_bits(self.same_bits, self.block - 1, is_chain=True)

  def is_fixed(self, rows: int) -> bool:
    """Returns whether blocks of the target have a fixed width."""
    at_once = self.rows_at_once(rows)
    return widths.is_fixed(self.same_bits, at_once, self.block - 1)

  def check(self, sampling: Sampling, max_length: int, num_decodes: int) -> None:
    """Raises a ValueError if the target has no head of the kind that is asked for."""
    del max_length, num_decodes
    certified.is_used(self.target.config, self.reads_argmaxes(sampling))

  def reads_argmaxes(self, sampling: Sampling) -> bool:
    """Returns whether only the argmax of the target's logits is used."""
    return sampling.greedy

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
    """Decodes a token for each call; `policy_state` is handed on unchanged."""

    def prepare(inputs, keys, has_room=True):
      return self.prepare(params, inputs, keys, sampling, max_length, eos_id, has_room)

    request = batching.Request.of(inputs, keys, is_wanted)
    decoded = batching.decode(prepare, generate_plain, request, self.slots, max_length)
    return decoded.replace(policy_state=policy_state)

  def prepare(
    self, params, inputs, keys, sampling, max_length, eos_id, has_room=True
  ) -> tuple[Plain, DecodeState]:
    """Returns how to decode and where to start; as `SpeculativeDecoder.prepare`."""
    rows, overrun = keys.shape[0], self.block - 1
    if self.rule is not None:
      _, rule_sampling = rule_at(self.rule, sampling)
      sampling = rule_sampling if rule_sampling.coupled else sampling
    extend = _target_extend_fn(self, params, sampling)
    if self.is_fixed(rows):
      extend = widths.of_fixed_width(extend)
    plain = Plain(
      extend, sampling, max_length, eos_id, distributions.adjusted_probs, self.block
    )
    beginning = _beginning(
      self.target,
      inputs,
      rows,
      max_length if has_room else None,
      widths.FIXED_WIDTH - 1 if self.is_fixed(rows) else overrun,
    )
    _, cache = _start(self.target, params["target"], beginning)
    state = initial_state(cache, None, keys, max_length, overrun, beginning.prompts)
    return plain, state


def _beginning(
  target: Network, inputs, rows: int, max_length: int | None, overrun: int
) -> _Beginning:
  """Returns the inputs of the networks before the first iteration.

  Args:
    target: the target.
    inputs: as for `Decoder.decode`.
    rows: R.
    max_length: the most tokens of an output; None leaves no room for outputs.
    overrun: tokens by which a block may overrun the output.
  """
  return _Beginning(
    inputs,
    num_slots=0 if max_length is None else num_slots(max_length, overrun),
    num_decodes=rows // inputs.shape[0],
    prompts=functional.prompts_of(inputs, target),
  )


def _start(network: Network, params: Any, beginning: _Beginning, **readers: Any):
  """Returns a network as an `ExtendFn`, and first caches; see `start_decoding`."""
  return start_decoding(
    network,
    params,
    beginning.inputs,
    beginning.num_slots,
    beginning.num_decodes,
    beginning.prompts,
    **readers,
  )


def _target_extend_fn(
  decoder: Decoder, params: Mapping[str, Any], sampling: Sampling, taps: int = 1
) -> ExtendFn:
  """Returns the target's `extend`, computing only the outputs that are used."""
  target_params = params["target"]
  if certified.NAME in params and decoder.reads_argmaxes(sampling):
    target_params = certified.within(target_params, params[certified.NAME])
  return functional.extend_fn(decoder.target, target_params, taps=taps)


def check_slots(slots: Any) -> None:
  """Raises a ValueError if `slots` is not a number of rows."""
  if not is_whole(slots, 0):
    raise ValueError(
      f"SLOTS must be a whole number of at least 0, got {slots!r}. SLOTS is the number "
      "of rows that decode at once; 0 means the whole batch."
    )
