"""Beam search as a decoder, with or without a draft model.

The width of the beam is the number of decodes per input, as in T5X. A hypothesis gains
a token at each step of the search. The statistics of a beam are:

- scores: the log-probability over the brevity penalty of the best hypothesis (of each
  hypothesis, if all are returned); the plain log-probability in the rare case that no
  hypothesis ended.
- tokens: the steps of the search, so tokens / target_calls is the number of steps per
  call. The search may go on past the end of the best hypothesis, so the number is at
  least the best hypothesis's length.
- target_calls: the calls that the input took part in.
- drafted: the levels of the draft's trees that counted: gamma per call, or the
  remaining number of levels.
- accepted: the levels that held all live hypotheses of the target, so that the next
  step needed no further call.
- acceptance_positions: the levels that the search reached: the accepted levels and the
  first level that lacked a hypothesis.
- acceptance_mass: the number of accepted levels, as a search draws nothing.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from specdec_t5x.contrib.beam.hypotheses import BeamExtendFn, BeamSettings
from specdec_t5x.contrib.beam.search import BeamDecoded, BeamSearch, search
from specdec_t5x.contrib.beam.tree import Layout
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import is_whole
from specdec_t5x.core.types import Guarantee
from specdec_t5x.decoding.decoders import Decoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.policy import Policy
from specdec_t5x.decoding.state import Decoded, no_info
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network import certified
from specdec_t5x.network.functional import (
  Network,
  is_decoder_only,
  resized,
  start_decoding,
)
from specdec_t5x.network.vocabulary import check_same_vocabulary


@dataclasses.dataclass(frozen=True)
class BeamDecoder(Decoder):
  """Beam search.

  The hypotheses and scores equal those of T5X's `decoding.beam_search` for any draft.

  Attributes:
    target: the network to search with, an encoder-decoder.
    draft: the drafting network, over the same vocabulary; None takes one step per call
      of the target.
    gamma: the number of levels of the draft's tree.
    draft_beam_size: the width of the draft's beam, at least the target's width.
    alpha: the exponent of the brevity penalty.
  """

  target: Network
  draft: Network | None = None
  gamma: int = 2
  draft_beam_size: int = 8
  alpha: float = 0.6

  guarantee = Guarantee.GREEDY_EXACT

  def __post_init__(self):
    for network in self.networks.values():
      if is_decoder_only(network):
        raise ValueError(
          f"Beam search needs an encoder-decoder, got a {type(network).__name__}. "
          "Decode without configs/runs/beam*.gin."
        )
    BeamSettings(1, 1, self.alpha)  # Refuses a bad alpha.
    if self.draft is None:
      return
    check_same_vocabulary(self.target, self.draft)
    if not is_whole(self.gamma, 1):
      raise ValueError(f"GAMMA must be a whole number of at least 1, got {self.gamma}.")

  @property
  def networks(self) -> Mapping[str, Network]:
    """Both networks, by name."""
    target = {"target": self.target}
    return target if self.draft is None else {**target, "draft": self.draft}

  def check(self, sampling: Sampling, max_length: int, num_decodes: int) -> None:
    """Raises a ValueError if a beam search cannot have these settings."""
    if not sampling.greedy or sampling.top_k or sampling.top_p:
      raise ValueError(
        "Beam search draws nothing: TEMPERATURE, TOPK and TOPP must be 0, got "
        f"{sampling.temperature}, {sampling.top_k}, {sampling.top_p}. Leave the "
        "settings out, or sample without configs/runs/beam*.gin."
      )
    certified.is_used(self.target.config, reads_argmaxes=False)
    vocab_size = self.target.config.vocab_size
    if num_decodes >= vocab_size:
      raise ValueError(
        f"BEAM_SIZE must be below the vocabulary's {vocab_size} tokens, got "
        f"{num_decodes}. Lower BEAM_SIZE."
      )
    size = self.draft_beam_size
    if self.draft is not None and not (
      is_whole(size, num_decodes) and size < vocab_size
    ):
      raise ValueError(
        f"DRAFT_BEAM_SIZE must be a whole number from BEAM_SIZE={num_decodes} to below "
        f"the vocabulary's {vocab_size} tokens, got {size!r}: the tree needs room for "
        "the target's hypotheses. Try twice BEAM_SIZE."
      )

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
    policy_state=None,
  ) -> Decoded:
    """Searches with a beam of width R / B; see `decoding.decoders.Decoder`.

    Hypotheses end together, so unwanted inputs take no extra time.
    """
    del is_wanted, policy_state  # A beam search has no policy.
    rows = inputs.shape[0]
    width = keys.shape[0] // rows
    self.check(sampling, max_length, width)
    if self.draft is None:
      layout = Layout(width, width, 0, max_length)
    else:
      layout = Layout(width, self.draft_beam_size, self.gamma, max_length)
    caches = {}
    extends = {}
    for name, network in self.networks.items():
      # All hypotheses of an input are in one row of the cache.
      _, caches[name] = start_decoding(network, params[name], inputs, layout.num_slots)
      extends[name] = _extend(network, params[name], self.target.config.vocab_size)
    settings = BeamSettings(max_length, eos_id, self.alpha)
    spec = BeamSearch(settings, layout, extends["target"], extends.get("draft"))
    result = search(spec, caches["target"], caches.get("draft"), rows)
    return _as_decoded(result)


def _extend(network: Network, params, vocab_size: int) -> BeamExtendFn:
  """Returns a function that scores tokens in slots assigned by the caller."""

  def extend(cache, tokens, key_positions, visible):
    logits, _, cache = network.apply(
      {"params": params}, cache, tokens, key_positions, visible, method="extend_slots"
    )
    return resized(logits, vocab_size), cache

  return extend


def _as_decoded(result: BeamDecoded) -> Decoded:
  """Returns the result with the hypotheses of an input side by side."""
  info = result.info
  statistics = no_info(result.scores.shape[0]).replace(
    target_calls=info.target_calls,
    drafted=info.drafted,
    accepted=info.accepted,
    acceptance_positions=info.tried,
    acceptance_mass=info.accepted.astype(jnp.float32),
    emitted=info.steps,
    log_prob=result.scores[:, -1],
  )
  tokens = result.tokens.reshape(-1, result.tokens.shape[-1])
  return Decoded(tokens, result.scores.reshape(-1), statistics)


def beam(
  target: Network,
  seed: int,
  *,
  slots: int = 0,
  block: int = 1,
  same_bits: bool | None = None,
  drafter: Drafter | None = None,
  verification: str = "beam",
  lenience: float = 1.0,
  policy: Policy | str | None = None,
  **knobs: Any,
) -> Decoder:
  """Returns a beam search, with the draft model of a drafter if there is a drafter.

  Args:
    target: the network to search with.
    seed: 0.
    slots: 0.
    block: 1.
    same_bits: None, as hypotheses are scored in trees.
    drafter: a plain `DraftModel`; the draft searches with a separate beam.
    verification: 'beam', the only verification with a beam.
    lenience: 1.
    policy: None, or 'fixed', as each tree has GAMMA levels.
    **knobs: the knobs of `BeamDecoder`.

  Raises:
    ValueError: if a setting does not apply to a beam.
  """
  if policy not in (None, "fixed"):
    raise ValueError(
      f"GAMMA_POLICY must be 'fixed' with a beam, or left out, got {policy!r}: every "
      "tree has GAMMA levels."
    )
  if verification != "beam" or lenience != 1.0:
    raise ValueError(
      f"VERIFICATION must be 'beam' with a beam, and LENIENCE 1, got {verification!r} "
      f"and {lenience}: beam search compares hypotheses, not tokens. Leave "
      "VERIFICATION and LENIENCE out, or leave out configs/contrib/beam.gin."
    )
  network = getattr(drafter, "network", None)
  if drafter is not None:
    if type(drafter) is not DraftModel or not hasattr(network, "extend_slots"):
      raise ValueError(
        "DRAFTER must be 'draft_model' with a beam, and NUM_CANDIDATES 1, got "
        f"{type(drafter).__name__} with the network {type(network).__name__}: the "
        "draft model also searches with a beam. Leave DRAFTER and NUM_CANDIDATES out."
      )
    knobs |= {"draft": network, "gamma": drafter.gamma}
  if (seed, slots, block) != (0, 0, 1):
    raise ValueError(
      f"With a beam SEED and SLOTS must be 0 and BLOCK 1, got {seed}, {slots} and "
      f"{block}: beam search draws nothing, hypotheses end together, and the strict "
      "baseline scores single tokens. Leave SEED, SLOTS and BLOCK out."
    )
  if same_bits is not None:
    raise ValueError(
      f"With a beam SAME_BITS must be None, got {same_bits!r}: hypotheses are scored "
      "in trees, and blocks of trees have other widths. Leave SAME_BITS out."
    )
  return BeamDecoder(target, **knobs)
