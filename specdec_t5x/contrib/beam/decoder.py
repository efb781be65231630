"""Beam search as a decoder: with the help of a draft model, and plain.

The width of the beam is the number of decodes an input, as in T5X. What the statistics
mean for a beam, where a hypothesis gains a token at each step of the search:

- scores: log-probability over the brevity penalty, of the best hypothesis (all, where
  all are returned); plain log-probability in the rare case that none ended.
- tokens: steps of the search, so that tokens / target_calls are steps per call. The
  search may go on past the end of the hypothesis that wins: at least its length.
- target_calls: calls that the input took part in.
- drafted: levels of the draft's trees that counted: gamma a call, or what remains.
- accepted: levels that held all live hypotheses of the target, so that the step after
  them needed no call of its own.
- acceptance_positions: levels that the search reached, the accepted ones and the first
  that lacked a hypothesis.
- acceptance_mass: as many as accepted, for a search draws nothing.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from specdec_t5x.contrib.beam.hypotheses import BeamExtendFn, BeamSettings
from specdec_t5x.contrib.beam.search import BeamDecoded, BeamSearch, search
from specdec_t5x.contrib.beam.tree import Layout
from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling
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

  Its hypotheses and scores are those of T5X's `decoding.beam_search`, whatever the
  draft is.

  Attributes:
    target: the network whose hypotheses are searched for, an encoder-decoder.
    draft: the network that drafts, over the same vocabulary; None takes one step a
      call of the target.
    gamma: levels of the draft's tree.
    draft_beam_size: width of the draft's beam, at least the target's.
    alpha: exponent of the brevity penalty.
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
          "Decode it without configs/runs/beam*.gin."
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
    """Raises a ValueError where these settings are none of a beam's."""
    drawing = sampling.temperature, sampling.top_k, sampling.top_p
    if not sampling.greedy or sampling.top_k or sampling.top_p:
      raise ValueError(
        "Beam search draws nothing: TEMPERATURE, TOPK and TOPP must be 0, got "
        f"{', '.join(map(str, drawing))}. Leave them out, or sample without "
        "configs/runs/beam*.gin."
      )
    certified.is_used(self.target.config, reads_argmaxes=False)
    vocab_size = self.target.config.vocab_size
    if num_decodes >= vocab_size:
      raise ValueError(
        f"BEAM_SIZE must be below the vocabulary's {vocab_size} tokens, got "
        f"{num_decodes}."
      )
    size = self.draft_beam_size
    if self.draft is not None and not (
      is_whole(size, num_decodes) and size < vocab_size
    ):
      raise ValueError(
        f"DRAFT_BEAM_SIZE must be a whole number from BEAM_SIZE={num_decodes} to below "
        f"the vocabulary's {vocab_size} tokens, got {size!r}: the tree must have room "
        "for all hypotheses of the target. Try twice BEAM_SIZE."
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
    """Searches with a beam of R / B; see `decoding.decoders.Decoder`.

    Hypotheses end together, so unwanted inputs take no time of their own.
    """
    del is_wanted, policy_state  # There is no policy.
    rows = inputs.shape[0]
    width = keys.shape[0] // rows
    self.check(sampling, max_length, width)
    size, gamma = width, 0
    if self.draft is not None:
      size, gamma = self.draft_beam_size, self.gamma
    layout = Layout(width, size, gamma, max_length)
    caches = [
      # All hypotheses of an input are in one row of the cache.
      start_decoding(network, params[name], inputs, layout.num_slots)[1]
      for name, network in self.networks.items()
    ]
    extends = [
      _extend(network, params[name], self.target.config.vocab_size)
      for name, network in self.networks.items()
    ]
    settings = BeamSettings(max_length, eos_id, self.alpha)
    spec = BeamSearch(settings, layout, *extends)
    cache, draft_cache = (*caches, None)[:2]
    return _as_decoded(search(spec, cache, draft_cache, rows))


def _extend(network: Network, params, vocab_size: int) -> BeamExtendFn:
  """Returns what scores tokens whose slots the caller assigns."""

  def extend(cache, tokens, key_positions, visible):
    logits, _, cache = network.apply(
      {"params": params}, cache, tokens, key_positions, visible, method="extend_slots"
    )
    return resized(logits, vocab_size), cache

  return extend


def _as_decoded(found: BeamDecoded) -> Decoded:
  """Returns the result with the hypotheses of an input side by side."""
  info, rows = found.info, found.scores.shape[0]
  statistics = no_info(rows).replace(
    target_calls=info.target_calls,
    drafted=info.drafted,
    accepted=info.accepted,
    acceptance_positions=info.tried,
    acceptance_mass=info.accepted.astype(jnp.float32),
    emitted=info.steps,
    log_prob=found.scores[:, -1],
  )
  tokens = found.tokens.reshape(-1, found.tokens.shape[-1])
  return Decoded(tokens, found.scores.reshape(-1), statistics)


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
  """Returns a beam search, with the draft model of a drafter where there is one.

  Args:
    target: the network whose hypotheses are searched for.
    seed: 0.
    slots: 0.
    block: 1.
    same_bits: None: hypotheses are scored in trees.
    drafter: a plain `DraftModel`; the draft searches with a beam of its own.
    verification: 'beam', for there is no other with a beam.
    lenience: 1.
    policy: None, or 'fixed': each tree has GAMMA levels.
    **knobs: of `BeamDecoder`.

  Raises:
    ValueError: where a setting is one that a beam has no use for.
  """
  if policy not in (None, "fixed"):
    raise ValueError(
      f"GAMMA_POLICY must be 'fixed' with a beam, or left out, got {policy!r}: each "
      "tree has GAMMA levels."
    )
  if verification != "beam" or lenience != 1.0:
    raise ValueError(
      f"VERIFICATION must be 'beam' with a beam, and LENIENCE 1, got {verification!r} "
      f"and {lenience}: hypotheses are compared, not tokens. Leave them out, or leave "
      "out configs/contrib/beam.gin."
    )
  network = getattr(drafter, "network", None)
  if drafter is not None:
    if type(drafter) is not DraftModel or not hasattr(network, "extend_slots"):
      raise ValueError(
        "DRAFTER must be 'draft_model' with a beam, and NUM_CANDIDATES 1, got "
        f"{type(drafter).__name__} whose network is {type(network).__name__}: the "
        "draft searches with a beam of its own."
      )
    knobs |= {"draft": network, "gamma": drafter.gamma}
  if (seed, slots, block) != (0, 0, 1):
    raise ValueError(
      f"With a beam SEED and SLOTS must be 0 and BLOCK 1, got {seed}, {slots} and "
      f"{block}: it draws nothing, hypotheses end together, and the strict baseline is "
      "one of single tokens. Leave them out."
    )
  if same_bits is not None:
    raise ValueError(
      f"With a beam SAME_BITS must be None, got {same_bits!r}: hypotheses are scored "
      "in trees, whose blocks have other widths. Leave SAME_BITS out."
    )
  return BeamDecoder(target, **knobs)
