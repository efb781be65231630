"""Times of iterations are measured once, kept on disk, and used by decoders."""

import builtins
import dataclasses
import functools
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import pytest

from lab.stress import memory
from specdec_t5x import console, speed, tuning
from specdec_t5x.contrib.online.rejections import KeepRejections
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules.coupled import Coupled
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.native import library
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.ways import POLICIES
from tests import processes, table
from tests.t5x_bridge import tiny
from tests.training.conftest import shapes_of

# XLA's products need no kernels, which would be built and kept beside the times.
CONFIG = dataclasses.replace(tiny.config(1, 16, 17), products="xla")
NETWORK = Transformer(CONFIG)
GAMMA, ROOM = 2, 12
INPUTS = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0]])
KEY = jax.random.key(0)


@functools.cache
def arguments():
  params = jax.tree.map(jnp.asarray, table.drawn(CONFIG))
  return {"target": params, "draft": params}, INPUTS, row_keys(KEY, 2)


AUTO = Decoder(NETWORK, DraftModel(NETWORK, GAMMA), policy=CostAware())


def job(decoder=AUTO, sampling=GREEDY, rows=2):
  return tuning.Job(decoder, rows, INPUTS.shape[1], sampling, ROOM)


def tuned(*settings, **named):
  return tuning.tuned(job(*settings, **named), arguments()[0])


def measure(*settings, **named):
  return tuned(*settings, **named).policy.seconds


@pytest.fixture
def cache(tmp_path, monkeypatch):
  # The kernels are looked up once per process, in a different folder.
  library.problem()
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "kept"))
  console.say_once.cache_clear()
  return tmp_path / "kept"


@pytest.fixture
def counted(monkeypatch):
  """Returns the list of measured jobs; the times are made up."""
  calls = []

  def made_up(job, params):
    calls.append(job)
    return {"seconds": (1.0, 1.1, 1.1 + len(calls) / 8), "prepare": (0.3, 0.6)}

  monkeypatch.setattr(tuning, "measure", made_up)
  return calls


def files_of(cache):
  """Returns the files without the kernels, which other processes keep here."""
  return [path for path in cache.iterdir() if path.suffix != ".so"]


def file_of(cache):
  (path,) = files_of(cache)  # No partial file is left behind.
  return path


@pytest.mark.parametrize(
  ("drafter", "count"),
  [(DraftModel(NETWORK, GAMMA), GAMMA + 1), (SparseDraft(NETWORK, GAMMA), 2)],
  ids=["each length", "all or nothing"],
)
def test_every_length_of_a_draft_is_measured(drafter, count, cache):
  times = measure(dataclasses.replace(AUTO, drafter=drafter))
  assert len(times) == count
  assert min(times) > 0
  found = json.loads(file_of(cache).read_text())
  assert found["seconds"] == list(times)
  without_drafter, with_drafter = found["prepare"]
  assert min(without_drafter, with_drafter) > 0


def test_a_job_is_measured_once(cache, counted):
  assert measure() == measure() == (1.0, 1.1, 1.225)
  assert measure(rows=1) == (1.0, 1.1, 1.35)
  assert measure(sampling=Sampling()) == (1.0, 1.1, 1.475)
  # Rows that decode at once are timed, for any number of rows that take turns.
  assert measure(dataclasses.replace(AUTO, slots=1), rows=8) == (1.0, 1.1, 1.35)
  assert [job.rows for job in counted] == [2, 1, 2]
  assert len(counted) == len(files_of(cache)) == 3


@pytest.mark.parametrize(
  ("one", "other", "count"),
  [
    ({"sampling": Sampling(0.7)}, {"sampling": Sampling(1.3)}, 1),
    ({"sampling": Sampling(1.0, top_k=5)}, {"sampling": Sampling(0.5, top_k=9)}, 1),
    ({"sampling": Sampling(1.0, top_p=0.5)}, {"sampling": Sampling(1.0, top_p=0.9)}, 1),
    ({"sampling": GREEDY}, {"sampling": Sampling(1e-5, top_k=3, coupled=True)}, 1),
    ({"max_length": 64}, {"max_length": 90}, 1),
    ({"max_length": 12}, {"max_length": 23}, 1),
    ({"input_length": 128}, {"input_length": 180}, 1),
    ({"input_length": 0}, {"input_length": 16}, 1),
    ({"sampling": GREEDY}, {"sampling": Sampling(1.0)}, 2),
    ({"sampling": Sampling(1.0)}, {"sampling": Sampling(1.0, top_k=3)}, 2),
    ({"sampling": Sampling(1.0, top_k=3)}, {"sampling": Sampling(1.0, top_p=0.3)}, 2),
    ({"sampling": Sampling(1.0)}, {"sampling": Sampling(1.0, coupled=True)}, 2),
    ({"max_length": 64}, {"max_length": 96}, 2),
    ({"input_length": 64}, {"input_length": 256}, 2),
  ],
  ids=str,
)
def test_jobs_with_nearly_the_same_times_are_measured_once(
  cache, counted, one, other, count
):
  tuned = [
    tuning.tuned(dataclasses.replace(job(), **words), {}).policy
    for words in (one, other)
  ]
  assert len(counted) == count
  assert (tuned[0].seconds == tuned[1].seconds) == (count == 1)
  few, more = (words.get("max_length", 1) for words in (one, other))
  # The start of a decode is shared by the tokens of an output.
  assert tuned[0].prepare[1] * max(1.0, few / 4) == pytest.approx(
    tuned[1].prepare[1] * max(1.0, more / 4)
  )


@pytest.mark.parametrize(
  "text",
  [
    "",
    '{"seconds": null, "prepare": [1.0, 1.0]}',
    '{"seconds": [1.0, 2.0, 3.0]}',
    '{"seconds": [1.0, 2.0, 3.0], "prepare": [1.0, NaN]}',
    '{"seconds": [1.0, 2.0], "prepare": [1.0, 1.0]}',
    '{"seconds": ["1", "2", "3"], "prepare": [1.0, 1.0]}',
    '{"seconds": [1.0, NaN, 3.0], "prepare": [1.0, 1.0]}',
    '{"seconds": [], "prepare": [1.0, 1.0]}',
    '{"seconds": [1.0, 0.0, 3.0], "prepare": [1.0, 1.0]}',
    b"\xff\xfe\x00",
  ],
)
def test_damaged_times_are_measured_again(text, cache, counted):
  measure()
  file_of(cache).write_bytes(text if isinstance(text, bytes) else text.encode())
  assert measure() == (1.0, 1.1, 1.35)
  assert json.loads(file_of(cache).read_text())["seconds"] == [1.0, 1.1, 1.35]


@pytest.mark.parametrize(
  ("folder", "message"),
  [("a file", "for this program alone"), ("", "alone: no home folder for")],
)
def test_times_that_can_t_be_kept_serve_a_program(
  folder, message, cache, counted, monkeypatch, capsys
):
  cache.write_text("a file where the folder should be")
  if not folder:
    monkeypatch.delenv("SPECDEC_T5X_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "~no_such_user/cache")
  assert measure() == (1.0, 1.1, 1.225)
  assert message in capsys.readouterr().err
  measure()
  assert len(counted) == 2


# ---- Decoders with times ----


@pytest.mark.parametrize("is_measured", [True, False], ids=["measured", "given"])
def test_a_decode_is_plain_if_drafts_do_not_pay(cache, monkeypatch, is_measured):
  times = (1.0, 99.0, 99.0)
  measured = {"seconds": times, "prepare": (0.5, 0.5)}
  monkeypatch.setattr(tuning, "measure", lambda *_: measured)
  policy = CostAware() if is_measured else CostAware(times)
  decoder = dataclasses.replace(AUTO, policy=policy, rule=Coupled(), slots=1)
  found = tuned(decoder)
  assert found.drafter is None
  assert (found.target, found.rule, found.slots) == (AUTO.target, Coupled(), 1)
  # An observer's program is speculative: the program records that nothing was drafted.
  watched = dataclasses.replace(decoder, observer=KeepRejections(2))
  assert tuned(watched).drafter is AUTO.drafter


def test_the_expected_gain_is_printed_once(cache, counted, capsys):
  # An output is expected to have a quarter of 12 tokens.
  policy = CostAware((1.0, 1.1, 1.225), prepare=(0.3 / 3, 0.6 / 3))
  assert tuned() == tuned() == dataclasses.replace(AUTO, policy=policy)
  # Short inputs share their times.
  tuning.tuned(dataclasses.replace(job(), input_length=6), arguments()[0])
  lines = capsys.readouterr().err.splitlines()
  assert lines[-1] == speed.outlook(policy, (0, 1, 2))
  assert lines.count(lines[-1]) == 1


def test_the_policy_s_prior_changes_no_times(cache, counted):
  confident = dataclasses.replace(AUTO, policy=CostAware(prior_alpha=0.9, by_row=True))
  expected = dataclasses.replace(tuned().policy, prior_alpha=0.9, by_row=True)
  assert tuned(confident).policy == expected
  assert measure() == (1.0, 1.1, 1.225)
  assert len(counted) == 1


@pytest.mark.parametrize(
  "decoder",
  [
    dataclasses.replace(AUTO, policy=CostAware((1.0, 1.1, 1.2))),
    dataclasses.replace(AUTO, policy=Fixed()),
    Decoder(NETWORK),
  ],
  ids=["known", "fixed", "plain"],
)
def test_decoders_that_need_no_times_are_not_measured(decoder, cache, counted, capsys):
  assert tuned(decoder) is decoder
  assert not counted
  assert not capsys.readouterr().err


def test_several_devices_have_no_times(cache, counted, monkeypatch, capsys):
  monkeypatch.setattr(jax, "device_count", lambda: 2)
  assert tuned() is tuned() is AUTO
  assert not counted
  assert not cache.exists()
  (printed,) = capsys.readouterr().err.splitlines()
  assert "drafts have full length" in printed


# ---- Costs of measuring ----


def test_tracing_reads_no_clock_writes_no_file_and_prints_nothing(cache, monkeypatch):
  def refuse(*args, **kwargs):
    raise AssertionError(f"called while a decode is traced: {args}")

  def traced(seconds):
    decoder = dataclasses.replace(AUTO, policy=CostAware(seconds))
    run = jax.jit(lambda *arrays: decoder.decode(*arrays, GREEDY, ROOM, 1))
    return run.trace(*arguments()).lower()

  with monkeypatch.context() as patched:
    for place, name in [
      *((time, "perf_counter"), (pathlib.Path, "write_text"), (builtins, "print")),
      *((console, "say"), (tuning, "measure")),
    ]:
      patched.setattr(place, name, refuse)
    traced((1.0, 1.2, 1.4))
    without_times = traced(())
  assert without_times.compile()(*arguments()).statistics.drafted.sum() > 0
  assert not cache.exists()


# ---- Measuring needs little memory beside the parameters. ----

# 200 MB of weights, mostly the vocabulary's: more than compilation takes.
WIDE = dataclasses.replace(
  tiny.config(1, 1024, 20_000), num_heads=8, head_dim=64, mlp_dim=1024
)
SETTINGS = GREEDY, 8


def print_peaks():
  """Prints the peak memory beside the weights, and the weights' bytes.

  A decode without measured times runs first, so JAX's start is not in the peak.
  """
  target = Transformer(WIDE)
  draft = Transformer(dataclasses.replace(WIDE, emb_dim=16, mlp_dim=16))

  def filled(network):
    shapes = shapes_of(network)["params"]
    return jax.tree.map(lambda x: jnp.full(x.shape, 0.01, x.dtype), shapes)

  params = {"target": filled(target), "draft": filled(draft)}
  inputs = jnp.ones((2, 16), jnp.int32)
  keys = row_keys(jax.random.key(0), 2)
  for policy in ("fixed", "auto"):
    before = memory.resident()
    memory.forget_peak()
    decoder = Decoder(target, DraftModel(draft, 1), policy=POLICIES[policy])
    tuned = tuning.tuned(tuning.Job(decoder, 2, 16, *SETTINGS), params)
    run = jax.jit(lambda *x, decoder=tuned: decoder.decode(*x, *SETTINGS, 1).tokens)
    run(params, inputs, keys).block_until_ready()
  weights = sum(x.nbytes for x in jax.tree.leaves(params))
  print(json.dumps([memory.peak() - before, weights, bool(tuned.policy.seconds)]))


@pytest.mark.slow
def test_measuring_takes_no_second_set_of_parameters():
  program = "from tests import test_tuning; test_tuning.print_peaks()"
  held, weights, measured = processes.on_devices(1, "-c", program)
  assert measured
  assert weights > 200e6
  # Three more programs were compiled.
  assert held <= 0.6 * weights
