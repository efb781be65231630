"""One decode, iteration by iteration: which tokens were accepted, which were not.

The trace of Leviathan et al., ICML 2023, figure 1. `trace.render` draws it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece
from jaxtyping import Array, Float, Int

from specdec_t5x.api import Model
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal, Verdict
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.drafter import Context, Drafter
from specdec_t5x.decoding.state import DecodeState, StepInfo, row_keys
from specdec_t5x.decoding.step import step
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA, DraftModel


@dataclasses.dataclass(frozen=True)
class Iteration:
  """What became of one draft, in pieces of the vocabulary.

  Attributes:
    accepted: drafted tokens that entered the output.
    rejected: the first drafted token that the target did not let pass, if any.
    discarded: drafted tokens after the rejected one.
    emitted: the target's own token after the accepted ones; None where the draft
      itself ended the sequence.
  """

  accepted: tuple[str, ...]
  rejected: str | None
  discarded: tuple[str, ...]
  emitted: str | None

  @classmethod
  def of(
    cls, drafted: Sequence[str], gained: Sequence[str], num_accepted: int
  ) -> "Iteration":
    """Returns the iteration that a draft and the output's gain amount to.

    Args:
      drafted: the drafted tokens that counted.
      gained: what the output gained.
      num_accepted: how many of the drafted tokens stand.

    >>> Iteration.of(["ein", "Hund", "."], ["ein", "Mann"], 1)
    Iteration(accepted=('ein',), rejected='Hund', discarded=('.',), emitted='Mann')
    """
    rest = drafted[num_accepted:]
    return cls(
      accepted=tuple(drafted[:num_accepted]),
      rejected=rest[0] if rest else None,
      discarded=tuple(rest[1:]),
      emitted=gained[num_accepted] if len(gained) > num_accepted else None,
    )

  @property
  def kind(self) -> Literal["recovered", "bonus"] | None:
    """What the emitted token is; None where there is none."""
    if self.emitted is None:
      return None
    return "bonus" if self.rejected is None else "recovered"

  @property
  def output(self) -> tuple[str, ...]:
    """What the output gained."""
    return self.accepted + (() if self.emitted is None else (self.emitted,))


@dataclasses.dataclass(frozen=True)
class Recorder(Drafter):
  """A drafter that keeps its last draft: its state is (the drafter's own, tokens)."""

  drafter: Drafter

  @property
  def networks(self) -> Mapping[str, Any]:
    """The drafter's."""
    return self.drafter.networks

  @property
  def tree(self) -> Tree:
    """The drafter's."""
    return self.drafter.tree

  def start(self, context: Context) -> tuple[Any, Int[Array, "1 G"]]:
    """Returns the drafter's first state, and no draft."""
    no_draft = jnp.zeros((1, self.tree.size), jnp.int32)
    return self.drafter.start(context), no_draft

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, tuple[Any, Int[Array, "B G"]]]:
    """Drafts as the drafter does; see `decoding.drafter.Drafter`."""
    state = state.replace(drafter_state=state.drafter_state[0])
    proposal, inner = self.drafter.propose(context, state, uniforms)
    return proposal, (inner, proposal.tokens)

  def commit(
    self,
    context: Context,
    drafter_state: tuple[Any, Int[Array, "B G"]],
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> tuple[Any, Int[Array, "B G"]]:
    """Returns the drafter's own state after the verdict, and the draft as it is."""
    inner, tokens = drafter_state
    return self.drafter.commit(context, inner, verdict, features), tokens


def trace_decode(
  text: str,
  target: Model,
  draft: Model,
  vocabulary: str,
  *,
  gamma: int = DEFAULT_GAMMA,
  sampling: Sampling = GREEDY,
  max_length: int = 128,
  seed: int = 0,
) -> tuple[Iteration, ...]:
  """Decodes one text and tells what each iteration did.

  The iterations' outputs, one after the other, are the tokens that `api.generate` with
  policy 'fixed' gives for this text as its first input; arguments as there.
  """
  processor = _processor(vocabulary)
  drafter = Recorder(DraftModel(draft.network, gamma))
  decoder = SpeculativeDecoder(target.network, drafter)
  params = {"target": target.params, "draft": draft.params}
  inputs = jnp.array([[*processor.encode(text), processor.eos_id()]], jnp.int32)
  keys = row_keys(jax.random.key(seed), 1)  # Those of the first input, as there.
  start, advance = _programs(decoder, sampling, max_length, processor.eos_id())
  state = start(params, inputs, keys)
  iterations = []
  while not state.ended.all():
    before = int(state.lengths[0])
    state, info = advance(params, inputs, state)
    iterations.append(_read(processor, before, state, info))
  return tuple(iterations)


def pieces(
  processor: sentencepiece.SentencePieceProcessor, tokens: Sequence[int]
) -> list[str]:
  """Returns the tokens' pieces; rows of padding beyond the vocabulary get a number."""
  known = processor.vocab_size()
  return [
    processor.id_to_piece(token) if token < known else f"<{token}>"
    for token in map(int, tokens)
  ]


def _processor(vocabulary: str) -> sentencepiece.SentencePieceProcessor:
  try:
    return sentencepiece.SentencePieceProcessor(model_file=vocabulary)
  except (RuntimeError, OSError) as error:
    raise ValueError(
      f"vocabulary={vocabulary!r} can't be read: {error}. Expected the SentencePiece "
      "model that target and draft were trained with."
    ) from error


def _programs(
  decoder: SpeculativeDecoder, sampling: Sampling, max_length: int, eos_id: int
) -> tuple[Callable, Callable]:
  """Returns the loop's start and its single step, each compiled once."""

  def prepare(params, inputs, keys):
    return decoder.prepare(params, inputs, keys, sampling, max_length, eos_id)

  def advance(params, inputs, state):
    # The step reads nothing of the new start, so the compiler drops the encoders.
    spec, _ = prepare(params, inputs, state.keys)
    return step(spec, state)

  return jax.jit(lambda *args: prepare(*args)[1]), jax.jit(advance)


def _read(
  processor: sentencepiece.SentencePieceProcessor,
  before: int,
  state: DecodeState,
  info: StepInfo,
) -> Iteration:
  """Returns the iteration that led from `before` known tokens to `state`."""
  draft = np.asarray(state.drafter_state[1][0])[: int(info.drafted[0])]
  gained = np.asarray(state.sequences[0])[before : int(state.lengths[0])]
  return Iteration.of(
    pieces(processor, draft), pieces(processor, gained), int(info.accepted[0])
  )
