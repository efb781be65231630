"""What is exported decodes as the model does, samples too; planted faults are seen."""

import contextlib
import types

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.drafters.link import Link
from specdec_t5x.t5x_bridge import exporting
from specdec_t5x.t5x_bridge.examples import EXAMPLE, number_of
from tests import commands
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow

LENGTHS = {"inputs": 9, "targets": 12}
ROWS = 5
SERVE = commands.script_module("serve_exported", "examples")
KEYS_OF, LOWERED = SERVE.keys_of, exporting.lowered


@pytest.fixture(scope="module")
def model(vocabulary):
  return tiny.speculative(vocabulary, Sampling(1.0), seed=3)


@pytest.fixture(scope="module")
def params(model):
  half = lambda x: x.astype(jnp.bfloat16)
  return jax.tree.map(half, tiny.variables(model)["params"])


@pytest.fixture(scope="module")
def expected(model, params, batch):
  """The model's tokens of the first examples of a task."""
  place = np.stack([np.full(ROWS, number_of("a task")), np.arange(ROWS)], axis=1)
  examples = {**batch, EXAMPLE: jnp.asarray(place, jnp.uint32)}
  with exporting.portable():
    return np.asarray(tiny.predict(model, params, examples)[0])


@pytest.fixture
def check(model, params, batch, expected, tmp_path):
  """Exports the model and compares the tokens of the exported program."""

  def check():
    flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")
    to = str(tmp_path), ["cpu", "tpu"], [ROWS]
    exporting.export(model, flat, LENGTHS, "a task", *to)
    decode, _, about = SERVE.load(tmp_path)
    keys = SERVE.keys_of(about["seed"], about["task"], np.arange(ROWS))
    tokens, _ = decode(np.asarray(batch["encoder_input_tokens"]), keys)
    np.testing.assert_array_equal(tokens, expected)

  return check


def test_tokens_are_the_models(check):
  check()


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
    # Kernels of this CPU.
    (exporting, "portable", contextlib.nullcontext),
  ],
)
def test_a_planted_fault_is_seen(owner, name, fault, check, monkeypatch):
  monkeypatch.setattr(owner, name, fault)
  with pytest.raises((AssertionError, ValueError, NotImplementedError)):
    check()


def test_a_draft_in_another_process_is_refused():
  decoder = types.SimpleNamespace(drafter=object.__new__(Link))
  with pytest.raises(ValueError, match="A draft in another process can't be exported"):
    exporting.check_decoder(decoder)
