"""Drafting in another process, which sends drafts with their distributions.

A host callback per iteration asks the draft's process (`contrib.link`). A lost answer
counts as an empty draft, and the target decodes without a draft.

Shapes: B rows, G gamma, K kept tokens, E input length, S sequence buffer, L uniforms
per decision.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jaxtyping import Array, Float, Int

from specdec_t5x.contrib.truncation import SparseProbs, Truncation
from specdec_t5x.core.distributions import Sampling, draws_per_token
from specdec_t5x.core.knobs import KnobError, Name, is_whole
from specdec_t5x.core.noise import WORDS
from specdec_t5x.core.types import Proposal, check_uniforms
from specdec_t5x.decoding.contracts import Batch, Context, Stops, Traits
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.draft_model import ChainDrafter, gamma_knob

_MOST_NUMBERS = 2**24  # The largest size of an array in a message.


@dataclasses.dataclass(frozen=True)
class Setup:
  """The settings of a session, on which both sides agree."""

  gamma: int  # The number of tokens of a draft.
  truncation: Truncation  # Of the draft's distributions.
  sampling: Sampling  # The adjustment of the distributions before the truncation.
  vocab_size: int  # Of target and draft.
  rows: int  # B, the number of rows.
  inputs: int  # E, the length of the inputs.
  slots: int  # S, the length of the sequence buffer.

  def __post_init__(self):
    sizes = self.rows, self.slots, self.gamma, self.inputs + 1
    are_whole = all(is_whole(size, 1) for size in (*sizes, self.vocab_size))
    if not are_whole or max(sizes) >= 2**16:
      raise ValueError(
        f"A link takes from 1 to 65535 rows, tokens and drafts, got {self}. Lower the "
        "sizes."
      )
    tokens = self.rows * (self.slots + self.inputs)
    probs = self.rows * self.gamma * max(self.kept, 1)
    if max(tokens, probs) > _MOST_NUMBERS:
      raise KnobError(
        "A link's message has at most {most} tokens and {most} probabilities, got "
        "{tokens} and {probs}: {setup.rows} rows of {setup.inputs} input tokens and "
        "{setup.slots} places, {setup.gamma} drafted tokens with {setup.kept} "
        "probabilities per token. Lower {batch_size}, {gamma}, {top_k} (0 keeps the "
        "whole distribution) or {max_length}.",
        most=_MOST_NUMBERS,
        tokens=tokens,
        probs=probs,
        setup=self,
        top_k=Name("top_k", "LINK_TOPK"),
      )

  @property
  def kept(self) -> int:
    """K; 0 if tokens are certain, as no distribution is sent then."""
    return 0 if self.sampling.certain else self.truncation.size(self.vocab_size)

  @property
  def draws(self) -> int:
    """The number of uniforms per token."""
    if self.kept:
      return draws_per_token(self.kept)
    return WORDS if self.sampling.coupled else 0

  @classmethod
  def unpacked(cls, part: Any) -> "Setup":
    """Returns the setup of a message, given the result of `dataclasses.astuple`.

    Raises:
      ValueError: if the part of the message is no setup.
    """
    try:
      gamma, truncation, sampling, *sizes = part
      return cls(gamma, Truncation(*truncation), Sampling(*sampling), *sizes)
    except TypeError as error:
      raise ValueError(f"Expected a setup, got {part!r:.99}.") from error


@dataclasses.dataclass(frozen=True)
class Link(ChainDrafter):
  """Receives up to gamma tokens from a draft in another process.

  The drafter's state is the encoder's input. `propose` draws the tokens again, from the
  received distributions and with the same uniforms, and keeps the draft up to the first
  token that differs. Each kept token is therefore drawn from a received distribution,
  for any arithmetic of the other side. Whether a token is kept depends only on the
  earlier tokens.
  """

  # A `client.Remote`, or another object with the same methods; hashable, and equal
  # for equal settings.
  remote: Any
  gamma: int | None = gamma_knob()  # The most tokens of a draft.
  top_k: int = 32  # The number of tokens of a distribution that are sent; 0 sends all.
  # The kept part of these tokens' mass; the message keeps the same size.
  top_p: float = 1.0

  traits = Traits(stops=Stops.BY_ITSELF, resumes=True)

  def __post_init__(self):
    super().__post_init__()
    Truncation(self.top_k, self.top_p)

  def check(self, target: Any, batch: Batch | None = None) -> None:
    """Raises a ValueError if no such draft answers, or if the batch is too large."""
    vocab_size = target.config.vocab_size
    self.remote.asker.check(vocab_size)
    if batch is not None:
      # Raises an error if the batch is too large.
      self._setup(
        batch.sampling, vocab_size, batch.rows, batch.input_length, batch.slots
      )

  def start(self, context, caches, source) -> Int[Array, "B E"]:
    """Returns the encoder's input."""
    del context, caches
    return source

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, Int[Array, "B E"]]:
    """Asks for a draft; see `decoding.contracts.Drafter`."""
    check_uniforms(uniforms, self.tree.size)
    rows, inputs = state.drafter_state.shape
    setup = self._setup(
      context.sampling,
      context.target.vocab_size,
      rows,
      inputs,
      state.sequences.shape[1],
    )
    uniforms = uniforms[..., uniforms.shape[-1] - setup.draws :]
    tokens, distribution, has_draft = self._asked(setup, state, uniforms)
    if not setup.kept:
      is_valid = jnp.broadcast_to(has_draft[:, None], tokens.shape)
      return Proposal(tokens, None, is_valid, self.tree), state.drafter_state
    redrawn = distribution.draw(uniforms).astype(jnp.int32)
    is_distribution = distribution.total > 0
    # The first token counts for any draw of the other side, because the first
    # distribution depends only on the known tokens. Each later distribution depends on
    # the other side's draft.
    same = jnp.cumprod(redrawn == tokens, axis=1)
    same = jnp.pad(same, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    is_valid = has_draft[:, None] & ((same * jnp.cumprod(is_distribution, axis=1)) > 0)
    probs = distribution.dense(context.target.vocab_size)
    probs = jnp.where(is_distribution[..., None], probs, 0.0)
    return Proposal(redrawn, probs, is_valid, self.tree), state.drafter_state

  def _setup(self, sampling, vocab_size, rows, inputs, slots) -> Setup:
    # The vocabulary limits the numbers of kept tokens, so that any top_k of the user
    # fits in a message.
    truncation = Truncation(min(self.top_k, vocab_size), self.top_p)
    sampling = dataclasses.replace(sampling, top_k=min(sampling.top_k, vocab_size))
    return Setup(self.tree.size, truncation, sampling, vocab_size, rows, inputs, slots)

  def _asked(self, setup, state, uniforms) -> tuple[Array, SparseProbs, Array]:
    """Returns tokens, distributions and whether each row has a draft."""
    tokens_shape = jax.ShapeDtypeStruct((setup.rows, setup.gamma), jnp.int32)
    kept_shape = jax.ShapeDtypeStruct((*tokens_shape.shape, setup.kept), jnp.int32)
    rows_shape = jax.ShapeDtypeStruct((setup.rows,), bool)
    # The callback is unordered: each draft goes into the next iteration's state, so a
    # request always follows the previous answer.
    tokens, kept, weights, has_draft = io_callback(
      lambda *arrays: self.remote.asker.ask(setup, *arrays),
      (tokens_shape, kept_shape, kept_shape, rows_shape),
      state.drafter_state,
      state.sequences,
      state.lengths,
      state.ended,
      uniforms,
    )
    return tokens, SparseProbs(kept, weights), has_draft
