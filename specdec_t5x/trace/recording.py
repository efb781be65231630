"""Records the iterations of decodes: drafted tokens, random draws and times."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specdec_t5x.api import compiled, encoded, end_tokens, padded_batches
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.types import EndTokens, Rule
from specdec_t5x.decoding.contracts import Drafter, decisions_of
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import commit, draft, draws, score, verify
from specdec_t5x.decoding.state import DecodeState, Iteration, keys_at
from specdec_t5x.vocabularies.base import Vocabulary
from specdec_t5x.vocabularies.opening import open_vocabulary
from specdec_t5x.ways import Model, assembled


@dataclasses.dataclass(frozen=True)
class Token:
  """A drafted token, or the target's token after a draft.

  Attributes:
    piece: the token's piece in the vocabulary.
    kind: accepted, rejected, discarded, recovered or bonus. The rejected tokens of a
      tree are the children of the last accepted token.
    p: the token's probability under the target (at T = 0: softmax at temperature 1).
    q: the token's probability under the draft; None if the draft is deterministic.
    test: the uniform of the acceptance test; None if no uniform tested the token.
    draws: the uniforms that drew the token; empty if the token is deterministic.
  """

  piece: str
  kind: str
  p: float
  q: float | None = None
  test: float | None = None
  draws: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Turn:
  """One iteration.

  Attributes:
    drafted: the valid drafted tokens, in the order of the tree's nodes.
    own: the target's token; None if the draft ended the sequence.
    draft_seconds: the time of the proposal.
    target_seconds: the time to score, verify and commit.
  """

  drafted: tuple[Token, ...]
  own: Token | None
  draft_seconds: float
  target_seconds: float

  @property
  def output(self) -> tuple[str, ...]:
    """The pieces that the iteration added to the output."""
    accepted = [token.piece for token in self.drafted if token.kind == "accepted"]
    return (*accepted, *([self.own.piece] if self.own else []))


@dataclasses.dataclass(frozen=True)
class Trace:
  """One decode.

  Attributes:
    text: the input's text.
    turns: the iterations.
    plain_seconds: plain decoding's time per token on this device.
  """

  text: str
  turns: tuple[Turn, ...]
  plain_seconds: float

  @property
  def num_tokens(self) -> int:
    """The number of the output's tokens."""
    return sum(len(turn.output) for turn in self.turns)


def record(
  texts: Sequence[str],
  target: Model,
  draft: Model | Mapping[str, Model] | None,
  vocabulary: str,
  *,
  drafter: Drafter | str | None = None,
  rule: Rule | str = "token",
  gamma: int | None = None,
  num_candidates: int = 1,
  sampling: Sampling = GREEDY,
  max_length: int = 128,
  seed: int = 0,
) -> list[Trace]:
  """Decodes texts one by one and records each iteration.

  The output of text n has the tokens of `api.generate` for the n-th input with policy
  'fixed'. The arguments are those of `api.generate`.
  """
  if draft is None and drafter is None:
    raise ValueError("A trace needs a draft or a drafter, got None. Give a draft.")
  words = {"gamma": gamma, "num_candidates": num_candidates, "policy": "fixed"}
  decoder, params = assembled(target, draft, drafter, rule, **words)
  decoder.check(sampling, max_length, 1)
  opened = open_vocabulary(vocabulary, vocab_size=decoder.target.config.vocab_size)
  eos_id = end_tokens(target, opened)
  start, propose, advance = _programs(decoder, sampling, max_length, eos_id)
  plain = compiled(Decoder(decoder.target), sampling, max_length, eos_id)
  # At T = 0 nothing is drawn or tested. Coupled draws use no uniforms.
  samples = not decoder.at(sampling)[2].certain
  traces = []
  for number, inputs, _ in padded_batches(encoded(texts, decoder.target, opened), 1):
    keys = keys_at(jax.random.key(seed), np.array([number]))
    state = start(params, inputs, keys)
    # The first calls compile the programs, before any call is timed.
    jax.block_until_ready(advance(params, *propose(params, state)))
    turns = []
    while not state.ended.all():
      draft_seconds, speculation = _timed(propose, params, state)
      target_seconds, (state, iteration) = _timed(advance, params, *speculation)
      drafted, own = _tokens(state, iteration, opened, decoder.drafter, samples)
      turns.append(Turn(drafted, own, draft_seconds, target_seconds))
    jax.block_until_ready(plain(params, inputs, keys))
    seconds, decoded = _timed(plain, params, inputs, keys)
    plain_seconds = seconds / int(decoded.statistics.emitted[0])
    traces.append(Trace(texts[number], tuple(turns), plain_seconds))
  return traces


def piece_of(vocabulary: Vocabulary, token: int) -> str:
  """Returns a token's piece, or the token's number in <> if there is no piece."""
  piece = vocabulary.piece(token) if token < vocabulary.vocab_size else ""
  return piece or f"<{token}>"


def _programs(
  decoder: Decoder, sampling: Sampling, max_length: int, eos_id: EndTokens
) -> tuple[Callable, ...]:
  """Returns three compiled programs: start, draft, and the other steps."""

  def context(params):
    return decoder.context(params, 1, sampling, max_length, eos_id)

  def start(params, inputs, keys):
    return context(params).first_state(inputs, keys)

  def propose(params, state):
    ctx = context(params)
    return draft(ctx, state, draws(ctx, state))

  def advance(params, state, proposal):
    ctx = context(params)
    uniforms = draws(ctx, state)
    state, logits, features = score(ctx, state, proposal)
    iteration = verify(ctx, proposal, logits, uniforms)
    after, iteration = commit(ctx, state, iteration, features)
    if ctx.rule.reads == "argmax":
      iteration = iteration.replace(target_probs=jax.nn.softmax(logits))
    return after, iteration

  return jax.jit(start), jax.jit(propose), jax.jit(advance)


def _tokens(
  after: DecodeState,
  iteration: Iteration,
  vocabulary: Vocabulary,
  drafter: Drafter,
  samples: bool,
) -> tuple[tuple[Token, ...], Token | None]:
  """Returns the valid drafted tokens of a one-row iteration, and the target's token."""
  proposal = iteration.proposal
  tree = proposal.tree
  probs = np.asarray(iteration.target_probs)[0]
  q = proposal.drafted_probs()[0].tolist()
  parents = np.broadcast_to(tree.parents, proposal.tokens.shape)[0].tolist()
  uniforms = np.asarray(iteration.uniforms)[0]
  draw_uniforms, tests = np.split(uniforms, [decisions_of(drafter)])
  has_q = proposal.draft_probs is not None
  # Draws belong to nodes only if each node has a decision, in the nodes' order.
  has_draws = has_q and decisions_of(drafter) == tree.size
  last = int(iteration.verdict.last[0])
  is_accepted = np.broadcast_to(tree.sees, (1, *tests.shape[:1] * 2))[0, last, 1:]
  drafted = []
  for index in np.flatnonzero(proposal.is_valid[0]):
    token = int(proposal.tokens[0, index])
    parent = parents[index]
    failure = "rejected" if parent == last else "discarded"
    drafted.append(
      Token(
        piece=piece_of(vocabulary, token),
        kind="accepted" if is_accepted[index] else failure,
        p=float(probs[parent, token]),
        q=q[index] if has_q else None,
        test=float(tests[index, -1]) if samples else None,
        draws=tuple(draw_uniforms[index].tolist()) if has_draws else (),
      )
    )
  if iteration.info.emitted[0] == iteration.info.accepted[0]:
    return tuple(drafted), None
  token = int(after.sequences[0, after.lengths[0] - 1])
  own = Token(
    piece=piece_of(vocabulary, token),
    kind="recovered" if any(x.kind == "rejected" for x in drafted) else "bonus",
    p=float(probs[last, token]),
    draws=tuple(tests[-1].tolist()) if samples else (),
  )
  return tuple(drafted), own


def _timed(program: Callable, *arguments: Any) -> tuple[float, Any]:
  """Returns the median time of five calls, in seconds, and the program's result."""
  seconds = []
  for _ in range(5):
    begin = time.perf_counter()
    result = jax.block_until_ready(program(*arguments))
    seconds.append(time.perf_counter() - begin)
  return statistics.median(seconds), result
