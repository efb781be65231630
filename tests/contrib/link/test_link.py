"""A draft that is lost, late, restarted or sends nonsense changes no output."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from specdec_t5x.contrib.link import client, wire
from specdec_t5x.contrib.link.client import Lost, Remote
from specdec_t5x.contrib.link.drafter import Link, Setup
from specdec_t5x.contrib.link.server import Answers
from specdec_t5x.contrib.link.wire import Ask
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.contrib.truncation import Truncation
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.state import row_keys
from tests.contrib.link.local import Local, asker_of, drafting_of, honest, never
from tests.hash_model import HashModel, speculation

pytestmark = pytest.mark.slow

TARGET, DRAFT = (HashModel(seed, vocab_size=7, eos_bias=-2.0) for seed in (3, 4))
ROWS = 4
LENGTH = 30
SAMPLED = Sampling(0.7, 3)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
  monkeypatch.setattr(client, "_FIRST_WAIT", 0.0)


def program(drafter, sampling):
  keys = row_keys(jax.random.key(1), ROWS)

  @jax.jit
  def run():
    return generate(
      *speculation(TARGET, drafter, RULES["token"], sampling, keys, LENGTH)
    )

  return run


@functools.cache
def linked_program(sampling):
  """Returns a remote with a replaceable asker, and a program that uses the remote."""
  remote = Local.of(never)
  return remote, program(Link(remote, 3, 4), sampling)


def linked(answer, sampling=GREEDY):
  remote, run = linked_program(sampling)
  remote.asker = asker_of(answer)
  return jax.block_until_ready(run()), remote.counts()


@pytest.fixture(scope="module")
def here():
  """Returns decodes with the draft in this process."""
  draft = SparseDraft(DRAFT, 3, 4)
  return {at: program(draft, at)() for at in (GREEDY, SAMPLED)}


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=str)
def test_a_link_gives_the_outputs_of_a_local_draft(sampling, here):
  """The size of a reply depends only on the number of rows, not on the draws."""
  sizes = {}
  answer = honest(DRAFT)

  def measure(request):
    reply = answer(request)
    rows = sum(wire.parts_of(request)[2][0])
    if rows:
      sizes.setdefault(rows, set()).add(len(reply))
    return reply

  found, counts = linked(measure, sampling)
  np.testing.assert_array_equal(found.tokens, here[sampling].tokens)
  np.testing.assert_array_equal(
    found.statistics.accepted, here[sampling].statistics.accepted
  )
  assert counts["lost"] == counts["skipped"] == 0
  assert counts["tokens"] == 3 * found.statistics.target_calls.sum()
  assert sizes
  assert all(len(found) == 1 for found in sizes.values())


def failing(answer, fails):
  """Returns an answer function that calls `fails` with each request's number."""
  numbers = itertools.count()
  return lambda request: fails(next(numbers), lambda: answer(request))


def dies(number, answer):
  if number >= 2:
    raise Lost("killed")
  return answer()


def comes_and_goes(number, answer):
  reply = answer()  # The draft has drafted, but the reply is lost.
  if number % 2:
    raise Lost("too late")
  return reply


def wrong(number, reply):
  """Returns a malformed reply, or a reply of a different session or program."""
  session, status, parts = wire.parts_of(reply)
  return (
    b"\x80\x04pickle",
    wire.message(12345, status, *parts),
    reply[:-1],
    reply.replace(wire.MAGIC.encode(), b"SSH"),
    wire.message(session, [status], *parts),
    wire.message(session, status, {"a": 1}),
    wire.message(session, status, *parts[:-1], None),
    wire.message(session, status, *parts, b""),
  )[number]


def garbage(number, answer):
  return wrong(number, answer()) if number < 8 else answer()


@pytest.mark.parametrize("fails", [dies, comes_and_goes, garbage])
def test_failures_change_no_output(fails, here):
  found, counts = linked(failing(honest(DRAFT), fails))
  np.testing.assert_array_equal(found.tokens, here[GREEDY].tokens)
  assert counts["lost"] > 0
  assert (found.statistics.target_calls >= here[GREEDY].statistics.target_calls).all()


def test_a_lost_draft_is_asked_again_after_a_wait(here, monkeypatch):
  """The target decodes without drafts during the wait."""
  monkeypatch.setattr(client, "_FIRST_WAIT", 60.0)
  found, counts = linked(never)
  np.testing.assert_array_equal(found.tokens, here[GREEDY].tokens)
  assert found.statistics.drafted.sum() == counts["requests"] == 0
  assert counts["lost"] == 1
  assert counts["skipped"] > 5


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=str)
def test_a_restarted_draft_receives_the_whole_session_again(sampling, here):
  answers = (honest(DRAFT), honest(DRAFT))
  asked = []

  def answer(request):
    asked.append(request)
    return answers[len(asked) > 3](request)

  found, counts = linked(answer, sampling)
  np.testing.assert_array_equal(found.tokens, here[sampling].tokens)
  assert counts["lost"] == 0


@pytest.mark.parametrize(
  ("knobs", "says"),
  [
    ({"address": ""}, "needs an address"),
    ({"timeout_ms": 0}, "timeout_ms of a link must be above 0"),
  ],
)
def test_settings_out_of_range_are_refused(knobs, says):
  with pytest.raises(ValueError, match=says):
    Remote(**{"address": "localhost:1", **knobs})


def test_top_k_beyond_the_vocabulary_keeps_every_token():
  """LINK_TOPK and TOPK of any size fit into a message."""
  for top_k in (8, 2**32, 2**70):
    setup = Link(Local.of(never), 3, top_k)._setup(Sampling(0.7, top_k), 7, 1, 2, 3)
    assert setup == Setup(3, Truncation(7), Sampling(0.7, 7), 7, 1, 2, 3)


def asked(number, setup, opens):
  """Returns a request with ended rows only; opens a session if `opens`."""
  lengths = np.zeros(setup.rows, int)
  tokens = np.zeros((setup.rows, setup.slots))
  uniforms = np.zeros((setup.rows, 3, 0))
  ask = Ask(lengths > 0, lengths, tokens, uniforms, tokens[:, :0] if opens else None)
  return wire.message(
    number, dataclasses.astuple(setup) if opens else None, *ask.packed(setup)
  )


def test_a_draft_has_one_session_and_refuses_other_requests():
  answers = Answers(drafting_of(DRAFT))
  setup = Setup(3, Truncation(4), GREEDY, DRAFT.vocab_size, 2, 0, 40)

  def status(request):
    return wire.parts_of(answers.answer(request))[1]

  requests = [(1, True), (1, False), (2, True), (1, False), (2, False)]
  found = [status(asked(number, setup, opens)) for number, opens in requests]
  assert found == [wire.OK, wire.OK, wire.OK, wire.NO_SESSION, wire.OK]
  foreign = dataclasses.replace(setup, vocab_size=5)
  assert status(asked(2, foreign, True)) == "the draft's vocabulary has 7 tokens."
  assert status(asked(2, setup, False)) == wire.OK
  for request in (b"\0", b"SL\0\0\0\0\0"):
    assert "Expected a message of a link" in status(request)


def test_two_targets_take_turns_at_a_draft(here):
  """Each target opens its session again, and no draft is lost."""
  answer = honest(DRAFT)
  others = asker_of(answer)
  setup = Setup(3, Truncation(4), GREEDY, DRAFT.vocab_size, 1, 2, 9)
  arrays = (np.ones((1, 2)), np.ones((1, 9)), np.ones(1, int), np.zeros(1, bool))

  def in_turns(request):
    others.ask(setup, *arrays, np.zeros((1, 3, 0)))
    return answer(request)

  found, counts = linked(in_turns)
  np.testing.assert_array_equal(found.tokens, here[GREEDY].tokens)
  assert counts["lost"] == others.counts.lost == 0
  assert counts["requests"] > 2


def test_a_run_without_an_answering_draft_does_not_begin():
  allowed = []
  over_grpc = client._over_grpc("localhost:1")

  def timed(request, seconds):
    allowed.append(seconds)
    return over_grpc(request, seconds)

  with pytest.raises(ValueError, match=r"No draft answers at localhost:1 .*-m specdec"):
    client.Asker(Remote("localhost:1"), timed).check(7)
  assert 0 < sum(allowed) < 15  # The most seconds to wait, not the elapsed seconds.
