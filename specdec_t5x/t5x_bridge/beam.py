"""Beam search as T5X models: with speculation, and plain beside it.

The width of the beam is `num_decodes`, as in T5X. What the statistics of each input
mean for a beam, where a hypothesis gains a token at each step of the search:
- scores: log-probability over the brevity penalty, of the best hypothesis (all, with
  `return_all_decodes`); plain log-probability in the rare case that none ended.
- tokens: steps of the search, so that tokens / target_calls are steps per call. The
  search may go on past the end of the hypothesis that wins: at least its length.
- target_calls: calls that the input took part in.
- drafted: levels of the draft's trees that counted: gamma a call, or what room is left.
- accepted: levels that held all live hypotheses of the target, so that the step after
  them needed no call of its own.
- acceptance_positions: levels that the search reached, the accepted ones and the first
  that lacked a hypothesis.
- acceptance_mass: as many as accepted, for a search draws nothing.
"""

import jax
import jax.numpy as jnp

from specdec_t5x.core.beam import BeamSettings
from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import guarantee_of
from specdec_t5x.core.types import Guarantee
from specdec_t5x.decoding.beam import BeamDecoded, BeamSearch, search
from specdec_t5x.decoding.beam_tree import Layout
from specdec_t5x.decoding.state import Decoded, no_info
from specdec_t5x.network.functional import is_decoder_only, start_beams
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge.model import (
  PlainEncoderDecoderModel,
  SpeculativeEncoderDecoderModel,
)

VERIFICATION = "beam"


class PlainBeamModel(PlainEncoderDecoderModel):
  """Beam search, one step a target call: the baseline that shares the network.

  Its hypotheses and scores are those of T5X's `decoding.beam_search`.
  """

  def __init__(self, *args, alpha: float = 0.6, **kwargs):
    """Creates the model.

    Args:
      *args: as `PlainEncoderDecoderModel`'s.
      alpha: exponent of the brevity penalty.
      **kwargs: as `PlainEncoderDecoderModel`'s.

    Raises:
      ValueError: where settings are of sampling, or out of their range.
    """
    super().__init__(*args, **kwargs)
    if self.block != 1:
      raise ValueError(
        f"BLOCK must be 1 with a beam, got {self.block}: the strict baseline is one of "
        "single tokens. Leave it out."
      )
    self.alpha = alpha
    _check(self, self._default_decoder_params.num_decodes)

  def _decode(self, params, inputs, keys, max_length):
    rows = inputs.shape[0]
    width = _width(self, keys, rows)
    layout = Layout(width, width, gamma=0, max_length=max_length)
    extend, cache = start_beams(self.module, params, inputs, layout.num_slots)
    settings = BeamSettings(max_length, self._eos_id, self.alpha)
    spec = BeamSearch(settings, layout, extend)
    return _as_decoded(search(spec, cache, None, rows))


class SpeculativeBeamModel(SpeculativeEncoderDecoderModel):
  """Beam search with the help of a draft; params = {target, draft}.

  Its hypotheses and scores are those of `PlainBeamModel` with the target, whatever the
  draft is.
  """

  def __init__(
    self,
    target: Transformer,
    draft: Transformer,
    *args,
    draft_beam_size: int,
    alpha: float = 0.6,
    verification: str = VERIFICATION,
    **kwargs,
  ):
    """Creates the model.

    Args:
      target: the network whose hypotheses are searched for.
      draft: the network that drafts, over the same vocabulary.
      *args: as `SpeculativeEncoderDecoderModel`'s.
      draft_beam_size: width of the draft's beam, at least the target's.
      alpha: exponent of the brevity penalty.
      verification: 'beam', for there is no other with a beam.
      **kwargs: as `SpeculativeEncoderDecoderModel`'s, gamma (levels a tree) among them.

    Raises:
      ValueError: where settings are of sampling, out of their range or do not go
        together.
    """
    if verification != VERIFICATION:
      raise ValueError(
        f"VERIFICATION must be {VERIFICATION!r} with a beam, got {verification!r}: "
        "hypotheses are compared, not tokens. Leave it out, or leave out "
        "configs/runs/beam.gin."
      )
    super().__init__(target, draft, *args, **kwargs)
    self.alpha, self.draft_beam_size = alpha, draft_beam_size
    if self.pair.drafter != "draft_model":
      raise ValueError(
        f"DRAFTER must be 'draft_model' with a beam, got {self.pair.drafter!r}: the "
        "draft searches with a beam of its own."
      )
    if self.pair.gamma_policy != "fixed":
      raise ValueError(
        f"GAMMA_POLICY must be 'fixed' with a beam, got {self.pair.gamma_policy!r}: "
        "the draft's trees have GAMMA levels. Leave it out."
      )
    width = self._default_decoder_params.num_decodes
    _check(self, width)
    _check_draft_beam(width, draft_beam_size, target.config.vocab_size)

  @property
  def guarantee(self) -> Guarantee:
    """What the search promises."""
    return guarantee_of(VERIFICATION)

  def _decode(self, params, inputs, keys, max_length):
    rows = inputs.shape[0]
    width = _width(self, keys, rows)
    _check_draft_beam(width, self.draft_beam_size, self.module.config.vocab_size)
    layout = Layout(width, self.draft_beam_size, self.pair.gamma, max_length)
    extend, cache = start_beams(
      self.pair.target, params["target"], inputs, layout.num_slots
    )
    draft_extend, draft_cache = start_beams(
      self.pair.draft, params["draft"], inputs, layout.num_slots
    )
    settings = BeamSettings(max_length, self._eos_id, self.alpha)
    spec = BeamSearch(settings, layout, extend, draft_extend)
    return _as_decoded(search(spec, cache, draft_cache, rows))


def _width(model, keys: jax.Array, rows: int) -> int:
  """Returns how many decodes an input are asked for, which is the beam's width."""
  width = keys.shape[0] // rows
  _check(model, width)
  return width


def _check(model, width: int) -> None:
  if is_decoder_only(model.module):
    raise ValueError(
      f"Beam search needs an encoder-decoder, got a {type(model.module).__name__}. "
      "Decode it with SpeculativeDecoderOnlyModel (configs/runs/decoder_only.gin)."
    )
  sampling: Sampling = model.sampling
  drawing = sampling.temperature, sampling.top_k, sampling.top_p, model.seed
  if not sampling.greedy or any(drawing[1:]):
    raise ValueError(
      "Beam search draws nothing: TEMPERATURE, TOPK, TOPP and SEED must be 0, got "
      f"{', '.join(map(str, drawing))}. Leave them out, or sample without "
      "configs/runs/beam*.gin."
    )
  BeamSettings(1, model._eos_id, model.alpha)  # Refuses a bad alpha.
  if width >= model.module.config.vocab_size:
    raise ValueError(
      f"BEAM_SIZE must be below the vocabulary's {model.module.config.vocab_size} "
      f"tokens, got {width}."
    )


def _check_draft_beam(width: int, draft_width: int, vocab_size: int) -> None:
  if not is_whole(draft_width, width) or draft_width >= vocab_size:
    raise ValueError(
      f"DRAFT_BEAM_SIZE must be a whole number from BEAM_SIZE={width} to below the "
      f"vocabulary's {vocab_size} tokens, got {draft_width!r}: the tree must have room "
      "for all hypotheses of the target. Try twice BEAM_SIZE."
    )


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
