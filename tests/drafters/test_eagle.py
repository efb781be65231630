"""EAGLE: training and drafting agree, and unsupported trees are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.tree import Tree
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.network.eagle import EagleDrafter
from specdec_t5x.network.functional import start_decoding
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.training.heads import drafted_ahead
from specdec_t5x.training.objectives import forward
from specdec_t5x.ways import headed
from tests import networks
from tests.drafters.test_shared_encoder import INPUTS, TARGET, all_params

COUNT = 3
EAGLE = EagleDrafter(HeadsConfig.of(TARGET.config, COUNT, kind="eagle"))
TOKENS = jnp.array([[5, 7, 2, 9, 4, 6, 3, 1]])


def test_training_equals_drafting():
  """Unrolled steps of training equal the steps of a draft from each position."""
  params = all_params(EAGLE)
  source = INPUTS[:1, :4]
  batch = networks.forced(source, TOKENS)
  target = params["target"]
  draft = params["draft"]
  own = {"params": draft}

  @jax.jit
  def unrolled():
    features = forward(TARGET, target, batch, method="features", taps=3)
    return list(drafted_ahead(EAGLE, draft, TARGET, target, features, batch))

  @jax.jit
  def drafted(at):
    _, cache = start_decoding(TARGET, target, source, 12)
    read = batch["decoder_input_tokens"]
    _, features, cache = TARGET.apply(
      {"params": target}, cache, read, taps=3, method="extend"
    )
    embedded = TARGET.apply({"params": target}, TOKENS, method="embed")
    feature = EAGLE.apply(own, features, method="fused")
    predicted, feature, draft_cache = EAGLE.apply(
      own, EAGLE.empty_cache(1, 12), feature, embedded, cache, method="extend"
    )

    def take(x):
      return jax.lax.dynamic_slice_in_dim(x, at, 1, axis=1)

    steps = []
    predicted = take(predicted)
    feature = take(feature)
    draft_cache = draft_cache.at(jnp.full(1, at + 1))
    for step in range(COUNT):
      logits = TARGET.apply({"params": target}, predicted, method="logits")
      steps.append(logits[0, 0])
      after = jax.lax.dynamic_slice_in_dim(embedded, at + step + 1, 1, axis=1)
      predicted, feature, draft_cache = EAGLE.apply(
        own, draft_cache, feature, after, cache, method="extend"
      )
    return steps

  logits = unrolled()
  for at in range(TOKENS.shape[1] - COUNT):
    for step, expected in enumerate(drafted(at)):
      np.testing.assert_allclose(logits[step][0, at], expected, atol=2e-4)


@pytest.mark.parametrize("shape", [Tree((0, 0)), Pruned(6, 3, 3)], ids=repr)
def test_trees_other_than_chains_are_refused(shape):
  with pytest.raises(ValueError, match="EAGLE's drafter drafts chains, got shape="):
    headed(EAGLE, shape)
