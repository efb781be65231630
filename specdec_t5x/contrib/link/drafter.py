"""Drafting in another process, which sends the distributions of its draws.

One host callback an iteration asks the process of the draft (`contrib.link`). An answer
that is lost is an empty draft: the target goes on by itself.

Shapes: B rows, G gamma, K kept tokens, E input length, S sequence buffer, L uniforms a
decision.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jaxtyping import Array, Float, Int

from specdec_t5x.contrib.truncation import SparseProbs, Truncation
from specdec_t5x.core import tree
from specdec_t5x.core.checks import check_uniforms, is_whole
from specdec_t5x.core.distributions import Sampling, draws_per_token
from specdec_t5x.core.noise import WORDS
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.drafter import Drafter, Stops
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.stepwise import gamma_knob

_MOST_NUMBERS = 2**24  # of one array of a message


@dataclasses.dataclass(frozen=True)
class Setup:
  """The settings of a session, on which both sides agree.

  Attributes:
    gamma: tokens a draft.
    truncation: the truncation of the draft's distributions.
    sampling: the adjustment of the distributions before the truncation.
    vocab_size: of target and draft.
    rows: B.
    inputs: E.
    slots: S.
  """

  gamma: int
  truncation: Truncation
  sampling: Sampling
  vocab_size: int
  rows: int
  inputs: int
  slots: int

  def __post_init__(self):
    sizes = self.rows, self.slots, self.gamma, self.inputs + 1
    are_whole = all(is_whole(size, 1) for size in (*sizes, self.vocab_size))
    if not are_whole or max(sizes) >= 2**16:
      raise ValueError(f"A link takes from 1 to 65535 rows, tokens and drafts: {self}.")
    tokens = self.rows * (self.slots + self.inputs)
    probs = self.rows * self.gamma * max(self.kept, 1)
    if max(tokens, probs) > _MOST_NUMBERS:
      raise ValueError(
        f"A link's message has at most {_MOST_NUMBERS} tokens and as many "
        f"probabilities, got {tokens} and {probs}: {self.rows} rows of {self.inputs} "
        f"input tokens and {self.slots} places, {self.gamma} drafted tokens with "
        f"{self.kept} of each one's distribution. Lower BATCH_SIZE, GAMMA, LINK_TOPK "
        "(0 is all) or TASK_FEATURE_LENGTHS."
      )

  @property
  def kept(self) -> int:
    """K; 0 where tokens are certain, and no distribution is sent."""
    return 0 if self.sampling.certain else self.truncation.size(self.vocab_size)

  @property
  def draws(self) -> int:
    """How many uniforms a token takes."""
    if self.kept:
      return draws_per_token(self.kept)
    return WORDS if self.sampling.coupled else 0

  @classmethod
  def unpacked(cls, part: Any) -> "Setup":
    """Returns the setup in a message, as `dataclasses.astuple` gives it.

    Raises:
      ValueError: if the part of the message is no setup.
    """
    try:
      gamma, cut, sampling, *sizes = part
      return cls(gamma, Truncation(*cut), Sampling(*sampling), *sizes)
    except TypeError as error:
      raise ValueError(f"Expected a setup, got {part!r:.99}.") from error


@dataclasses.dataclass(frozen=True)
class Link(Drafter):
  """Up to gamma tokens from a draft elsewhere; its state is the encoder's input.

  `propose` draws the tokens again, from the received distributions and with the same
  uniforms, and keeps the draft up to the first token that differs. Each kept token is
  therefore drawn from a received distribution, whatever the other side's arithmetic,
  and a token's place in the draft depends on the tokens before the place alone.

  Attributes:
    remote: a `client.Remote`, or another object with its methods; hashable, and equal
      for equal settings.
    gamma: most tokens a draft.
    top_k: tokens of a distribution that are sent; 0 is all.
    top_p: how much of their mass; the message is none the shorter.
  """

  remote: Any
  gamma: int = gamma_knob()
  top_k: int = 32
  top_p: float = 1.0

  stops = Stops.BY_ITSELF
  resumes = True

  def __post_init__(self):
    super().__post_init__()
    Truncation(self.top_k, self.top_p)

  @property
  def tree(self) -> tree.Tree:
    """A chain of gamma tokens."""
    return tree.chain(self.gamma)

  def check(self, target: Any) -> None:
    """Raises a ValueError where no draft of the target's vocabulary answers."""
    self.remote.asker.check(target.config.vocab_size)

  def check_batch(
    self, sampling: Sampling, vocab_size: int, rows: int, input_length: int, slots: int
  ) -> None:
    """Raises a ValueError if a batch is too large for the link or the draft."""
    setup = self._setup(sampling, vocab_size, rows, input_length, slots)
    self.remote.asker.check_batch(setup)

  def check_export(self) -> None:
    """Raises a ValueError: an exported program has no other process to ask."""
    raise ValueError(
      "A draft in another process can't be exported: the program would ask for it. "
      "Leave out configs/contrib/link.gin."
    )

  def start(self, context: Context) -> Int[Array, "B E"]:
    """Returns the input."""
    return context.source

  def counted(self) -> Mapping[str, int]:
    """Returns what went over the link so far, for a run's record."""
    return self.remote.counts()

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, Int[Array, "B E"]]:
    """Asks for a draft; see `decoding.drafter.Drafter`."""
    check_uniforms(uniforms, self.gamma)
    setup = self._setup(
      context.sampling,
      context.target.vocab_size,
      *state.drafter_state.shape,
      state.sequences.shape[1],
    )
    # Here, where the program is made, and not in the middle of decoding.
    self.remote.asker.check_batch(setup)
    given = uniforms[..., uniforms.shape[-1] - setup.draws :]
    tokens, distribution, is_there = self._asked(setup, state, given)
    if not setup.kept:
      is_valid = jnp.broadcast_to(is_there[:, None], tokens.shape)
      return Proposal(tokens, None, is_valid, self.tree), state.drafter_state
    own = distribution.draw(given).astype(jnp.int32)
    is_distribution = distribution.total > 0
    # The first token counts, whatever the other side drew there: it is of a
    # distribution of the known tokens. Each later distribution is of the other side's
    # draft.
    same = jnp.cumprod(own == tokens, axis=1)
    same = jnp.pad(same, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    is_valid = is_there[:, None] & ((same * jnp.cumprod(is_distribution, axis=1)) > 0)
    probs = distribution.dense(context.target.vocab_size)
    probs = jnp.where(is_distribution[..., None], probs, 0.0)
    return Proposal(own, probs, is_valid, self.tree), state.drafter_state

  def _setup(self, sampling, vocab_size, rows, inputs, slots) -> Setup:
    # Nothing is kept beyond the vocabulary; so numbers of any size fit in a message.
    cut = Truncation(min(self.top_k, vocab_size), self.top_p)
    sampling = dataclasses.replace(sampling, top_k=min(sampling.top_k, vocab_size))
    return Setup(self.gamma, cut, sampling, vocab_size, rows, inputs, slots)

  def _asked(self, setup, state, uniforms) -> tuple[Array, SparseProbs, Array]:
    drafted = jax.ShapeDtypeStruct((setup.rows, self.gamma), jnp.int32)
    kept = jax.ShapeDtypeStruct((*drafted.shape, setup.kept), jnp.int32)
    shapes = drafted, kept, kept, jax.ShapeDtypeStruct((setup.rows,), bool)
    # Unordered: each draft goes into the next iteration's state, so none is asked for
    # before the last one came.
    tokens, kept, weights, is_there = io_callback(
      lambda *arrays: self.remote.asker.ask(setup, *arrays),
      shapes,
      state.drafter_state,
      state.sequences,
      state.lengths,
      state.ended,
      uniforms,
    )
    return tokens, SparseProbs(kept, weights), is_there
