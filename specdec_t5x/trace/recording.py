"""Traces of decodes, kept as JSON lines: what was drafted, by which draws, how long.

A line an input. `trace.page` shows them in a browser, `trace.render` in a terminal.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from specdec_t5x.api import compiled, encoded, end_tokens, padded_batches
from specdec_t5x.build import Model, together
from specdec_t5x.core.describe import describe
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.ends import EndTokens
from specdec_t5x.core.greedy import rule_at
from specdec_t5x.core.types import Rule
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.state import DecodeState, row_keys
from specdec_t5x.decoding.step import (
  Iteration,
  commit,
  draft,
  draws,
  score,
  verify,
)
from specdec_t5x.vocabularies.base import Vocabulary
from specdec_t5x.vocabularies.opening import open_vocabulary

Kind = Literal["accepted", "rejected", "discarded", "recovered", "bonus"]


@dataclasses.dataclass(frozen=True)
class Token:
  """A drafted token, or the target's own after a draft.

  Attributes:
    piece: of the vocabulary.
    kind: what became of it; of a tree's tokens that do not stand, those after the last
      accepted one are rejected, all others discarded.
    p: what the target's distribution gave it (at T = 0: its softmax at temperature 1).
    q: what it was drawn from gave it; None where it is certain, no draw.
    parent: the drafted node before it in its iteration, from 1; 0 is the last known
      token.
    test: the uniform that its acceptance was tested with; None where it is no draft's.
    draws: the uniforms that it was drawn with; none where it is certain.
  """

  piece: str
  kind: Kind
  p: float
  q: float | None = None
  parent: int = 0
  test: float | None = None
  draws: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Turn:
  """One iteration.

  Attributes:
    drafted: the tokens that counted, by the order of the tree's nodes.
    own: the target's own token; None where the draft ended the sequence.
    draft_seconds: that proposing took.
    target_seconds: that the rest of the iteration took: scoring, verifying, committing.
  """

  drafted: tuple[Token, ...]
  own: Token | None
  draft_seconds: float
  target_seconds: float

  @property
  def output(self) -> tuple[str, ...]:
    """What the output gained."""
    stand = [token.piece for token in self.drafted if token.kind == "accepted"]
    return (*stand, *([self.own.piece] if self.own else []))


@dataclasses.dataclass(frozen=True)
class Trace:
  """One decode.

  Attributes:
    text: the input.
    output: the decoded text.
    settings: drafter, rule and sampling, in words.
    turns: its iterations.
    plain_seconds: a token of plain decoding, on the same device; None if not timed.
  """

  text: str
  output: str
  settings: Mapping[str, Any]
  turns: tuple[Turn, ...]
  plain_seconds: float | None = None

  @property
  def num_tokens(self) -> int:
    """Tokens of the output."""
    return sum(len(turn.output) for turn in self.turns)


def save(traces: Iterable[Trace], path: str) -> None:
  """Writes traces, a line each."""
  with open(path, "w", encoding="utf-8") as lines:
    for trace in traces:
      lines.write(json.dumps(dataclasses.asdict(trace), ensure_ascii=False) + "\n")


def load(path: str) -> list[Trace]:
  """Reads what `save` wrote.

  Raises:
    ValueError: where a line is no trace.
  """
  with open(path, encoding="utf-8") as lines:
    return [_read(line, f"{path}, line {n}") for n, line in enumerate(lines, start=1)]


def _read(line: str, where: str) -> Trace:
  try:
    fields = json.loads(line)
    turns = tuple(
      Turn(
        drafted=tuple(map(_token, turn["drafted"])),
        own=turn["own"] and _token(turn["own"]),
        draft_seconds=float(turn["draft_seconds"]),
        target_seconds=float(turn["target_seconds"]),
      )
      for turn in fields.pop("turns")
    )
    return Trace(**fields, turns=turns)
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f"{where}: expected a trace as `scripts/show_trace.py --record=FILE` writes it, "
      f"got {line[:60]!r} ({type(error).__name__}: {error})."
    ) from error


def _token(fields: Mapping[str, Any]) -> Token:
  return Token(**{**fields, "draws": tuple(fields["draws"])})


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
  """Decodes texts one by one and tells what each iteration did.

  The output of text n has the tokens that `api.generate` with policy 'fixed' gives for
  it as its n-th input; arguments as there.

  Raises:
    ValueError: as there.
  """
  decoder, params = together(
    target,
    draft,
    drafter,
    rule,
    gamma=gamma,
    num_candidates=num_candidates,
    policy="fixed",
  )
  if decoder.drafter is None:
    raise ValueError(
      "A trace is of speculative decoding: expected a draft or a drafter, got none."
    )
  decoder.check(sampling, max_length, 1)
  found = open_vocabulary(vocabulary, vocab_size=decoder.target.config.vocab_size)
  eos_id = end_tokens(target, found)
  recorder = _Recorder(decoder, params, found, eos_id, sampling, max_length)
  batches = padded_batches(encoded(texts, decoder.target, found), 1)
  keys = lambda number: row_keys(jax.random.key(seed), 1, number)
  return [
    recorder.trace(text, inputs, keys(number))
    for text, (number, inputs, _) in zip(texts, batches, strict=True)
  ]


def piece_of(vocabulary: Vocabulary, token: int) -> str:
  """Returns a token's piece; what the vocabulary has no text for gets a number."""
  piece = vocabulary.piece(token) if token < vocabulary.vocab_size else ""
  return piece or f"<{token}>"


@dataclasses.dataclass(frozen=True)
class _Recorder:
  """Decodes texts one by one and records each iteration.

  Attributes:
    decoder: what decodes; each iteration drafts (its policy rests in none).
    params: of its networks.
    vocabulary: of target and draft.
    eos_id: the tokens that end an output.
    sampling: temperature, top-k, top-p.
    max_length: the most tokens of an output.
  """

  decoder: SpeculativeDecoder
  params: Mapping[str, Any]
  vocabulary: Vocabulary
  eos_id: EndTokens
  sampling: Sampling
  max_length: int

  def trace(self, text, inputs, keys) -> Trace:
    """Returns the trace of one text, of tokens `inputs`."""
    start, propose, advance = self._programs
    state, turns = start(self.params, inputs, keys), []
    drafted = propose(self.params, inputs, state)  # Compiled before they are timed.
    jax.block_until_ready(advance(self.params, inputs, *drafted))
    while not state.ended.all():
      draft_seconds, drafted = _timed(propose, self.params, inputs, state)
      target_seconds, (state, iteration) = _timed(
        advance, self.params, inputs, *drafted
      )
      turn = self._turn(state, iteration)
      turns.append(Turn(*turn, draft_seconds, target_seconds))
    begin, end = int(state.starts[0]), int(state.lengths[0])
    tokens = np.asarray(state.sequences[0])[begin:end].tolist()
    return Trace(
      text=text,
      output=self.vocabulary.decode(tokens),
      settings={
        "drafter": describe(self.decoder.drafter),
        "rule": describe(self.decoder.rule),
        "sampling": describe(self.sampling),
      },
      turns=tuple(turns),
      plain_seconds=self._plain_seconds(inputs, keys),
    )

  def _turn(self, after: DecodeState, iteration: Iteration):
    """Returns the drafted tokens that counted in the one row's iteration, and its own.

    Args:
      after: the state that the iteration led to.
      iteration: all of it, its probabilities no logits.
    """
    drafter, proposal = self.decoder.drafter, iteration.proposal
    # At T = 0 nothing is drawn or tested; where draws are coupled, nothing by uniforms.
    samples = not rule_at(self.decoder.rule, self.sampling)[1].certain
    tree, probs = proposal.tree, np.asarray(iteration.target_probs)[0]
    tokens, q = np.asarray(proposal.tokens)[0], proposal.drafted_probs()[0].tolist()
    parents = np.broadcast_to(tree.parents, proposal.tokens.shape)[0].tolist()
    drawn, tests = np.split(np.asarray(iteration.uniforms)[0], [drafter.decisions])
    has_q = proposal.draft_probs is not None
    # A decision a node, in their order.
    has_draws = has_q and drafter.decisions == tree.size
    last = int(iteration.verdict.last[0])
    stand = np.broadcast_to(tree.sees, (1, *tests.shape[:1] * 2))[0, last, 1:]
    drafted = []
    for at in np.flatnonzero(proposal.is_valid[0]):
      token, parent = int(tokens[at]), parents[at]
      missed = "rejected" if parent == last else "discarded"
      drafted.append(
        Token(
          piece=piece_of(self.vocabulary, token),
          kind="accepted" if stand[at] else missed,
          p=float(probs[parent, token]),
          q=q[at] if has_q else None,
          parent=parent,
          test=float(tests[at, -1]) if samples else None,
          draws=tuple(drawn[at].tolist()) if has_draws else (),
        )
      )
    if iteration.info.emitted[0] == iteration.info.accepted[0]:
      return tuple(drafted), None
    own = int(after.sequences[0, after.lengths[0] - 1])
    own = Token(
      piece=piece_of(self.vocabulary, own),
      kind="recovered" if any(x.kind == "rejected" for x in drafted) else "bonus",
      p=float(probs[last, own]),
      parent=last,
      draws=tuple(tests[-1].tolist()) if samples else (),
    )
    return tuple(drafted), own

  @functools.cached_property
  def _programs(self):
    """Returns the loop's start, and an iteration's draft and rest, each compiled."""
    rest = self.sampling, self.max_length, self.eos_id

    def prepare(params, inputs, keys):
      return self.decoder.prepare(params, inputs, keys, *rest)

    def propose(params, inputs, state):
      # A step reads nothing of the new start, so the compiler drops the encoders.
      spec, _ = prepare(params, inputs, state.keys)
      return draft(spec, state, draws(spec, state))

    def advance(params, inputs, state, proposal):
      spec, _ = prepare(params, inputs, state.keys)
      uniforms = draws(spec, state)
      state, logits, features = score(spec, state, proposal)
      iteration = verify(spec, proposal, logits, uniforms)
      after, iteration = commit(spec, state, iteration, features)
      if not spec.rule.reads_probs:
        iteration = iteration.replace(target_probs=jax.nn.softmax(logits))
      return after, iteration

    return jax.jit(lambda *args: prepare(*args)[1]), jax.jit(propose), jax.jit(advance)

  def _plain_seconds(self, inputs, keys) -> float:
    """Returns a token's seconds of plain decoding, reading the input included."""
    plain = PlainDecoder(self.decoder.target)
    run = compiled(plain, self.sampling, self.max_length, self.eos_id)
    jax.block_until_ready(run(self.params, inputs, keys))
    seconds, decoded = _timed(run, self.params, inputs, keys)
    return seconds / int(decoded.statistics.emitted[0])


def _timed(program, *arguments):
  begin = time.perf_counter()
  result = jax.block_until_ready(program(*arguments))
  return time.perf_counter() - begin, result
