"""Traces of decodes, kept as JSON lines: what was drafted, by which draws, how long.

A line an input. `trace.page` shows them in a browser; `trace.iterations` in a terminal.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.api import encoded, padded_batches
from specdec_t5x.build import Model, together
from specdec_t5x.core.describe import describe
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.types import Rule
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.decoding.step import commit, decisions, draft, score, verify
from specdec_t5x.hugging_face import vocabulary as vocabularies
from specdec_t5x.hugging_face.vocabulary import Processor

Kind = Literal["accepted", "rejected", "discarded", "recovered", "bonus"]


@dataclasses.dataclass(frozen=True)
class Token:
  """A drafted token, or the target's own after a draft.

  Attributes:
    piece: of the vocabulary.
    kind: what became of it; of a tree's tokens that do not stand, those after the last
      accepted one are rejected, all others discarded.
    p: what the target's law gave it (at T = 0: its softmax at temperature 1).
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
  if not isinstance(decoder, SpeculativeDecoder):
    raise ValueError(
      "A trace is of speculative decoding: expected a draft or a drafter, got none."
    )
  settings = vocabularies.processor(vocabulary), sampling, max_length, seed
  return list(Recorder(decoder, params, *settings)(texts))


def pieces(processor: Processor, tokens: Sequence[int]) -> list[str]:
  """Returns the tokens' pieces; what the vocabulary has no text for gets a number."""
  known = processor.vocab_size()
  # Bytes are no pieces, but text.
  piece = getattr(processor, "id_to_piece", lambda token: processor.decode([token]))
  return [
    (piece(token) if token < known else "") or f"<{token}>"
    for token in map(int, tokens)
  ]


@dataclasses.dataclass(frozen=True)
class Recorder:
  """Decodes texts one by one and records each iteration.

  Attributes:
    decoder: what decodes; each iteration drafts (its policy rests in none).
    params: of its networks.
    processor: the vocabulary of target and draft.
    sampling: temperature, top-k, top-p.
    max_length: room for an output, in tokens.
    seed: of the sampling; text n has the draws of `generate`'s n-th input.
  """

  decoder: SpeculativeDecoder
  params: Mapping[str, Any]
  processor: Processor
  sampling: Sampling
  max_length: int = 128
  seed: int = 0

  def __post_init__(self):
    self.decoder.check(self.sampling, self.max_length, 1)

  def __call__(self, texts: Sequence[str]) -> Iterator[Trace]:
    """Yields the trace of each text."""
    ids = encoded(texts, self.decoder.target, self.processor)
    for text, (number, inputs, _) in zip(texts, padded_batches(ids, 1), strict=True):
      key = row_keys(jax.random.key(self.seed), 1, number)
      yield self._trace(text, inputs, key)

  def _trace(self, text, inputs, keys) -> Trace:
    start, propose, advance = self._programs
    piece = lambda token: pieces(self.processor, [token])[0]
    state, turns = start(self.params, inputs, keys), []
    drafted = propose(self.params, inputs, state)  # Compiled before they are timed.
    jax.block_until_ready(advance(self.params, inputs, state, drafted))
    while not state.ended.all():
      draft_seconds, drafted = _timed(propose, self.params, inputs, state)
      target_seconds, (state, facts) = _timed(
        advance, self.params, inputs, state, drafted
      )
      turns.append(_turn(facts, piece, draft_seconds, target_seconds))
    tokens = np.asarray(state.sequences[0])[
      int(state.starts[0]) : int(state.lengths[0])
    ]
    known = [token for token in tokens.tolist() if token < self.processor.vocab_size()]
    return Trace(
      text=text,
      output=self.processor.decode(known),
      settings={
        "drafter": describe(self.decoder.drafter),
        "rule": describe(self.decoder.rule),
        "sampling": describe(self.sampling),
      },
      turns=tuple(turns),
      plain_seconds=self._plain_seconds(inputs, keys),
    )

  @functools.cached_property
  def _programs(self):
    """Returns the loop's start, and an iteration's draft and rest, each compiled."""
    rest = self.sampling, self.max_length, self.processor.eos_id()

    def prepare(params, inputs, keys):
      return self.decoder.prepare(params, inputs, keys, *rest)

    def propose(params, inputs, state):
      # A step reads nothing of the new start, so the compiler drops the encoders.
      spec, _ = prepare(params, inputs, state.keys)
      return draft(spec, state, state.uniforms(decisions(spec.drafter)))

    def advance(params, inputs, state, drafted):
      spec, _ = prepare(params, inputs, state.keys)
      return _advance(spec, *drafted)

    return jax.jit(lambda *args: prepare(*args)[1]), jax.jit(propose), jax.jit(advance)

  @functools.cached_property
  def _plain(self):
    decoder = PlainDecoder(self.decoder.target)
    rest = self.sampling, self.max_length, self.processor.eos_id()
    decode = lambda params, inputs, keys: decoder.decode(params, inputs, keys, *rest)
    return jax.jit(decode)

  def _plain_seconds(self, inputs, keys) -> float:
    """Returns a token's seconds of plain decoding, reading the input included."""
    jax.block_until_ready(self._plain(self.params, inputs, keys))
    seconds, decoded = _timed(self._plain, self.params, inputs, keys)
    return seconds / int(decoded.statistics.emitted[0])


def _timed(program, *arguments):
  begin = time.perf_counter()
  result = jax.block_until_ready(program(*arguments))
  return time.perf_counter() - begin, result


def _advance(spec, state, proposal):
  """Returns the next state, and what a `Turn` says of the one row's iteration."""
  uniforms = state.uniforms(decisions(spec.drafter))
  state, logits, features = score(spec, state, proposal)
  iteration = verify(spec, proposal, logits, uniforms)
  after, iteration = commit(spec, state, iteration, features)
  verdict, info = iteration.verdict, iteration.info
  tree, tests = proposal.tree, uniforms[:, spec.drafter.decisions :]
  probs = iteration.target_probs
  probs = probs if spec.rule.reads_laws else jax.nn.softmax(probs)
  parents = jnp.broadcast_to(jnp.asarray(tree.parents), proposal.tokens.shape)[0]
  own = jnp.maximum(after.lengths[0] - 1, 0)
  facts = {
    "tokens": proposal.tokens[0],
    "counts": proposal.is_valid[0],
    "parents": parents,
    "path": tree.path(verdict.last)[0],
    "last": verdict.last[0],
    "accepted": info.accepted[0],
    "emitted": info.emitted[0],
    "p": probs[0, parents, proposal.tokens[0]],
    "tests": tests[0, :-1, -1],
    "own": after.sequences[0, own],
    "own_p": probs[0, verdict.last[0], after.sequences[0, own]],
    "own_draws": tests[0, -1],
    "samples": jnp.array(not spec.sampling.greedy),
  }
  if proposal.draft_probs is not None:
    facts["q"] = proposal.drafted_probs()[0]
    if spec.drafter.decisions == tree.size:  # A decision a node, in their order.
      facts["draws"] = uniforms[0, : tree.size]
  return after, facts


def _turn(facts, piece, draft_seconds, target_seconds) -> Turn:
  """Returns the iteration that the compiled program tells of in numbers."""
  facts = {name: np.asarray(value).tolist() for name, value in facts.items()}
  stand = facts["path"][1 : facts["accepted"] + 1]
  nodes = range(1, len(facts["tokens"]) + 1)
  drafted = [_drafted(facts, node, stand, piece) for node in nodes]
  drafted = tuple(token for token in drafted if token is not None)
  own = None
  if facts["emitted"] > facts["accepted"]:
    cut = any(token.kind == "rejected" for token in drafted)
    kind = "recovered" if cut else "bonus"
    own = Token(
      piece=piece(facts["own"]),
      kind=kind,
      p=facts["own_p"],
      parent=facts["last"],
      draws=tuple(facts["own_draws"]) if facts["samples"] else (),
    )
  return Turn(drafted, own, draft_seconds, target_seconds)


def _drafted(facts, node, stand, piece) -> Token | None:
  """Returns a drafted node's token; None where it did not count."""
  at, parent = node - 1, facts["parents"][node - 1]
  if not facts["counts"][at]:
    return None
  kind = "rejected" if parent == facts["last"] else "discarded"
  if node in stand:
    kind = "accepted"
  return Token(
    piece=piece(facts["tokens"][at]),
    kind=kind,
    p=facts["p"][at],
    q=facts["q"][at] if "q" in facts else None,
    parent=parent,
    # At T = 0 nothing is drawn or tested.
    test=facts["tests"][at] if facts["samples"] else None,
    draws=tuple(facts["draws"][at]) if "draws" in facts else (),
  )
