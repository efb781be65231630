"""The decoder-only network's prompts; that it scores as at once: test_transformer."""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.network import functional
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.transformer import Transformer
from tests import networks
from tests.network import kinds
from tests.network.kinds import GPT, ROWS, SLOTS, random_tokens

NETWORK = functional.network_for(GPT)


def test_prompts_of_any_length_are_read_but_for_the_last_known_token():
  prompts = jnp.array([[7, 9, 11, 13, 15, 17], [8, 6, 0, 0, 0, 0], [0] * 6])
  extend, cache = networks.start(
    NETWORK, kinds.variables(GPT)["params"], prompts, SLOTS, 2, prompts
  )
  np.testing.assert_array_equal(cache.index, [6, 6, 2, 2, 0, 0])
  # The last known token: the prompt's, or the start token.
  last = jnp.array([17, 17, 6, 6, 0, 0])
  logits, _, _ = extend(cache, last[:, None])
  sequences = jnp.pad(prompts, ((0, 0), (1, 0)))
  expected = kinds.forced(GPT, sequences)[jnp.arange(ROWS), jnp.array([6, 2, 0])]
  np.testing.assert_allclose(logits[:, 0], jnp.repeat(expected, 2, axis=0), atol=1e-5)


def test_a_prompt_that_sees_all_of_itself_is_refused():
  tokens = random_tokens(6, 3)
  with pytest.raises(ValueError, match="causal in the prompt"):
    NETWORK.apply(kinds.variables(GPT), tokens, tokens, decoder_causal_attention=tokens)


def test_kinds_of_networks_do_not_mix():
  t5 = Transformer(T5Config(vocab_size=40))
  inputs = jnp.ones((1, 3), jnp.int32)
  assert functional.prompts_of(inputs, NETWORK).shape == (1, 3)
  assert functional.prompts_of(inputs, t5).shape == (1, 0)
  with pytest.raises(ValueError, match="both decoder-only, got a GptTransformer and"):
    functional.check_same_kind(NETWORK, t5)
