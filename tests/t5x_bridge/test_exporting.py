"""Exported programs give the tokens and samples of the model; planted faults fail."""

import contextlib
import types

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.t5x_bridge import exporting
from specdec_t5x.t5x_bridge.examples import EXAMPLE, number_of
from tests import commands
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow

LENGTHS = {"inputs": 9, "targets": 12}
ROWS = 5
SERVE = commands.script_module("serve_exported", "examples")
KEYS_OF = SERVE.keys_of
LOWERED = exporting.lowered


@pytest.fixture(scope="module")
def model(vocabulary):
  """Returns a model without a draft; tests/e2e exports drafts."""
  return tiny.plain(vocabulary, Sampling(1.0), seed=3)


@pytest.fixture(scope="module")
def params(model):
  def half(x):
    return jnp.asarray(np.asarray(x).astype(jnp.bfloat16))

  return jax.tree.map(half, flax.core.unfreeze(tiny.variables(model)["params"]))


@pytest.fixture(scope="module")
def expected(model, params, batch):
  """Returns the model's tokens for the first examples of a task."""
  place = np.stack([np.full(ROWS, number_of("a task")), np.arange(ROWS)], axis=1)
  examples = {**batch, EXAMPLE: jnp.asarray(place, jnp.uint32)}
  with exporting.portable():
    return np.asarray(tiny.predict(model, params, examples)[0])


@pytest.fixture(scope="module")
def export(model, params):
  """Returns a function that exports the model to a folder."""
  flat = flax.traverse_util.flatten_dict(params, sep="/")
  platforms = ["cpu", "tpu"]

  def export(folder):
    exporting.export(model, flat, LENGTHS, "a task", str(folder), platforms, [ROWS])

  return export


@pytest.fixture(scope="module")
def exported(export, tmp_path_factory):
  """Returns the folder of the exported model."""
  export(folder := tmp_path_factory.mktemp("exported"))
  return folder


@pytest.fixture
def check(batch, expected):
  """Returns a function that compares the tokens of an exported program."""

  def check(folder):
    decode, _, about = SERVE.load(folder)
    keys = SERVE.keys_of(about["seed"], about["task"], np.arange(ROWS))
    tokens, _ = decode(np.asarray(batch["encoder_input_tokens"]), keys)
    np.testing.assert_array_equal(tokens, expected)

  return check


def test_exported_tokens_equal_the_model_s(check, exported):
  check(exported)


def values_for_bits(x):
  return np.asarray(x).astype(np.uint16)


def another_task(name):
  return number_of(name) + 1


def seed_after_task(seed, task, n):
  return KEYS_OF(task, seed, n)


def one_key_for_all(seed, task, n):
  return KEYS_OF(seed, task, 0 * n)


def a_token_less(model, params, lengths, *rest):
  return LOWERED(model, params, lengths | {"targets": lengths["targets"] - 1}, *rest)


@pytest.mark.parametrize(
  ("owner", "name", "fault"),
  [
    (exporting, "_plain", values_for_bits),
    (exporting, "number_of", another_task),
    (SERVE, "keys_of", seed_after_task),
    (SERVE, "keys_of", one_key_for_all),
    (exporting, "lowered", a_token_less),
    # Without `portable` the program calls kernels of this CPU.
    (exporting, "portable", contextlib.nullcontext),
  ],
)
def test_a_planted_fault_is_seen(
  owner, name, fault, check, export, exported, tmp_path, monkeypatch
):
  if name != "portable":  # Most faults do not change the program.
    program = (exported / f"decode_{ROWS}.jax_export").read_bytes()
    program = jax.export.deserialize(bytearray(program))
    monkeypatch.setattr(exporting, "lowered", lambda *given: program)
  monkeypatch.setattr(owner, name, fault)

  def check_new():
    export(tmp_path)
    check(tmp_path)

  with pytest.raises((AssertionError, ValueError, NotImplementedError)):
    check_new()


def test_a_draft_in_another_process_is_refused():
  decoder = types.SimpleNamespace(drafter=object.__new__(Link))
  with pytest.raises(ValueError, match="A draft in another process can't be exported"):
    exporting.check_decoder(decoder)
