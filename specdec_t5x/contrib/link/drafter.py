"""Drafting in another process, which sends drafts with their distributions.

A host callback per iteration asks the draft's process (`contrib.link`). A lost answer
counts as an empty draft, and the target decodes without a draft.

Shapes: B rows, G gamma, E input length, L uniforms per decision.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jaxtyping import Array, Float, Int

from specdec_t5x.contrib.link.wire import Ask, Setup
from specdec_t5x.contrib.truncation import Truncation
from specdec_t5x.core.types import Proposal, check_uniforms
from specdec_t5x.decoding.contracts import Batch, Context, Stops, Traits
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.draft_model import ChainDrafter, gamma_knob


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
  # Of the sent distributions. A message keeps the same size for any `top_p`.
  truncation: Truncation = Truncation()  # noqa: RUF009 - frozen

  traits = Traits(stops=Stops.BY_ITSELF, resumes=True)

  def check(self, target: Any, batch: Batch | None = None) -> None:
    """Raises a ValueError if no such draft answers, or if the batch is too large."""
    vocab_size = target.config.vocab_size
    self.remote.asker.check(vocab_size)
    if batch is not None:
      sizes = batch.rows, batch.input_length, batch.slots
      Setup(self.tree.size, self.truncation, batch.sampling, vocab_size, *sizes)

  def start(self, context, caches, source) -> Int[Array, "B E"]:
    """Returns the encoder's input."""
    return source

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, Int[Array, "B E"]]:
    """Asks for a draft; see `decoding.contracts.Drafter`."""
    check_uniforms(uniforms, self.tree.size)
    source = state.drafter_state
    vocab_size = context.target.vocab_size
    sizes = *source.shape, state.sequences.shape[1]
    setup = Setup(self.tree.size, self.truncation, context.sampling, vocab_size, *sizes)
    uniforms = uniforms[..., uniforms.shape[-1] - setup.draws :]
    lengths = jnp.where(state.ended, 0, state.lengths)
    # The callback is unordered: each draft goes into the next iteration's state, so a
    # request always follows the previous answer.
    drafts, has_draft = io_callback(
      lambda ask: self.remote.asker.ask(setup, ask),
      (setup.shapes, jax.ShapeDtypeStruct((setup.rows,), bool)),
      Ask(lengths, state.sequences, uniforms, source),
    )
    tokens, distribution = drafts.tokens, drafts.distribution
    if not setup.kept:
      is_valid = jnp.broadcast_to(has_draft[:, None], tokens.shape)
      return Proposal(tokens, None, is_valid, self.tree), source
    redrawn = distribution.draw(uniforms).astype(jnp.int32)
    is_distribution = distribution.total > 0
    # The first token counts for any draw of the other side, because the first
    # distribution depends only on the known tokens. Each later distribution depends on
    # the other side's draft.
    same = jnp.cumprod(redrawn == tokens, axis=1)
    same = jnp.pad(same, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    is_valid = has_draft[:, None] & ((same * jnp.cumprod(is_distribution, axis=1)) > 0)
    probs = jnp.where(is_distribution[..., None], distribution.dense(vocab_size), 0.0)
    return Proposal(redrawn, probs, is_valid, self.tree), source
