"""A draft on the target's encoder: initial parameters, distillation, configuration."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.network.functional import network_for
from specdec_t5x.training.heads import begun, new_heads
from specdec_t5x.training.objectives import TokenDistillation
from tests.training.conftest import NETWORK, params_of, saved
from tests.training.test_heads import batch

DEEP, TARGET = (
  network_for(dataclasses.replace(NETWORK, num_decoder_layers=layers))
  for layers in (4, 2)
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
  return saved(TARGET, tmp_path_factory.mktemp("target"), params_of(TARGET))


def on_encoder(target, layers=1):
  return new_heads(target, "shared_encoder", 4, layers)


@pytest.mark.parametrize(
  ("layers", "taken"), [(1, [3]), (2, [0, 3]), (3, [0, 2, 3]), (4, [0, 1, 2, 3])]
)
def test_a_new_draft_has_layers_of_the_target_s_decoder(tmp_path, layers, taken):
  teacher = params_of(DEEP)
  network = on_encoder(saved(DEEP, tmp_path, teacher), layers)
  result = begun(network, params_of(network, 1), teacher)
  expected = {**teacher["decoder"]}
  copied = {f"layers_{i}": expected[f"layers_{layer}"] for i, layer in enumerate(taken)}
  others = {name: x for name, x in expected.items() if not name.startswith("layers_")}
  embedder = teacher["token_embedder"]
  expected = {"token_embedder": embedder, "decoder": {**others, **copied}}
  jax.tree.map(np.testing.assert_array_equal, result, expected)


def test_a_draft_with_every_layer_equals_the_target(target):
  """Rows are packed: a token reads the encoder features of the same example."""
  network = on_encoder(target, 2)
  teacher = params_of(TARGET)
  params = begun(network, params_of(network, 1), teacher)
  judged = jax.jit(lambda b: TokenDistillation(TARGET)(network, params, b, teacher))
  result = jnp.where(batch()["decoder_loss_weights"] > 0, judged(batch()).losses, 0)
  np.testing.assert_allclose(result, 0, atol=1e-6)


def test_the_configuration_distils_on_the_target_s_encoder(target, bound, translations):
  bindings = {
    **translations,
    **{"HEADS": "shared_encoder", "HEAD_LAYERS": 2},
    **{"TARGET_CHECKPOINT_PATH": target, "DISTILL_LOSS": "negative_log_alpha"},
  }
  bindings["tasks.translation_from_files.name"] = "texts"
  result = bound("heads", **bindings)
  shape = result.network.config
  assert (shape.num_encoder_layers, shape.num_decoder_layers) == (0, 2)
  assert result.objective == TokenDistillation(TARGET, "negative_log_alpha")
