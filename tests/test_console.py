"""The commands' messages, quiet imports, and the time per token of a run."""

import dataclasses
import os
import re
import sys
import types

import jax
import pytest
from tqdm import tqdm

from specdec_t5x import console, speed, tuning
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.contracts import lengths_of
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.functional import network_for
from specdec_t5x.quiet import import_quietly
from specdec_t5x.t5x_bridge import pace, writer
from tests import damage
from tests.t5x_bridge import tiny

TARGET, DRAFT = (network_for(config) for config in (tiny.TARGET, tiny.DRAFT))
DRAFTED = Decoder(TARGET, DraftModel(DRAFT, 2))


STATISTICS = {
  "examples": 10,
  "tokens": 1000,
  "target_calls": 250,
  "drafted": 800,
  "accepted": 600,
  "tokens_per_target_call": {"value": 4.0},
  "alpha_by_counts": {"value": 0.93},
}


@pytest.fixture(autouse=True)
def _speaking():
  yield
  console.set_quiet(False)


@pytest.fixture
def now(monkeypatch):
  """Returns the time, which tests set."""
  now = [0.0]
  monkeypatch.setattr(pace.time, "perf_counter", lambda: now[0])
  return now


def decode(now, seconds=2.0, tokens=1000):
  """Simulates a run of 10 examples, compiled before the clock counts."""
  clock = pace.Clock(10)
  clock.tracing()
  now[0] += 30.0
  clock.traced()
  jax.jit(lambda x: x + now[0])(1.0)  # Every call compiles a new program.
  now[0] += seconds
  clock.decoded(10, tokens)
  return clock


def test_a_stage_has_seconds_and_quiet_silences_messages(capsys):
  console.stage("Restoring.")
  assert re.fullmatch(r"\[ *\d+\.\d s\] Restoring\.\n", capsys.readouterr().err)
  console.set_quiet(True)
  console.stage("Restoring.")
  console.say("Done.")
  assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("stream", damage.STREAMS)
def test_messages_that_nobody_can_read_raise_no_error(monkeypatch, stream):
  for name in ("stdout", "stderr"):
    monkeypatch.setattr(sys, name, stream())
  console.say("Done.")
  console.announce("Done.")
  with tqdm(range(3), file=console.STDERR, dynamic_ncols=True, mininterval=0) as bar:
    assert list(bar) == [0, 1, 2]


def test_tokens_are_timed_after_compilation(now, capsys):
  assert pace.Clock(10).pace() == {}
  assert decode(now).pace() == {
    "decode_seconds": pytest.approx(2.0),
    "seconds_per_token": pytest.approx(0.002),
    "examples_per_second": pytest.approx(5.0),
  }
  stages = [line.split("] ")[1] for line in capsys.readouterr().err.splitlines()]
  assert stages[0].startswith("Compiling the decode")
  assert stages[1:] == ["Decoding 10 examples."]


def timed(is_kept=False):
  """Returns a decode with measured times: outputs of 2.5 tokens take .1 s to start."""
  job = tuning.Job(dataclasses.replace(DRAFTED, policy=CostAware()), 4, 8, GREEDY, 10)
  policy = CostAware((0.010, 0.015, 0.020), prepare=(0.04, 0.08), is_kept=is_kept)
  return {(4, 10): (job, dataclasses.replace(DRAFTED, policy=policy))}


def closing(statistics, decoder=DRAFTED, tuned=()):
  """Returns the last lines of a run with 2 ms per token."""
  model = types.SimpleNamespace(decoder=decoder, tuned=dict(tuned))
  summary = {
    "statistics": statistics,
    "seconds_per_token": 0.002,
    "speedup_over_plain": writer.speedup(statistics, model),
  }
  return writer.closing(summary, model)


def test_the_speedup_follows_from_iterations_of_this_run():
  # 250 calls with 3.2 drafted tokens: the longest drafts, 20 ms; 10 encoder calls.
  expected = (1000 * 0.010 + 1.0) / (250 * 0.020 + 2.0)
  ((job, decoder),) = timed().values()
  found = speed.speedup_of_run(
    decoder.policy, lengths_of(job.decoder.drafter), STATISTICS, job.output_length
  )
  assert found == pytest.approx(expected)
  assert closing(STATISTICS, tuned=timed()) == [
    "4.00 tokens per target call (10 examples, 1000 tokens).",
    "75% of the drafted tokens were accepted, and 0.930 of the tested tokens (alpha).",
    "2.00 ms per token; plain decoding takes about 3.14 ms on this machine, as "
    "estimated from its iterations: 1.57 times as fast.",
  ]


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_speedup_that_this_run_did_not_measure_is_not_printed(is_measured):
  tuned = timed(is_kept=True) if is_measured else {}  # By an earlier process.
  assert closing(STATISTICS, tuned=tuned)[-1] == (
    "2.00 ms per token. A baseline_*.gin run measures plain decoding's time."
  )


def test_the_last_lines_have_the_reason_for_no_drafts():
  nothing = {**STATISTICS, "drafted": 0, "accepted": 0}
  ((_, decoder),) = timed().values()
  assert closing(nothing, tuned=timed()) == [
    "Nothing was drafted.",
    speed.outlook(decoder.policy, (0, 1, 2)),
    "10 examples, 1000 tokens, 2.00 ms per token.",
    "Drafts gain most if few rows decode at once: --gin.BATCH_SIZE=1.",
  ]
  # A copying drafter has found no match.
  assert closing(nothing)[0] == "Nothing was drafted."
  assert closing(nothing, Decoder(TARGET))[0].startswith("10 examples")
  assert closing(None) == []


@pytest.mark.parametrize(("rows", "is_advised"), [(1, False), (4, True)])
def test_a_fixed_draft_for_many_rows_gets_advice(rows, is_advised):
  tuned = {(rows, 10): (tuning.Job(DRAFTED, rows, 8, GREEDY, 10), DRAFTED)}
  advice = "Drafts gain most if few rows decode at once: --gin.BATCH_SIZE=1."
  assert (advice in closing(STATISTICS, tuned=tuned)) == is_advised
  # A copying drafter finds no match at any batch size.
  nothing = {**STATISTICS, "drafted": 0, "accepted": 0}
  assert advice not in closing(nothing, tuned=tuned)


# ---- The output of an import is held back, and shown if the import fails. ----

NOISY = "import os\nos.write(2, b'noise of {name}')\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(str(tmp_path))
  return lambda name, text: (tmp_path / f"{name}.py").write_text(text)


def test_a_module_is_imported_without_output(module, capfd):
  module("noisy_module", NOISY.format(name="success") + "VALUE = 3\n")
  assert import_quietly("noisy_module").VALUE == 3
  assert capfd.readouterr().err == ""


def test_a_failing_import_shows_the_output(module, capfd):
  module("noisy_failure", NOISY.format(name="failure") + "raise RuntimeError('no')\n")
  with pytest.raises(RuntimeError, match="no"):
    import_quietly("noisy_failure")
  assert capfd.readouterr().err == "noise of failure"


def test_a_module_is_imported_without_stderr(module, monkeypatch):
  module("module_without_stderr", "VALUE = 3\n")
  monkeypatch.setattr(sys, "stderr", None)
  saved = os.dup(2)
  os.close(2)
  try:
    assert import_quietly("module_without_stderr").VALUE == 3
  finally:
    os.dup2(saved, 2)
    os.close(saved)
