"""Drafts with a different vocabulary: real networks, real tokenizers, and refusals."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from specdec_t5x.build import get_drafter
from specdec_t5x.contrib import vocabulary_tables
from specdec_t5x.contrib.other_vocabulary import OtherVocabulary
from specdec_t5x.contrib.shared_tokens import SharedTokens
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.functional import network_for
from specdec_t5x.vocabularies.bytes import Bytes
from specdec_t5x.vocabularies.opening import open_vocabulary
from tests import networks
from tests.t5x_bridge import tiny, tiny_gpt
from tests.training.conftest import params_of

ROOM = 12
INPUTS = jnp.array([[5, 6, 7, 1, 0, 0], [9, 3, 1, 0, 0, 0], [4, 4, 8, 9, 6, 1]])
VOCAB = tiny.VOCAB_SIZE
RNG = np.random.default_rng(0)
# Token i of the target is token OTHER[i] of the draft; EOS is 1 in both vocabularies.
OTHER = np.array([0, 1, *(2 + RNG.permutation(VOCAB - 2))], np.int32)
RENAMED = SharedTokens(np.where(OTHER, OTHER, -1), OTHER[:, None])
# Every third token of the target is two tokens of the draft.
IDS = np.where((np.arange(VOCAB) % 3 == 2) | (OTHER == 0), -1, OTHER)
TWO = np.stack([OTHER, np.where(IDS < 0, np.roll(OTHER, 5), 0)], axis=1)
TWO[0] = 0
PARTLY = SharedTokens(IDS, TWO)


def renamed(params):
  """Returns the parameters of the same network with the token ids of RENAMED."""
  tables = {"token_embedder": 0, "logits_dense": 1}

  def rename(path, x):
    keys = {getattr(key, "key", None) for key in path}
    for name, axis in tables.items():
      if name in keys:
        return jnp.take(x, np.argsort(OTHER), axis=axis)
    return x

  return jax.tree_util.tree_map_with_path(rename, params)


def run(network, drafter=None, slots=0):
  target = params_of(network, factor=2.0)
  params = {"target": target, "draft": renamed(target)}
  decoder = PlainDecoder(network, slots=slots)
  if drafter:
    decoder = SpeculativeDecoder(network, drafter, RULES["token"], slots=slots)
  return networks.run(decoder, params, INPUTS, ROOM)


@pytest.mark.parametrize(
  ("config", "tokens"),
  [
    (tiny.TARGET, RENAMED),
    pytest.param(tiny_gpt.TARGET, PARTLY, marks=pytest.mark.slow),
  ],
  ids=["T5", "decoder-only"],
)
def test_a_target_with_renamed_tokens_drafts_for_itself(config, tokens):
  """The draft reads its own tokens, and proposes the target's tokens."""
  network = network_for(config)
  found = run(network, OtherVocabulary(network, 3, tokens=tokens), slots=2)
  np.testing.assert_array_equal(found.tokens, run(network, slots=2).tokens)
  drafted = found.statistics.drafted
  accepted = found.statistics.accepted
  assert drafted.sum() > 10
  if tokens is RENAMED:
    np.testing.assert_array_equal(accepted, drafted)
  else:
    assert 0 < accepted.sum() < drafted.sum()


def test_only_shared_tokens_are_drafted():
  logits = PARTLY.of_target(jnp.zeros((2, VOCAB)), VOCAB + 8)
  probs = np.asarray(jax.nn.softmax(logits))
  np.testing.assert_allclose(probs[:, :VOCAB][:, IDS >= 0], 1 / (IDS >= 0).sum(), 1e-5)
  assert probs[:, VOCAB:].max() == probs[:, :VOCAB][:, IDS < 0].max() == 0


def test_texts_are_converted_to_draft_tokens():
  ids = np.array([-1, 1, -1, 7], np.int32)
  tokens = SharedTokens(ids, np.array([[0, 0], [1, 0], [4, 5], [7, 0]], np.int32))
  assert tokens.longer == 1
  texts = jnp.array([[3, 2, 1, 0], [2, 2, 2, 1], [0, 3, 0, 9]])
  expected = [[7, 4, 5, 1], [4, 5, 4, 5], [7, 0, 0, 0]]
  np.testing.assert_array_equal(tokens.in_draft(texts), expected)


def trained(root, size, text):
  settings = {"model_prefix": str(root / f"{size}"), "vocab_size": size, "bos_id": -1}
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(text),
    pad_id=0,
    eos_id=1,
    unk_id=2,
    minloglevel=2,
    **settings,
  )
  return open_vocabulary(f"{root / str(size)}.model")


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
  root = tmp_path_factory.mktemp("tokens")
  text = tiny.sentences(300)
  return *(trained(root, size, text) for size in (30, 22)), Bytes()


@pytest.mark.slow
def test_tables_between_real_tokenizers_preserve_texts(vocabularies):
  for target, draft in itertools.permutations(vocabularies, 2):
    tokens = vocabulary_tables.between(target, draft)
    assert tokens.ids[target.eos_id] == draft.eos_id
    assert tokens.ids[0] == tokens.ids[2] == -1
    texts = tiny.sentences(5, seed=2)
    inputs = np.zeros((len(texts), 160), np.int32)
    for row, text in zip(inputs, texts, strict=True):
      ids = [*target.encode(text), target.eos_id]
      row[: len(ids)] = ids
    converted = jax.jit(tokens.in_draft)(inputs).tolist()
    for text, row in zip(texts, converted, strict=True):
      ids_in_draft = [x for x in row if x]
      assert ids_in_draft[-1] == draft.eos_id
      assert draft.decode(ids_in_draft[:-1]).strip() == text
    for token in np.flatnonzero(tokens.ids >= 0)[1:].tolist():
      draft_text = draft.decode([int(tokens.ids[token])])
      assert draft_text.strip() == target.decode([token]).strip()


def test_unsuitable_drafts_are_refused(vocabularies):
  with pytest.raises(ValueError, match=r"0 of the target's 3 tokens"):
    SharedTokens(np.full(3, -1, np.int32), np.zeros((3, 1), np.int32))
  lacking = network_for(dataclasses.replace(tiny.DRAFT, num_encoder_layers=0))
  tokens = vocabulary_tables.between(vocabularies[0], vocabularies[1])
  target = network_for(tiny.TARGET)
  draft = network_for(tiny.DRAFT)
  with pytest.raises(ValueError, match="needs a draft with an encoder"):
    SpeculativeDecoder(target, OtherVocabulary(lacking, tokens=tokens))
  for more in ({"num_candidates": 2}, {"drafter": "copy"}):
    with pytest.raises(ValueError, match="draft_tokenizer needs drafter='draft_model'"):
      get_drafter(**{"drafter": "draft_model", "network": draft, **more}, shared=tokens)
  assert get_drafter("draft_model", draft) == DraftModel(draft)
