"""Outputs continue prompts of different lengths, on a tiny decoder-only pair."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.rules.lenient import Lenient
from specdec_t5x.core.rules.lossy import Typical
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft, delayed
from specdec_t5x.network import functional
from specdec_t5x.network.config import GptConfig
from tests import networks
from tests.hash_model import output_lengths

pytestmark = pytest.mark.slow

SHAPE = {"vocab_size": 12, "num_heads": 2, "head_dim": 8, "mlp_dim": 24}
TARGET, DRAFT = (
  functional.network_for(GptConfig(**SHAPE, emb_dim=width, num_layers=layers))
  for width, layers in ((16, 1), (8, 1))
)
PROMPTS = jnp.array(
  [[5, 6, 7, 8, 9], [5, 6, 7, 0, 0], [4, 1, 0, 0, 0], [0, 0, 0, 0, 0]], jnp.int32
)
EOS = 1
ROOM = 9


@pytest.fixture(scope="module")
def params():
  # Some outputs end, at different places.
  found = {"target": networks.sharp(TARGET, 26), "draft": networks.sharp(DRAFT, 2)}
  for known in found.values():
    # The padding token has logit 0, which is never the largest logit.
    head = known["decoder"]["logits_dense"]
    head["kernel"] = head["kernel"].at[:, 0].set(0)
  return found


forward = jax.jit(functools.partial(TARGET.apply, enable_dropout=False))


def logits_of(params, tokens):
  """Returns the target's logits after the start and each token, in a fixed shape."""
  known = np.zeros((1, 1 + PROMPTS.shape[1] + ROOM), int)
  known[0, 1 : 1 + len(tokens)] = tokens
  is_known = np.arange(known.size)[None] <= len(tokens)
  logits = forward({"params": params["target"]}, known, 5 * is_known)
  return np.asarray(logits[0])[: 1 + len(tokens)]


@pytest.fixture(scope="module")
def greedy(params):
  """Returns greedy outputs, from reading the whole sequence for each token."""
  outputs = np.zeros((len(PROMPTS), ROOM), int)
  for output, prompt in zip(outputs, np.asarray(PROMPTS), strict=True):
    prompt = prompt[prompt > 0]
    for i in range(ROOM):
      output[i] = logits_of(params, [*prompt, *output[:i]])[-1].argmax()
      if output[i] == EOS:
        break
  return outputs


def test_outputs_differ_by_prompt_and_some_end(greedy):
  ends = (greedy == EOS).any(axis=1)
  assert ends.any()
  assert not ends.all()
  assert len(np.unique(greedy, axis=0)) == len(greedy)


@pytest.mark.parametrize("block", [1, 4])
def test_plain_decoding_continues_each_prompt(params, greedy, block):
  decoded = networks.run(Decoder(TARGET, block=block), params, PROMPTS, ROOM)
  np.testing.assert_array_equal(decoded.tokens, greedy)
  np.testing.assert_array_equal(decoded.statistics.emitted, output_lengths(greedy))


FIXED = Fixed()
OWN = CostAware((1.0, 1.1, 1.2, 1.3, 1.4), decay=0.9, by_row=True)


@pytest.mark.parametrize(
  ("drafter", "rule", "policy"),
  [
    (DraftModel(DRAFT, 12), "token", FIXED),
    (TreeDraft(DRAFT, delayed(1, 2, 3), "distinct"), "traversal", FIXED),
    (DraftModel(DRAFT, 4), "token", OWN),
  ],
  ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_speculation_changes_no_greedy_token(params, greedy, drafter, rule, policy):
  decoder = Decoder(TARGET, drafter, RULES[rule], policy)
  decoded = networks.run(decoder, params, PROMPTS, ROOM)
  np.testing.assert_array_equal(decoded.tokens, greedy)
  np.testing.assert_array_equal(decoded.statistics.emitted, output_lengths(greedy))


def log_likelihoods(params, outputs, lengths):
  """Returns each output's log-likelihood after its prompt, from the whole sequence."""
  found = []
  for output, length, prompt in zip(
    *map(np.asarray, (outputs, lengths, PROMPTS)), strict=True
  ):
    logits = logits_of(params, [*prompt[prompt > 0], *output[:length]])
    log_probs = log_softmax(logits[-1 - length : -1], axis=1)
    found.append(log_probs[np.arange(length), output[:length]].sum())
  return np.array(found)


@pytest.mark.parametrize("rule", [Lenient(0.5), Typical()], ids=str)
def test_lossy_rules_continue_prompts(params, rule):
  decoder = Decoder(TARGET, DraftModel(DRAFT, 3), rule)
  decoded = networks.run(decoder, params, PROMPTS, ROOM, Sampling())
  emitted = decoded.statistics.emitted
  assert (decoded.tokens[np.arange(len(PROMPTS)), emitted - 1] == EOS).any()
  expected = log_likelihoods(params, decoded.tokens, emitted)
  np.testing.assert_allclose(decoded.statistics.log_prob, expected, rtol=1e-4)
