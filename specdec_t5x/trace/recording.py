"""Traces of decodes as JSON lines: drafted tokens, random draws and times.

Each line is a trace. `trace.page` shows traces in a browser, `trace.render` as text.
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
from specdec_t5x.core.greedy import rule_at
from specdec_t5x.core.types import EndTokens, Rule
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.state import DecodeState, row_keys
from specdec_t5x.decoding.step import Iteration, commit, draft, draws, score, verify
from specdec_t5x.vocabularies.base import Vocabulary
from specdec_t5x.vocabularies.opening import open_vocabulary

Kind = Literal["accepted", "rejected", "discarded", "recovered", "bonus"]


@dataclasses.dataclass(frozen=True)
class Token:
  """A drafted token, or the target's token after a draft.

  Attributes:
    piece: the token's piece in the vocabulary.
    kind: the token's outcome. In a tree, the tokens without acceptance are rejected if
      they are children of the last accepted token, else discarded.
    p: the token's probability under the target (at T = 0: softmax at temperature 1).
    q: the token's probability under the draft; None if the draft is deterministic.
    parent: the number of the token's parent among the iteration's drafted nodes, from
      1; 0 is the last known token.
    test: the uniform of the acceptance test; None if no uniform tested the token.
    draws: the uniforms that drew the token; empty if the token is deterministic.
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
    pieces = [token.piece for token in self.drafted if token.kind == "accepted"]
    if self.own:
      pieces.append(self.own.piece)
    return tuple(pieces)


@dataclasses.dataclass(frozen=True)
class Trace:
  """One decode.

  Attributes:
    text: the input's text.
    output: the output's text.
    settings: descriptions of drafter, rule and sampling.
    turns: the iterations.
    plain_seconds: plain decoding's time per token on this device; None if not timed.
  """

  text: str
  output: str
  settings: Mapping[str, Any]
  turns: tuple[Turn, ...]
  plain_seconds: float | None = None

  @property
  def num_tokens(self) -> int:
    """The number of the output's tokens."""
    return sum(len(turn.output) for turn in self.turns)


def save(traces: Iterable[Trace], path: str) -> None:
  """Writes a line per trace."""
  with open(path, "w", encoding="utf-8") as lines:
    for trace in traces:
      lines.write(json.dumps(dataclasses.asdict(trace), ensure_ascii=False) + "\n")


def load(path: str) -> list[Trace]:
  """Reads the traces that `save` wrote.

  Raises:
    ValueError: if a line is no trace.
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
      f"{where}: expected a trace written by `scripts/show_trace.py --record=FILE`, "
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
  """Decodes texts one by one and records each iteration.

  The output of text n has the tokens of `api.generate` for the n-th input with policy
  'fixed'. The arguments are those of `api.generate`.

  Raises:
    ValueError: if `api.generate` raises a ValueError, or if nothing drafts.
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
      "A trace of speculative decoding needs a draft or a drafter, got None. Give a "
      "draft."
    )
  decoder.check(sampling, max_length, 1)
  opened = open_vocabulary(vocabulary, vocab_size=decoder.target.config.vocab_size)
  eos_id = end_tokens(target, opened)
  recorder = _Recorder(decoder, params, opened, eos_id, sampling, max_length)
  batches = padded_batches(encoded(texts, decoder.target, opened), 1)
  traces = []
  for text, (number, inputs, _) in zip(texts, batches, strict=True):
    keys = row_keys(jax.random.key(seed), 1, number)
    traces.append(recorder.trace(text, inputs, keys))
  return traces


def piece_of(vocabulary: Vocabulary, token: int) -> str:
  """Returns a token's piece, or the token's number in <> if there is no piece."""
  piece = vocabulary.piece(token) if token < vocabulary.vocab_size else ""
  return piece or f"<{token}>"


@dataclasses.dataclass(frozen=True)
class _Recorder:
  """Decodes texts one by one and records each iteration.

  Attributes:
    decoder: the decoder. The decoder's policy makes every iteration draft.
    params: the parameters of the decoder's networks.
    vocabulary: the vocabulary of target and draft.
    eos_id: the tokens that end an output.
    sampling: temperature, top-k and top-p.
    max_length: the most tokens of an output.
  """

  decoder: SpeculativeDecoder
  params: Mapping[str, Any]
  vocabulary: Vocabulary
  eos_id: EndTokens
  sampling: Sampling
  max_length: int

  def trace(self, text, inputs, keys) -> Trace:
    """Returns the trace of a text with the tokens `inputs`."""
    start, propose, advance = self._programs
    state = start(self.params, inputs, keys)
    turns = []
    # The first calls compile the programs, before any call is timed.
    speculation = propose(self.params, inputs, state)
    jax.block_until_ready(advance(self.params, inputs, *speculation))
    while not state.ended.all():
      draft_seconds, speculation = _timed(propose, self.params, inputs, state)
      target_seconds, (state, iteration) = _timed(
        advance, self.params, inputs, *speculation
      )
      drafted, own = self._turn(state, iteration)
      turns.append(Turn(drafted, own, draft_seconds, target_seconds))
    begin = int(state.starts[0])
    end = int(state.lengths[0])
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
    """Returns the valid drafted tokens of a one-row iteration, and the target's token.

    `after` is the state after the iteration; `target_probs` are no logits.
    """
    drafter = self.decoder.drafter
    proposal = iteration.proposal
    # At T = 0 nothing is drawn or tested. Coupled draws use no uniforms.
    samples = not rule_at(self.decoder.rule, self.sampling)[1].certain
    tree = proposal.tree
    probs = np.asarray(iteration.target_probs)[0]
    tokens = np.asarray(proposal.tokens)[0]
    q = proposal.drafted_probs()[0].tolist()
    parents = np.broadcast_to(tree.parents, proposal.tokens.shape)[0].tolist()
    draw_uniforms, tests = np.split(
      np.asarray(iteration.uniforms)[0], [drafter.decisions]
    )
    has_q = proposal.draft_probs is not None
    # Draws belong to nodes only if each node has a decision, in the nodes' order.
    has_draws = has_q and drafter.decisions == tree.size
    last = int(iteration.verdict.last[0])
    is_accepted = np.broadcast_to(tree.sees, (1, *tests.shape[:1] * 2))[0, last, 1:]
    drafted = []
    for index in np.flatnonzero(proposal.is_valid[0]):
      token = int(tokens[index])
      parent = parents[index]
      failure = "rejected" if parent == last else "discarded"
      drafted.append(
        Token(
          piece=piece_of(self.vocabulary, token),
          kind="accepted" if is_accepted[index] else failure,
          p=float(probs[parent, token]),
          q=q[index] if has_q else None,
          parent=parent,
          test=float(tests[index, -1]) if samples else None,
          draws=tuple(draw_uniforms[index].tolist()) if has_draws else (),
        )
      )
    if iteration.info.emitted[0] == iteration.info.accepted[0]:
      return tuple(drafted), None
    token = int(after.sequences[0, after.lengths[0] - 1])
    own = Token(
      piece=piece_of(self.vocabulary, token),
      kind="recovered" if any(x.kind == "rejected" for x in drafted) else "bonus",
      p=float(probs[last, token]),
      parent=last,
      draws=tuple(tests[-1].tolist()) if samples else (),
    )
    return tuple(drafted), own

  @functools.cached_property
  def _programs(self):
    """Returns three compiled programs: start, draft, and the other steps."""

    def prepare(params, inputs, keys):
      return self.decoder.prepare(
        params, inputs, keys, self.sampling, self.max_length, self.eos_id
      )

    def start(params, inputs, keys):
      _, state = prepare(params, inputs, keys)
      return state

    def propose(params, inputs, state):
      # A step does not use the new start state, so the compiler drops the encoders.
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

    return jax.jit(start), jax.jit(propose), jax.jit(advance)

  def _plain_seconds(self, inputs, keys) -> float:
    """Returns the time per token of plain decoding, encoder included."""
    plain = PlainDecoder(self.decoder.target)
    run = compiled(plain, self.sampling, self.max_length, self.eos_id)
    jax.block_until_ready(run(self.params, inputs, keys))
    seconds, decoded = _timed(run, self.params, inputs, keys)
    return seconds / int(decoded.statistics.emitted[0])


def _timed(program, *arguments):
  begin = time.perf_counter()
  result = jax.block_until_ready(program(*arguments))
  return time.perf_counter() - begin, result
