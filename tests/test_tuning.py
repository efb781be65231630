"""Times of iterations: measured once, kept, whole, and wherever they are asked for."""

import functools
import json
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding import timing
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.adaptive import AdaptiveDraft
from specdec_t5x.drafters.policies import Always, Auto
from specdec_t5x.native import library
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.transformer import Transformer
from tests import networks

NETWORK = Transformer(
  T5Config(
    vocab_size=17,
    emb_dim=16,
    num_heads=2,
    head_dim=8,
    mlp_dim=24,
    num_encoder_layers=1,
    num_decoder_layers=1,
    products="xla",  # Else kernels would be built and kept beside the times.
  )
)
GAMMA, ROOM = 2, 12
INPUTS = jnp.array([[5, 6, 7, 1], [9, 3, 1, 0]])


@functools.cache
def arguments():
  params = networks.initialize(NETWORK, INPUTS)["params"]
  return {"target": params, "draft": params}, INPUTS, row_keys(jax.random.key(0), 2)


def told(length):
  return SpeculativeDecoder(NETWORK, AdaptiveDraft(NETWORK, GAMMA, Always(length)))


def measure(sampling=GREEDY, rows=2):
  params, inputs, keys = arguments()
  few = params, inputs[:rows], keys[:rows]
  return timing.seconds(told, range(GAMMA + 1), few, sampling, ROOM)


@pytest.fixture
def kept(tmp_path, monkeypatch):
  """A folder where nothing is kept yet, and a process that has measured nothing."""
  library.problem()  # The kernels are looked for once a process, elsewhere.
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "kept"))
  monkeypatch.setattr(timing, "_measured", {})
  return tmp_path / "kept"


@pytest.fixture
def counted(monkeypatch):
  """The lengths of drafts that were measured, made up: nothing is timed."""
  calls = []

  def made_up(decoder_told, gamma, *job):
    calls.append(gamma)
    return (1.0, 2.0, 3.0 + len(calls))

  monkeypatch.setattr(timing, "_measure", made_up)
  return calls


def files_of(kept):
  """All but the kernels, which other processes keep there."""
  return [path for path in kept.iterdir() if path.suffix != ".so"]


def file_of(kept):
  (path,) = files_of(kept)  # Nor is a part of a file left behind.
  return path


def test_a_length_each_is_measured(kept, monkeypatch):
  # By the processor's time: what else runs does not add to it.
  monkeypatch.setattr(time, "perf_counter", time.process_time)
  times = measure()
  assert len(times) == GAMMA + 1
  assert all(0 < each < 60 for each in times)
  assert json.loads(file_of(kept).read_text()) == {"seconds": list(times)}


def compiled(program, *arguments):
  """What a program becomes, as text."""
  leaves, tree = jax.tree.flatten(arguments)
  flat = jax.jit(lambda *leaves: program(*jax.tree.unflatten(tree, leaves)))
  return flat.lower(*leaves).compile().as_text()


def test_inputs_are_read_once_and_not_while_iterations_are_timed():
  start, run = timing._programs(told, GREEDY, ROOM)
  given = arguments(), jnp.int32(GAMMA)
  assert "EncoderLayer" in compiled(start, *given)
  timed = compiled(run, *given, start(*given), jnp.int32(1))
  assert "DecoderLayer" in timed
  assert "EncoderLayer" not in timed


def test_what_is_compared_is_of_one_round():
  calls, counts = np.array([1.0, 1 + 20 * 2.0, 1 + 5 * 3.0, 1 + 5 * 5.0]), [20, 5, 5]
  paces = np.array([1.0, 2.0, 0.5, 2.0, 2.0])[:, None]
  rounds = paces * calls
  assert timing._slopes(rounds, counts) == (4.0, 6.0, 10.0)
  # What disturbs a call, or hurries it, in less than half of the rounds is not seen.
  rounds[0, 1] /= 2
  rounds[2, 2] *= 9
  assert timing._slopes(rounds, counts) == (4.0, 6.0, 10.0)


def test_what_noise_makes_negative_is_nearly_nothing():
  assert timing._slopes(np.array([[1.0, 1.2, 0.9]]), [2, 2]) == (0.1, 1e-7)


def test_a_subject_is_measured_once(kept, counted):
  assert measure() == measure() == (1.0, 2.0, 4.0)
  assert measure(rows=1) == (1.0, 2.0, 5.0)
  assert measure(Sampling()) == (1.0, 2.0, 6.0)
  assert len(counted) == len(files_of(kept)) == 3


def test_the_file_is_not_read_again(kept, counted):
  first = measure()
  file_of(kept).unlink()
  assert measure() == first
  assert len(counted) == 1


def test_a_process_reads_what_another_has_measured(kept, counted, monkeypatch):
  first = measure()
  monkeypatch.setattr(timing, "_measured", {})
  assert measure() == first
  assert len(counted) == 1


def test_the_name_is_the_same_in_other_processes(kept, counted):
  measure()
  name = file_of(kept).name
  file_of(kept).write_text(json.dumps({"seconds": [7.0, 8.0, 9.0]}))
  program = "from tests.decoding import test_timing; print(test_timing.measure())"
  paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
  found = subprocess.run(
    [sys.executable, "-c", program],
    env={**os.environ, **paths},
    capture_output=True,
    text=True,
    check=True,
  )
  assert found.stdout == "(7.0, 8.0, 9.0)\n"
  assert file_of(kept).name == name


@pytest.mark.parametrize(
  "text",
  [
    "",
    '{"seconds": [1.0, 2.0',
    "[1.0, 2.0, 3.0]",
    "{}",
    '{"seconds": null}',
    '{"seconds": [1.0, 2.0]}',
    '{"seconds": [1.0, 2.0, 3.0, 4.0]}',
    '{"seconds": ["1", "2", "3"]}',
    '{"seconds": [1.0, NaN, 3.0]}',
    '{"seconds": [1.0, 0.0, 3.0]}',
    '{"seconds": [1.0, -2.0, 3.0]}',
  ],
)
def test_what_is_damaged_is_measured_again(text, kept, counted, monkeypatch):
  measure()
  file_of(kept).write_text(text)
  monkeypatch.setattr(timing, "_measured", {})
  assert measure() == (1.0, 2.0, 5.0)
  assert json.loads(file_of(kept).read_text()) == {"seconds": [1.0, 2.0, 5.0]}


def test_bytes_that_are_no_text_are_measured_again(kept, counted, monkeypatch):
  measure()
  file_of(kept).write_bytes(b"\xff\xfe\x00")
  monkeypatch.setattr(timing, "_measured", {})
  assert measure() == (1.0, 2.0, 5.0)


def test_where_nothing_can_be_kept_times_are_this_process_s(kept, counted, capsys):
  kept.write_text("a file where the folder should be")
  assert measure() == measure() == (1.0, 2.0, 4.0)
  assert "for this process alone" in capsys.readouterr().err
  assert len(counted) == 1


@pytest.mark.usefixtures("kept")
def test_without_a_home_times_are_this_process_s(counted, monkeypatch, capsys):
  monkeypatch.delenv("SPECDEC_T5X_CACHE")
  monkeypatch.setenv("XDG_CACHE_HOME", "~no_such_user/cache")
  assert measure() == measure() == (1.0, 2.0, 4.0)
  assert "alone: there is no home folder for" in capsys.readouterr().err
  assert len(counted) == 1


def test_a_measurement_that_fails_leaves_no_file(kept, monkeypatch):
  def fails(*job):
    raise RuntimeError("out of memory")

  monkeypatch.setattr(timing, "_measure", fails)
  with pytest.raises(RuntimeError, match="out of memory"):
    measure()
  assert not kept.exists()


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_decode_that_is_being_traced_is_measured(is_wide, kept):
  with jax.enable_x64(is_wide):
    found = []

    @jax.jit
    def decode(x):
      found.append(measure())
      return x + 1

    assert decode(1) == 2
  assert len(found[0]) == GAMMA + 1


def test_a_decoder_tunes_its_drafter_while_it_is_traced(kept, monkeypatch):
  decoder = SpeculativeDecoder(NETWORK, AdaptiveDraft(NETWORK, GAMMA, Auto()))
  decode = lambda: jax.jit(lambda *args: decoder.decode(*args, GREEDY, ROOM, 1))
  outputs = []
  for slow in (0.5, 99.0):
    told = (1.0, 1.0 + slow, 1.0 + slow)
    monkeypatch.setattr(timing, "_measured", {})
    monkeypatch.setattr(timing, "_read", lambda path, gamma, told=told: told)
    outputs.append(decode()(*arguments()))
  drafted = [decoded.statistics.drafted.sum() for decoded in outputs]
  assert drafted[0] > 0 == drafted[1]
  assert (outputs[0].tokens == outputs[1].tokens).all()


def test_several_devices_have_no_times(kept, counted, monkeypatch, capsys):
  monkeypatch.setattr(jax, "device_count", lambda: 2)
  assert measure() == ()
  assert not counted
  assert not kept.exists()
  assert "drafting GAMMA tokens" in capsys.readouterr().err


def test_where_the_device_has_no_room_gamma_tokens_are_drafted(
  kept, monkeypatch, capsys
):
  def full(*job):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

  monkeypatch.setattr(timing, "_measure", full)
  assert measure() == ()
  assert "no room to time drafts" in capsys.readouterr().err
  assert not kept.exists()


def test_other_errors_of_the_device_are_raised(kept, monkeypatch):
  def broken(*job):
    raise jax.errors.JaxRuntimeError("INTERNAL: something else")

  monkeypatch.setattr(timing, "_measure", broken)
  with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
    measure()
