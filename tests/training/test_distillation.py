"""The model for T5X's trainer: the loss and the trained parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio

from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.training.distillation import DistillationModel, of_draft
from tests.networks import forced
from tests.t5x_bridge import tiny
from tests.training.conftest import params_of

VOCABULARY = seqio.PassThroughVocabulary(tiny.VOCAB_SIZE)


def make(decoder=None):
  decoder = decoder or tiny.decoder(target=tiny.DRAFT)
  return DistillationModel(
    decoder, VOCABULARY, VOCABULARY, GREEDY, optimizer_def="of the draft"
  )


@pytest.mark.slow
def test_only_the_draft_learns_the_target_s_distributions(monkeypatch):
  model = make()
  # The runtime lacks T5X's method. The stub returns the method's arguments.
  monkeypatch.setattr(model, "_compute_metrics", lambda **given: given, raising=False)
  networks = model.decoder.networks
  params = {name: params_of(networks[name], x) for x, name in enumerate(networks)}
  tokens = jax.random.randint(jax.random.key(1), (2, 6), 3, 30)
  weights = jnp.array([[1] * 6, [1] * 2 + [0] * 4])
  batch = forced(tokens, tokens) | {"decoder_loss_weights": weights}
  tokens = list(batch.values())[:3]

  @jax.jit
  def run(params):
    result = jax.value_and_grad(model.loss_fn, has_aux=True)(params, batch, None)
    logits = {
      name: network.apply({"params": params[name]}, *tokens, enable_dropout=False)
      for name, network in networks.items()
    }
    return result, logits

  ((loss, metrics), grads), logits = run(params)
  p, q = (np.array(jax.nn.softmax(logits[name])) for name in ("target", "draft"))
  kl = np.sum(p * np.log(p / q), axis=-1)
  np.testing.assert_allclose(loss, np.sum(kl * weights), rtol=1e-4)
  np.testing.assert_array_equal(metrics["mask"], weights)

  def largest(tree):
    return max(float(jnp.abs(x).max()) for x in jax.tree.leaves(tree))

  assert largest(grads["target"]) == 0 < largest(grads["draft"])


def test_the_optimizer_has_only_the_draft_s_parameters():
  params = {"target": {"kernel": 1}, "draft": {"kernel": 2}}
  assert list(of_draft().iterate(params)) == [2]
  assert make().optimizer_def == "of the draft"


def test_models_without_a_trainable_draft_are_refused():
  with pytest.raises(ValueError, match=r"networks .'target'.* tables with python -m"):
    make(tiny.decoder(draft=None, drafter="copy", gamma=3))
  with pytest.raises(ValueError, match=r"t5x_distill.gin.* use specdec_t5x.generate"):
    tiny.speculative(VOCABULARY).optimizer_def  # noqa: B018 - it raises
