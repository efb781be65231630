"""A draft that is lost, late, killed, restarted or wrong changes no output."""

import dataclasses
import functools
import itertools
import subprocess
import sys

import jax
import numpy as np
import pytest
import t5x

from lab.link import process
from specdec_t5x import api
from specdec_t5x.contrib.link import __main__ as link_command
from specdec_t5x.contrib.link import wire
from specdec_t5x.contrib.link.client import Lost, Remote
from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.contrib.link.server import Drafting
from specdec_t5x.contrib.link.wire import Ask, Setup
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.contrib.truncation import Truncation
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.ways import assembled
from tests import commands
from tests.contrib.link.local import Local, asker_of, honest, never
from tests.e2e import runs
from tests.hash_model import HashModel, speculation
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow

TARGET, DRAFT = (HashModel(seed, vocab_size=7, eos_bias=-2.0) for seed in (3, 4))
ROWS = 4
LENGTH = 30
SAMPLED = Sampling(0.7, 3)


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
  return remote, program(Link(remote, 3, Truncation(4)), sampling)


def linked(answer, sampling=GREEDY, first_wait=0.0):
  remote, run = linked_program(sampling)
  remote.asker = asker_of(answer, first_wait)
  return jax.block_until_ready(run()), remote.counts()


@pytest.fixture(scope="module")
def here():
  """Returns decodes with the draft in this process."""
  draft = SparseDraft(DRAFT, 3, Truncation(4))
  return {at: program(draft, at)() for at in (GREEDY, SAMPLED)}


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=str)
def test_a_link_gives_the_outputs_of_a_local_draft(sampling, here):
  """The size of a reply depends only on the number of rows, not on the draws.

  A restarted draft receives the session again.
  """
  answers = honest(DRAFT), honest(DRAFT)
  asked = []
  sizes = {}

  def measure(request):
    asked.append(request)
    reply = answers[len(asked) > 3](request)
    rows = np.count_nonzero(np.frombuffer(wire.parts_of(request)[2], "<u2"))
    status, *_ = wire.parts_of(reply)
    if status == wire.OK:
      sizes.setdefault(rows, set()).add(len(reply))
    return reply

  found, counts = linked(measure, sampling)
  np.testing.assert_array_equal(found.tokens, here[sampling].tokens)
  np.testing.assert_array_equal(
    found.statistics.accepted, here[sampling].statistics.accepted
  )
  assert counts["lost"] == counts["skipped"] == 0
  # One request of all requests found no session.
  assert counts["requests"] == len(asked) - 1
  assert counts["tokens"] == 3 * found.statistics.target_calls.sum()
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


def garbage(number, answer):
  """Returns malformed replies, then valid replies."""
  reply = answer()
  status, *parts = wire.parts_of(reply)
  wrong = (
    b"\x80\x04pickle",
    wire.message(),
    reply[:-1],
    reply.replace(wire.MAGIC.encode(), b"SSH"),
    wire.message([status], *parts),
    wire.message(status, {"a": 1}),
    wire.message(status, *parts[:-1], None),
    wire.message(status, *parts, b""),
  )
  return wrong[number] if number < len(wrong) else reply


@pytest.mark.parametrize("fails", [dies, comes_and_goes, garbage])
def test_failures_change_no_output(fails, here):
  found, counts = linked(failing(honest(DRAFT), fails))
  np.testing.assert_array_equal(found.tokens, here[GREEDY].tokens)
  assert counts["lost"] > 0
  assert (found.statistics.target_calls >= here[GREEDY].statistics.target_calls).all()


def test_a_lost_draft_is_asked_again_after_a_wait(here):
  """The target decodes without drafts during the wait."""
  found, counts = linked(never, first_wait=60.0)
  np.testing.assert_array_equal(found.tokens, here[GREEDY].tokens)
  assert found.statistics.drafted.sum() == counts["requests"] == 0
  assert counts["lost"] == 1
  assert counts["skipped"] > 5


def test_a_draft_has_one_session_and_refuses_other_requests():
  answer = honest(DRAFT)
  setup = Setup(3, Truncation(4), GREEDY, DRAFT.vocab_size, 2, 0, 40)

  def status(number, setup, opens):
    tokens = np.zeros((2, 40))
    source = tokens[:, :0] if opens else None
    ask = Ask(np.zeros(2, int), tokens, np.zeros((2, 3, 0)), source)
    opening = dataclasses.astuple(setup) if opens else None
    request = wire.message(number, opening, *ask.packed(setup))
    return wire.parts_of(answer(request))[0]

  requests = [(None, False), (1, True), (1, False), (2, True), (1, False), (2, False)]
  found = [status(number, setup, opens) for number, opens in requests]
  lost = wire.NO_SESSION
  assert found == [lost, wire.OK, wire.OK, wire.OK, lost, wire.OK]
  foreign = dataclasses.replace(setup, vocab_size=5)
  assert status(2, foreign, True) == "the draft's vocabulary has 7 tokens."
  assert status(2, setup, False) == wire.OK
  for request in (b"\0", b"SL\0\0\0\0\0", wire.message(2)):
    assert wire.parts_of(answer(request))[0] not in (wire.OK, lost)


# ---- Two real processes. ----

INPUTS = np.array([[5, 6, 7, 8, 1], [9, 3, 1, 0, 0], [12, 30, 2, 1, 0]])
ROOM = 20


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  root = tmp_path_factory.mktemp("pair")
  paths = [
    tiny.save_t5x(root / name, config, seed=seed)
    for name, config, seed in (("t", tiny.TARGET, 1), ("d", tiny.DRAFT, 2))
  ]
  return paths[1], *map(api.load_model, paths)


@pytest.fixture(scope="module")
def address(models):
  with process.drafting(models[0]) as address:
    yield address


def decoded(target, draft, drafter, sampling):
  decoder, params = assembled(target, draft, drafter)
  run = api.compiled(decoder, sampling, ROOM, 1)
  return run(params, INPUTS, row_keys(jax.random.key(0), len(INPUTS)))


@pytest.mark.parametrize("kept", [4, 0])
def test_both_sides_have_bitwise_equal_distributions(kept, models, address):
  setup = Setup(3, Truncation(kept), Sampling(), tiny.DRAFT.vocab_size, 3, 5, 12)
  uniforms = np.random.default_rng(0).integers(0, 2**24, (3, 3, setup.draws)) / 2**24
  sequences = np.zeros((3, 12), np.int32)
  ask = Ask(np.ones(3, np.int32), sequences, uniforms.astype(np.float32), INPUTS)
  there, has_draft = Remote(address).asker.ask(setup, ask)
  drafting = Drafting.of(models[2])
  drafting.open(1, setup)
  jax.tree.map(np.testing.assert_array_equal, there, drafting.draft(ask))
  assert has_draft.all()


def test_a_killed_draft_costs_no_token(models):
  path, target, draft = models
  command = [sys.executable, "-m", "specdec_t5x.contrib.link", "--draft", path]
  killed = subprocess.Popen(
    [*command, "--address", "localhost:0"], stdout=subprocess.PIPE, text=True
  )
  remote = Remote(process.address_of(killed))
  ask = remote.asker.ask
  asked = []

  def kills(setup, request):
    asked.append(1)
    if len(asked) == 4:
      killed.kill()
      killed.wait()
    return ask(setup, request)

  remote.asker.ask = kills
  there = decoded(target, None, Link(remote, 3, Truncation(8)), GREEDY)
  here = decoded(target, draft, SparseDraft(draft.network, 3, Truncation(8)), GREEDY)
  np.testing.assert_array_equal(there.tokens, here.tokens)
  counts = remote.counts()
  assert counts["requests"] == 3
  assert counts["lost"] >= 1


def test_a_draft_of_another_vocabulary_is_refused(models, address):
  other = "the target's vocab_size is 5, and the vocab_size of the draft"
  with pytest.raises(ValueError, match=other):
    Remote(address).asker.check(5)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
  return runs.tiny_pair(tmp_path_factory.mktemp("job"), examples=4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.skipif(not hasattr(t5x, "PROVIDER"), reason="of t5x_runtime's command")
def test_a_job_with_too_large_a_batch_does_not_begin(
  address, job, tmp_path, monkeypatch
):
  monkeypatch.chdir(runs.ROOT)
  files = "configs/spec_ende.gin", "configs/contrib/link.gin"
  sizes = {"BATCH_SIZE": 2**15, "GAMMA": 9, "LINK_TOPK": 0}
  settings = {"TEMPERATURE": 1.0, "LINK_ADDRESS": address, **sizes}
  _, _, _, *arguments = runs.command(
    *(*files, job), INFER_OUTPUT_DIR=f"{tmp_path}/out", **settings
  )
  with pytest.raises(SystemExit) as exit_:
    commands.infer(*arguments)
  assert "and 18874368: Setup(" in exit_.value.code
  assert not (tmp_path / "out" / "config.gin").exists()


def test_a_draft_command_with_a_taken_address_gives_the_reason(models, address, capsys):
  assert link_command.main(["--draft", models[0], f"--address={address}"]) == 1
  assert "the server can't listen at" in capsys.readouterr().err.strip()
