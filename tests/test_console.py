"""The commands' messages, and the time per token of a run."""

import dataclasses
import re

import jax
import pytest

from specdec_t5x import console, tuning
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.functional import network_for
from specdec_t5x.policies import CostAware
from specdec_t5x.t5x_bridge import pace, writer
from tests.t5x_bridge import tiny

TARGET, DRAFT = (network_for(config) for config in (tiny.TARGET, tiny.DRAFT))
PLAIN = PlainDecoder(TARGET)
DRAFTED = SpeculativeDecoder(TARGET, DraftModel(DRAFT, 2))


STATISTICS = {
  "examples": 10,
  "tokens": 1000,
  "target_calls": 250,
  "drafted": 800,
  "accepted": 600,
  "tokens_per_target_call": {"value": 4.0},
}


@pytest.fixture(autouse=True)
def _speaking():
  yield
  console.set_quiet(False)


@pytest.fixture
def clock(monkeypatch, tmp_path):
  """Returns a clock that tests set, with an empty folder and no earlier run."""
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path))
  monkeypatch.setattr(pace, "_run", None)
  now = [0.0]
  monkeypatch.setattr(pace.time, "perf_counter", lambda: now[0])
  return now


def decode(clock, decoder, job="captions", seconds=2.0, tokens=1000):
  """Simulates a run of 10 examples, compiled before the clock counts."""
  pace.start({"task": job}, decoder, 10)
  pace.tracing()
  clock[0] += 30.0
  pace.traced()
  jax.jit(lambda x: x + len(job) + clock[0])(1.0)  # Every call compiles a new program.
  clock[0] += seconds
  pace.decoded(tokens)
  pace.keep()


def test_a_stage_has_seconds_and_quiet_silences_messages(capsys):
  console.stage("Restoring.")
  assert re.fullmatch(r"\[ *\d+\.\d s\] Restoring\.\n", capsys.readouterr().err)
  console.set_quiet(True)
  console.stage("Restoring.")
  console.say("Done.")
  assert capsys.readouterr() == ("", "")


def test_tokens_are_timed_after_compilation(clock, capsys):
  decode(clock, DRAFTED)
  assert pace.seconds_per_token() == pytest.approx(0.002)
  stages = [line.split("] ")[1] for line in capsys.readouterr().err.splitlines()]
  assert stages[0].startswith("Compiling the decode: once for these settings")
  assert stages[1:] == ["Decoding 10 examples."]


def test_a_plain_run_s_time_is_kept_for_runs_of_the_same_job(clock, tmp_path):
  decode(clock, DRAFTED)
  assert pace.plain_seconds_per_token(STATISTICS) is None
  decode(clock, PLAIN, seconds=3.0)
  decode(clock, DRAFTED, "news")
  assert pace.plain_seconds_per_token(STATISTICS) is None
  decode(clock, DRAFTED)
  assert pace.plain_seconds_per_token(STATISTICS) == (pytest.approx(0.003), True)
  (time_file,) = tmp_path.glob("plain-*.json")
  time_file.write_text("{")
  assert pace.plain_seconds_per_token(STATISTICS) is None


def test_a_disturbed_plain_run_does_not_flatter_drafts(clock):
  """The fastest of a job's last five plain runs counts."""
  for seconds in (9.0, 3.0, 6.0):
    decode(clock, PLAIN, seconds=seconds)
  decode(clock, DRAFTED)
  assert pace.plain_seconds_per_token(STATISTICS) == (pytest.approx(0.003), True)
  for _ in range(5):
    decode(clock, PLAIN, seconds=5.0)
  assert pace.plain_seconds_per_token(STATISTICS) == (pytest.approx(0.005), True)


def test_a_job_without_a_plain_run_uses_measured_iterations(clock, monkeypatch):
  decoder = dataclasses.replace(DRAFTED, policy=CostAware())
  job = tuning.Job(decoder, 4, 8, GREEDY, 10)
  timed = CostAware((0.010, 0.015, 0.020))
  times = tuning.Times(timed.seconds, prepare=(0.1, 0.2))
  monkeypatch.setattr(tuning, "_tuned", {job: tuning.Tuned(decoder, "", times)})
  decode(clock, decoder)
  # 250 calls with 3.2 drafted tokens: the longest drafts, 20 ms; 10 encoder calls.
  speed = (1000 * 0.010 + 1.0) / (250 * 0.020 + 2.0)
  plain_seconds = pace.plain_seconds_per_token(STATISTICS)
  assert plain_seconds == (pytest.approx(0.002 * speed), False)
  assert writer.closing(STATISTICS, [])[-1] == (
    "2.00 ms per token; plain decoding takes about 3.14 ms on this machine, as "
    "estimated from its iterations: 1.57 times as fast."
  )


def test_the_last_lines_have_the_speedup(clock):
  decode(clock, PLAIN, seconds=3.0)
  decode(clock, DRAFTED)
  assert writer.closing(STATISTICS, []) == [
    "4.00 tokens per target call (10 examples, 1000 tokens).",
    "75% of the drafted tokens were accepted.",
    "2.00 ms per token; plain decoding takes 3.00 ms on this machine: 1.50 times as "
    "fast.",
  ]


def test_the_last_lines_have_the_reason_for_no_drafts(clock):
  decode(clock, DRAFTED)
  nothing = {**STATISTICS, "drafted": 0, "accepted": 0}
  first, why, *_ = writer.closing(nothing, ["Decoding plainly: it does not pay."])
  assert (first, why) == ("Nothing was drafted.", "Decoding plainly: it does not pay.")
  assert writer.closing(None, []) == []


def test_a_time_that_can_t_be_kept_is_reported(clock, tmp_path, monkeypatch, capsys):
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "file"))
  decode(clock, PLAIN)
  assert "The time of plain decoding is not kept" in capsys.readouterr().err
  assert not list(tmp_path.glob("plain-*"))
