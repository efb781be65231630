"""Samples from the Multi30k pair follow the target's enumerated distribution.

docs/results/correctness.md has the result of a run with 20,000 samples.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
from t5x import checkpoints

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import delayed
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network.functional import start_decoding
from specdec_t5x.network.transformer import Transformer
from tests import networks, real_data
from tests.decoding.test_generate import assert_follows

TARGET = Transformer(real_data.M30K_TARGET)
DRAFT = Transformer(real_data.M30K_DRAFT)
SENTENCE = "translate English to German: Two young men are playing a game."
EOS = 1
ROWS = 300
LENGTH = 3
SAMPLING = Sampling(1.0, top_k=4)


@functools.cache
def load():
  """Returns the parameters of target and draft."""
  names = {"target": "target_checkpoint_2000", "draft": "draft_checkpoint_1800"}
  paths = {key: real_data.path("t5x_m30k", name) for key, name in names.items()}

  def read(path):
    return checkpoints.load_t5x_checkpoint(str(path))["target"]

  return {key: jax.tree.map(jnp.asarray, read(path)) for key, path in paths.items()}


def inputs():
  model = str(real_data.path("multi30k", "m30k_8k.model"))
  ids = sentencepiece.SentencePieceProcessor(model_file=model).encode(SENTENCE)
  return jnp.asarray([[*ids, EOS]], jnp.int32)


@functools.partial(jax.jit, static_argnames="sampling")
def next_probs(params, inputs, prefixes, lengths, sampling):
  """Returns the adjusted distribution [N, V] after prefixes of the given lengths."""
  extend, cache = start_decoding(TARGET, params, inputs, LENGTH, len(prefixes))
  logits, _, _ = extend(cache, prefixes)
  last = jnp.take_along_axis(logits, lengths[:, None, None] - 1, axis=1)[:, 0]
  return adjusted_probs(last, sampling)


def output_probs(params, inputs):
  """Returns the float64 probability of each possible output."""
  distribution = {(): 1.0}
  for length in range(1, LENGTH + 1):
    live = [prefix for prefix in distribution if prefix[-1:] != (EOS,)]
    # A fixed shape for all lengths needs only one program.
    prefixes = np.zeros((SAMPLING.top_k ** (LENGTH - 1), LENGTH), np.int32)
    prefixes[: len(live), 1:length] = np.reshape(live, (len(live), length - 1))
    lengths = jnp.full(len(prefixes), length)
    probs = next_probs(params, inputs, jnp.asarray(prefixes), lengths, SAMPLING)
    for prefix, row in zip(live, np.asarray(probs, np.float64), strict=False):
      mass = distribution.pop(prefix)
      distribution |= {(*prefix, int(x)): mass * row[x] for x in np.flatnonzero(row)}
  assert sum(distribution.values()) == pytest.approx(1, abs=1e-5)
  return {
    output + (0,) * (LENGTH - len(output)): p for output, p in distribution.items()
  }


@pytest.mark.slow
def test_samples_follow_the_enumerated_distribution():
  params = load()
  source = inputs()
  drafter = TreeDraft(DRAFT, delayed(1, 2, 2), "distinct")
  decoder = Decoder(TARGET, drafter, RULES["traversal"])
  decoded = networks.run(decoder, params, source, LENGTH, SAMPLING, per_input=ROWS)
  assert_follows(decoded.tokens, output_probs(params["target"], source))
