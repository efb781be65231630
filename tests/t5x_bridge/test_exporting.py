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


@pytest.fixture(scope="module")
def serve():
  return commands.script_module("serve_exported", "examples")


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
def check(serve, model, params, batch, expected, tmp_path):
  """Exports the model and compares the tokens of the exported program."""

  def check():
    flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")
    to = str(tmp_path), ["cpu", "tpu"], [ROWS]
    exporting.export(model, flat, LENGTHS, "a task", *to)
    decode, _, about = serve.load(tmp_path)
    keys = serve.keys_of(about["seed"], about["task"], np.arange(ROWS))
    tokens, _ = decode(np.asarray(batch["encoder_input_tokens"]), keys)
    np.testing.assert_array_equal(tokens, expected)

  return check


def test_tokens_are_the_models(check):
  check()


def _values_for_bits(patch, serve):
  patch.setattr(exporting, "_plain", lambda x: np.asarray(x).astype(np.uint16))


def _another_task(patch, serve):
  patch.setattr(exporting, "number_of", lambda name: number_of(name) + 1)


def _seed_after_task(patch, serve):
  keys_of = serve.keys_of
  patch.setattr(serve, "keys_of", lambda seed, task, n: keys_of(task, seed, n))


def _one_key_for_all(patch, serve):
  keys_of = serve.keys_of
  patch.setattr(serve, "keys_of", lambda seed, task, n: keys_of(seed, task, 0 * n))


def _a_token_less(patch, serve):
  lowered = exporting.lowered
  shorter = LENGTHS | {"targets": LENGTHS["targets"] - 1}
  patch.setattr(
    exporting, "lowered", lambda m, p, _, *rest: lowered(m, p, shorter, *rest)
  )


def _kernels_of_this_cpu(patch, serve):
  patch.setattr(exporting, "portable", contextlib.nullcontext)


@pytest.mark.slow
@pytest.mark.parametrize(
  "plant",
  [
    *(_values_for_bits, _another_task, _seed_after_task, _one_key_for_all),
    *(_a_token_less, _kernels_of_this_cpu),
  ],
)
def test_a_planted_fault_is_seen(plant, serve, check, monkeypatch):
  plant(monkeypatch, serve)
  with pytest.raises((AssertionError, ValueError, NotImplementedError)):
    check()


def test_a_draft_in_another_process_is_refused():
  decoder = types.SimpleNamespace(drafter=object.__new__(Link))
  with pytest.raises(ValueError, match="A draft in another process can't be exported"):
    exporting.check_decoder(decoder)
