"""Two real processes have equal distributions, and a killed draft costs no token."""

import subprocess
import sys

import jax
import numpy as np
import pytest
import t5x

from lab.link import process
from specdec_t5x import api
from specdec_t5x.contrib.link import __main__ as link_command
from specdec_t5x.contrib.link.client import Remote
from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.contrib.link.server import Drafting
from specdec_t5x.contrib.link.wire import Ask, Setup
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.contrib.truncation import Truncation
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.ways import assembled
from tests import commands
from tests.e2e import runs
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow

INPUTS = np.array([[5, 6, 7, 8, 1], [9, 3, 1, 0, 0], [12, 30, 2, 1, 0]])
LENGTH = 20


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
  run = api.compiled(decoder, sampling, LENGTH, 1)
  return run(params, INPUTS, row_keys(jax.random.key(0), len(INPUTS)))


def test_two_processes_give_the_output_of_one_process(models, address):
  """`test_a_killed_draft_costs_no_token` has temperature 0."""
  _, target, draft = models
  sampling = Sampling(0.8, 5)
  here = decoded(target, draft, SparseDraft(draft.network, 3, 8), sampling)
  remote = Remote(address)
  there = decoded(target, None, Link(remote, 3, 8), sampling)
  np.testing.assert_array_equal(there.tokens, here.tokens)
  np.testing.assert_array_equal(there.statistics.accepted, here.statistics.accepted)
  assert remote.counts()["lost"] == 0


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
  there = decoded(target, None, Link(remote, 3, 8), GREEDY)
  here = decoded(target, draft, SparseDraft(draft.network, 3, 8), GREEDY)
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
  assert "and 18874368: 32768 rows" in exit_.value.code
  assert not (tmp_path / "out" / "config.gin").exists()


def test_a_draft_command_with_a_taken_address_gives_the_reason(models, address, capsys):
  assert link_command.main(["--draft", models[0], f"--address={address}"]) == 1
  assert "the server can't listen at" in capsys.readouterr().err.strip()
