"""Arbitrary files give a correct result or a ValueError."""

import gzip
import json
import pathlib
import shutil

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from t5x import checkpoints, partitioning, train_state

from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.data import text_files, vocabularies
from specdec_t5x.t5x_bridge import preflight
from specdec_t5x.t5x_bridge import restore as restoring
from specdec_t5x.t5x_bridge.writer import SUMMARY
from tests import commands
from tests.contract.conftest import runtime_only
from tests.e2e import runs


def fuzz(examples):
  return settings(
    max_examples=examples,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
  )


def assert_read_or_refused(read, path):
  """Returns the result of `read`, or None after a ValueError that names the path."""
  try:
    return read()
  except ValueError as error:
    message = str(error)
  assert str(path) in message
  return None


# ---- Text ----

PIECES = [b"\n", b"\r\n", b",", b'"', b"{", b"}", b"[", b"\x00", b"\xff", b"0" * 5000]
PIECES += [b"\xef\xbb\xbf", b'{"en": "a"}\n', b"en,de\n", b'{"en": "\\ud800"}']
PIECES = st.sampled_from([*PIECES, b'{"en": %b}' % (b"1" * 5000)])
BYTES = st.binary(max_size=40) | st.lists(PIECES | st.binary(max_size=4)).map(b"".join)


@fuzz(200)
@given(
  data=BYTES,
  name=st.sampled_from(["a.txt", "a.jsonl", "a.csv", "a.tsv", ""]),
  packing=st.sampled_from(["plain", "gzip", "no gzip"]),
)
def test_text_is_read_or_refused_by_its_path(tmp_path, data, name, packing):
  path = tmp_path / (name + ("" if packing == "plain" else ".gz"))
  if path != tmp_path:
    path.write_bytes(gzip.compress(data, mtime=0) if packing == "gzip" else data)
  lines = assert_read_or_refused(lambda: text_files.read_lines(str(path)), path)
  assert lines is None or "\n".join(lines).encode()[:1] != b"\0"
  rows = assert_read_or_refused(
    lambda: text_files.read_fields(str(path), ["en", "de"]), path
  )
  assert rows is None or all(isinstance(row["en"], str) for row in rows)


# ---- Checkpoints ----


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """Returns a checkpoint, the path of a copy, and a function that restores a path."""
  root = tmp_path_factory.mktemp("saved")
  arrays = np.random.default_rng(0).normal(size=(12, 12)).astype(np.float32)
  params = flax.core.freeze({"wi": {"kernel": arrays}, "scale": arrays[0]})
  state = train_state.InferenceState(jnp.array(7), params)
  layout = partitioning.PjitPartitioner(num_partitions=1)
  checkpoints.Checkpointer(state, layout, str(root)).save(state)

  def restore(path):
    checkpoint = Checkpoint.open(str(path))
    return restoring.restore(checkpoint, state, layout, "float32").params

  path = shutil.copytree(root / "checkpoint_7", root / "changed" / "checkpoint_7")
  return root / "checkpoint_7", path, restore


ARRAY = "target.wi.kernel"
# Changes of metadata that reinterpret a file's bytes as different numbers.
TRAPS = [(b'"order":"C"', b'"order":"F"'), (b"<f4", b">f4"), (b"<f4", b"<i4")]
TRAPS += [(b"12,12", b"24,6"), (b"12,12", b"6,12"), (b'"."', b'"/"')]
FLIP = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
CHANGES = st.lists(FLIP, min_size=1, max_size=2)


def changed(data, flips, fraction):
  """Flips some bits of the bytes and cuts the bytes to a fraction."""
  data = bytearray(data)
  for place, mask in flips:
    data[int(place * len(data))] ^= mask
  return bytes(data[: int(fraction * len(data)) or None])


@runtime_only
@fuzz(150)
@given(
  file=st.sampled_from(["checkpoint", f"{ARRAY}/.zarray", f"{ARRAY}/0.0"]),
  flips=CHANGES,
  fraction=st.just(1.0) | st.floats(0.01, 1),
)
def test_a_changed_checkpoint_is_refused_or_unchanged(saved, file, flips, fraction):
  assert_same_or_refused(saved, file, lambda data: changed(data, flips, fraction))


@runtime_only
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap[1].decode())
def test_metadata_that_change_the_numbers_are_refused(saved, trap):
  assert assert_same_or_refused(saved, f"{ARRAY}/.zarray", lambda x: x.replace(*trap))


def assert_same_or_refused(saved, file, change):
  """Returns whether the checkpoint with a changed file is refused."""
  whole, path, restore = saved
  before = (whole / file).read_bytes()
  (path / file).write_bytes(change(before))
  try:
    assert_read_or_refused(lambda: Checkpoint.open(str(path)).shapes, path)
    restored = assert_read_or_refused(lambda: restore(path), path)
  finally:
    (path / file).write_bytes(before)
  if restored is None:
    return True
  jax.tree.map(np.testing.assert_array_equal, restored, restore(whole))
  return False


# ---- gin ----

WORDS = (
  "GAMMA gin.macro utils.DatasetConfig import include from 5 = @ % ( ) [ { ' : # \\"
)
WORDS = [*WORDS.split(), '"', "/", ".", "\n", "  "]
GIN = st.text(max_size=30) | st.lists(st.sampled_from(WORDS)).map(" ".join)


@runtime_only
@fuzz(150)
@given(text=GIN, name=GIN, value=GIN, use_file=st.booleans())
def test_any_gin_ends_with_one_line(tmp_path, monkeypatch, text, name, value, use_file):
  monkeypatch.chdir(runs.ROOT)
  file = tmp_path / "fuzz.gin"
  file.write_text(text, encoding="utf-8")
  # Neither configuration is complete: MODEL has no value.
  arguments = (
    [f"--gin_file={file}"]
    if use_file
    else ["--gin_file=t5x/configs/runs/infer.gin", f"--gin.{name}={value}"]
  )
  with pytest.raises(SystemExit) as exit_:
    commands.infer(*arguments)
  assert len(exit_.value.code) < 3000
  assert "\n" not in exit_.value.code


# ---- Vocabularies and JSON ----


@fuzz(150)
@given(data=st.binary(max_size=60), flips=CHANGES, whole=st.booleans())
def test_any_vocabulary_is_loaded_or_refused(
  tmp_path, vocabulary_path, data, flips, whole
):
  path = tmp_path / "any.model"
  model = pathlib.Path(vocabulary_path).read_bytes()
  path.write_bytes(changed(model, flips, 1.0) if whole else data)
  assert_read_or_refused(
    lambda: vocabularies.sentencepiece_vocabulary(str(path), 0), path
  )


KEYS = st.sampled_from(["configuration", "settings", "a"])
JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
  lambda x: st.lists(x, max_size=3) | st.dictionaries(KEYS, x, max_size=3),
  max_leaves=6,
)
CONTENTS = JSON.map(json.dumps) | st.text(max_size=20)


@fuzz(150)
@given(text=CONTENTS)
def test_any_summary_is_compared_or_refused(tmp_path, text):
  (tmp_path / SUMMARY).write_text(text, encoding="utf-8")

  def check():
    return preflight.check_same_run(str(tmp_path))

  assert_read_or_refused(check, tmp_path)


def test_json_nested_too_deep_is_refused(tmp_path):
  (tmp_path / SUMMARY).write_text("[" * 100_000)
  with pytest.raises(ValueError, match="is damaged"):
    preflight.check_same_run(str(tmp_path))
  path = tmp_path / "deep.jsonl"
  path.write_text("[" * 100_000)
  with pytest.raises(ValueError, match=r"deep\.jsonl, line 1"):
    text_files.read_fields(str(path), ["en"])
