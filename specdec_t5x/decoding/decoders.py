"""Decoders: networks, drafter, rule and loop put together, from inputs to outputs.

What the T5X models and `specdec_t5x.generate` share. Parameters are {target, **the
drafter's networks by their names}.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES, rule_at
from specdec_t5x.core.types import ExtendFn, Guarantee, Rule
from specdec_t5x.decoding import baseline, generate, state, timing
from specdec_t5x.decoding.drafter import Context, Drafter
from specdec_t5x.decoding.state import Decoded, DecodeState
from specdec_t5x.decoding.step import Speculation
from specdec_t5x.network import functional
from specdec_t5x.network.functional import Network, start_decoding


class Decoder(Protocol):
  """A way to decode: a frozen dataclass of networks and settings.

  Attributes:
    target: the network whose law, or whose hypotheses, the outputs have.
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
    eos_id: int,
  ) -> Decoded:
    """Decodes R / B outputs an input.

    Args:
      params: of each network, by its name.
      inputs: encoder tokens, or the prompts of decoder-only networks; zero-padded.
      keys: one a row; the rows of one input stand next to each other.
      sampling: the adjustment of all laws.
      max_length: room for an output, in tokens.
      eos_id: the token that ends a sequence.
    """


@dataclasses.dataclass(frozen=True)
class SpeculativeDecoder:
  """A target that decodes with the help of a draft; a `Decoder`.

  The output has the law that the rule guarantees, whatever the draft.

  Attributes:
    target: the network whose law is kept.
    drafter: how tokens are drafted.
    rule: which of them stand.
  """

  target: Network
  drafter: Drafter
  rule: Rule = RULES["token"]

  def __post_init__(self):
    self.drafter.check(self.target)
    tree, name = self.drafter.tree, type(self.rule).__name__
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
    for network in self.drafter.networks.values():
      functional.check_same_kind(self.target, network)

  @property
  def networks(self) -> Mapping[str, Network]:
    """All networks, by name."""
    return {"target": self.target, **self.drafter.networks}

  @property
  def guarantee(self) -> Guarantee:
    """What the rule promises."""
    return self.rule.guarantee

  @property
  def alpha_is_mass(self) -> bool:
    """Whether a tried token is accepted with probability sum min(p, q)."""
    return self.rule.alpha_is_mass

  def check(self, sampling: Sampling, max_length: int, num_decodes: int) -> None:
    """Raises a ValueError where rule, draft, sampling and room do not go together."""
    del num_decodes
    rule_at(self.rule, sampling)
    depth = self.drafter.tree.depth
    if depth >= max_length:
      raise ValueError(
        f"GAMMA={depth} is too long a draft for outputs of {max_length} tokens: at "
        f"most {max_length - 1} drafted tokens can count, since each call of the "
        "target adds one of its own. Lower GAMMA, or give outputs more room "
        "(TASK_FEATURE_LENGTHS' targets, max_length)."
      )

  def decode(self, params, inputs, keys, sampling, max_length, eos_id) -> Decoded:
    """Decodes with speculation; see `Decoder`."""
    arguments = params, inputs, keys
    drafter = self.drafter.tuned(
      lambda told: timing.seconds(self._with, told, arguments, sampling, max_length)
    )
    if drafter is None:
      plain = PlainDecoder(self.target)
      return plain.decode(*arguments, sampling, max_length, eos_id)
    tuned = self._with(drafter)
    return generate.generate(*tuned.prepare(*arguments, sampling, max_length, eos_id))

  def _with(self, drafter: Drafter) -> "SpeculativeDecoder":
    return dataclasses.replace(self, drafter=drafter)

  def prepare(
    self, params, inputs, keys, sampling, max_length, eos_id
  ) -> tuple[Speculation, DecodeState]:
    """Returns what the loop needs: how to step and where to start; as for `decode`."""
    per_input = keys.shape[0] // inputs.shape[0]
    size = self.drafter.tree.size
    slots = state.num_slots(max_length, size)
    prompts = functional.prompts_of(inputs, self.target)
    begin = lambda name: start_decoding(
      self.networks[name], params[name], inputs, slots, per_input, prompts
    )
    target, cache = begin("target")
    is_prompt = functional.is_decoder_only(self.target)
    context = Context(
      sampling=sampling,
      max_length=max_length,
      eos_id=eos_id,
      vocab_size=self.target.config.vocab_size,
      target=target,
      extend={
        name: functional.extend_fn(network, params[name])
        for name, network in self.drafter.networks.items()
      },
      start=lambda name: begin(name)[1],
      params={name: params[name] for name in self.drafter.networks},
      # Prompts are in the sequences already.
      source=jnp.repeat(inputs[:, :0] if is_prompt else inputs, per_input, axis=0),
    )
    rule, target_sampling = rule_at(self.rule, sampling)
    spec = Speculation(self.drafter, rule, target_sampling, context)
    start = self.drafter.start(context)
    return spec, state.initial_state(cache, start, keys, max_length, size, prompts)


@dataclasses.dataclass(frozen=True)
class PlainDecoder:
  """A target that decodes one token a call: the baseline; a `Decoder`.

  Attributes:
    target: the network.
    block: tokens that a call scores, of which the first counts: N for the strict
      baseline of a speculation that scores N (`decoding.baseline`).
  """

  target: Network
  block: int = 1

  guarantee = Guarantee.EXACT
  alpha_is_mass = False

  def __post_init__(self):
    if not is_whole(self.block, 1):
      raise ValueError(
        f"BLOCK must be a whole number of at least 1, got {self.block!r}. 1 is plain "
        "decoding, GAMMA + 1 the strict baseline of a speculative run."
      )

  @property
  def networks(self) -> Mapping[str, Network]:
    """The target."""
    return {"target": self.target}

  def check(self, sampling: Sampling, max_length: int, num_decodes: int) -> None:
    """All settings will do."""
    del sampling, max_length, num_decodes

  def decode(self, params, inputs, keys, sampling, max_length, eos_id) -> Decoded:
    """Decodes one token a call; see `Decoder`."""
    extend, start = self.prepare(params, inputs, keys, max_length)
    return baseline.generate_plain(
      extend, sampling, start, max_length, eos_id, self.block
    )

  def prepare(self, params, inputs, keys, max_length) -> tuple[ExtendFn, DecodeState]:
    """Returns what the plain loop needs; arguments as `decode`'s."""
    # A block overruns the output as a draft of block - 1 tokens does.
    over = self.block - 1
    slots = state.num_slots(max_length, over)
    per_input = keys.shape[0] // inputs.shape[0]
    prompts = functional.prompts_of(inputs, self.target)
    extend, cache = start_decoding(
      self.target, params["target"], inputs, slots, per_input, prompts
    )
    return extend, state.initial_state(cache, None, keys, max_length, over, prompts)
