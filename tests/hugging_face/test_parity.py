"""Folders from transformers give torch's logits and outputs, and vice versa."""

import dataclasses
import functools
import json
import pathlib
import tomllib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.peers import hf_folder
from specdec_t5x import api
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.hugging_face import folder, names
from specdec_t5x.network import attention, products
from specdec_t5x.network.decoder import CachedNetwork
from specdec_t5x.network.gemma import GemmaConfig
from specdec_t5x.ways import assembled

torch = pytest.importorskip("torch", reason="the extra `peers` is not installed")
transformers = pytest.importorskip(
  "transformers", reason="the extra `peers` is not installed"
)

READ = tomllib.loads(pathlib.Path(__file__).with_name("kinds.toml").read_text())
SHAPE = READ["shape"]
GEMMAS = READ["gemmas"]
KINDS = {**READ["kinds"], **GEMMAS}
LENGTH = 30
TIED = 0.1


@functools.cache
def theirs(kind):
  """Returns a transformers network with random weights that spread the logits."""
  torch.manual_seed(0)
  is_gemma = kind in GEMMAS
  settings = {"vocab_size": 60} if is_gemma else dict(SHAPE)
  settings |= KINDS[kind]
  own_head = settings.pop("own_head", False)
  config = transformers.AutoConfig.for_model(**settings)
  make = transformers.AutoModelForSeq2SeqLM.from_config
  if is_gemma:
    return drawn(make(config, attn_implementation="eager").eval())
  config.decoder_start_token_id = 0
  network = make(config).eval()
  for name, weights in network.named_parameters():
    if "layer_norm" in name or "relative_attention_bias" in name:
      torch.nn.init.normal_(weights.data, 1.0, 0.3)
  if own_head:
    head = torch.randn_like(network.lm_head.weight) / 4
    network.lm_head.weight = torch.nn.Parameter(head)
  else:
    network.shared.weight.data *= TIED  # Otherwise every token repeats.
  return network


def drawn(network):
  """Draws the parameters of a T5Gemma, including the norms, and returns the network."""
  for name, weights in network.named_parameters():
    scale = 0.8 if weights.ndim == 1 else 0.05 if "embed" in name else 0.6
    torch.nn.init.normal_(weights.data, 0.0, scale)
  return network


def batch(size):
  # Beyond a distance of 128, every distance shares a bucket.
  draw = np.random.default_rng(0).integers
  inputs = draw(2, size, (2, 150))
  fed = draw(2, size, (2, 140))
  inputs[1, 100:] = 0
  fed[:, 0] = 0
  return inputs, fed


def their_logits(network, inputs, fed):
  inputs = torch.tensor(inputs)
  fed = torch.tensor(fed)
  if "t5gemma" in network.config.model_type:
    fed[:, 0] = network.config.bos_token_id  # Our networks begin with 0, like T5X.
  with torch.inference_mode():
    mask = (inputs != 0).long()
    output = network(input_ids=inputs, attention_mask=mask, decoder_input_ids=fed)
  return output.logits.float().numpy()


def our_logits(model, inputs, fed):
  arrays = (jnp.asarray(x, jnp.int32) for x in (inputs, fed, np.ones_like(fed)))
  variables = {"params": model.params}
  return np.asarray(model.network.apply(variables, *arrays, enable_dropout=False))


def their_outputs(network, inputs):
  fed = np.zeros((len(inputs), 1), int)
  for _ in range(LENGTH):
    best = their_logits(network, inputs, fed)[:, -1].argmax(-1)
    fed = np.concatenate([fed, best[:, None]], 1)
  return fed[:, 1:]


def our_outputs(target, draft, inputs):
  decoder, params = assembled(target, draft)
  run = api.compiled(decoder, GREEDY, LENGTH, -1)
  keys = row_keys(jax.random.key(0), len(inputs))
  return np.asarray(run(params, jnp.asarray(inputs, jnp.int32), keys).tokens)


def assert_same_logits(model, network):
  inputs, fed = batch(network.config.vocab_size)
  logits = our_logits(model, inputs, fed)
  np.testing.assert_allclose(logits, their_logits(network, inputs, fed), atol=1e-4)
  assert logits.std() > 0.02


def assert_same(model, network):
  assert_same_logits(model, network)
  inputs, _ = batch(network.config.vocab_size)
  outputs = their_outputs(network, inputs)
  assert len(np.unique(outputs)) > 2
  assert our_outputs(model, None, inputs).tolist() == outputs.tolist()
  assert our_outputs(model, model, inputs).tolist() == outputs.tolist()


# Weights in a single file or in several files.
SHARDS = [(kind, (2**30, 4096)[number % 2]) for number, kind in enumerate(KINDS)]


@pytest.mark.parametrize(("kind", "shard_bytes"), SHARDS)
def test_folders_are_read_in_either_direction(kind, shard_bytes, tmp_path):
  theirs(kind).save_pretrained(tmp_path / "theirs")
  model = api.load_model(str(tmp_path / "theirs"))
  assert_same(model, theirs(kind))
  ours = tmp_path / "ours"
  hf_folder.write(
    str(ours), model.network.config, model.params, shard_bytes=shard_bytes
  )
  back = api.load_model(str(ours))
  assert back.network.config == model.network.config
  chex.assert_trees_all_equal(back.params, model.params)
  options = {"attn_implementation": "eager"} if kind in GEMMAS else {}
  reloaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(ours, **options)
  assert_same_logits(model, reloaded.eval())


@pytest.mark.parametrize("kind", ["T5 1.0", "T5 1.1, Flan"])
def test_shards_in_bfloat16_are_read(kind, tmp_path):
  theirs(kind).bfloat16().save_pretrained(tmp_path, max_shard_size="20KB")
  theirs.cache_clear()
  assert len(list(tmp_path.glob("*.safetensors"))) > 2
  reread = transformers.AutoModelForSeq2SeqLM.from_pretrained(
    tmp_path, dtype=torch.float32
  )
  assert_same(api.load_model(str(tmp_path)), reread.eval())


REACHES = GemmaConfig.reaches
THEIR_NAME = names.their_name
IS_TRANSPOSED = names.is_transposed


def whole_window(self, *args, **how):
  wide = dataclasses.replace(self, window=999, encoder=None)
  return REACHES(wide, *args, **how)


def gates_swapped(path):
  swap = {"wi_0": "wi_1", "wi_1": "wi_0"}
  return THEIR_NAME("/".join(swap.get(part, part) for part in path.split("/")))


def but_of_outputs(path):
  return IS_TRANSPOSED(path) and "self_attention/out" not in path


def bias_of_the_other_stack(path):
  swap = {"encoder": "decoder", "decoder": "encoder"}
  stack, _, rest = path.partition("/")
  is_bias = rest.startswith("relpos_bias")
  return THEIR_NAME(f"{swap[stack]}/{rest}" if is_bias else path)


@pytest.mark.parametrize(
  ("owner", "name", "fault", "kind"),
  [
    (folder.settings, "has_scaled_logits", lambda found: False, "T5 1.0"),
    (names, "their_name", gates_swapped, "T5 1.1, Flan"),
    (names, "is_transposed", but_of_outputs, "square"),
    (names, "their_name", bias_of_the_other_stack, "mT5"),
    (attention, "rotated", lambda x, positions, reach: x, "T5Gemma 2"),
    (GemmaConfig, "reaches", whole_window, "T5Gemma 2"),
    (products, "capped", lambda x, cap: x, "T5Gemma"),
    (GemmaConfig, "query_scale", 1.0, "T5Gemma"),
    (CachedNetwork, "started", lambda self, tokens, is_first: tokens, "T5Gemma"),
  ],
  ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_planted_fault_is_seen(owner, name, fault, kind, tmp_path, monkeypatch):
  if kind == "square":
    # Heads as wide as the residual stream: matrix and transpose have equal shapes.
    monkeypatch.setitem(SHAPE, "d_kv", 16)
    monkeypatch.setitem(SHAPE, "num_heads", 2)
    monkeypatch.setitem(KINDS, kind, KINDS["T5 1.1, Flan"])
  theirs(kind).save_pretrained(tmp_path)
  jax.clear_caches()  # Compiled programs may have the previous fault.
  assert_same_logits(api.load_model(str(tmp_path)), theirs(kind))
  monkeypatch.setattr(owner, name, fault)
  jax.clear_caches()
  with pytest.raises(AssertionError):
    assert_same_logits(api.load_model(str(tmp_path)), theirs(kind))


def test_the_scale_of_logits_is_read_like_transformers():
  """transformers 5.x has a setting for the scale; 4.x scales if embeddings are tied."""
  scaled = folder.settings.has_scaled_logits
  for kind in KINDS.keys() - GEMMAS.keys():
    settings = theirs(kind).config.to_dict()
    expected = getattr(theirs(kind).config, "scale_decoder_outputs", False)
    assert scaled(settings) == expected
  assert scaled({"model_type": "t5"})
  assert not scaled({"model_type": "t5", "tie_word_embeddings": False})


# Settings in generation_config.json for networks of 60 tokens.
GENERATIONS = {
  "another end": {"eos_token_id": 2},
  "several ends": {"eos_token_id": [1, 17, 40, 9, 33]},
  "another start": {"decoder_start_token_id": 5, "eos_token_id": [12, 3]},
  "another padding": {"pad_token_id": 6, "decoder_start_token_id": 6},
}
# Ids of padding are normal tokens within an input.
INPUTS = [[5, 9, 7, 1], [8, 0, 0, 31, 1], [4, 6, 6, 4], [44]]


@pytest.mark.parametrize("how", GENERATIONS)
@pytest.mark.parametrize("kind", ["T5 1.0", "T5 1.1, Flan", "MADLAD-400", "T5Gemma"])
def test_greedy_tokens_equal_transformers_with_every_setting(kind, how, tmp_path):
  theirs(kind).save_pretrained(tmp_path)
  fields = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
  fields |= {} if kind in GEMMAS else {"decoder_start_token_id": 0}
  (tmp_path / "generation_config.json").write_text(
    json.dumps(fields | GENERATIONS[how])
  )
  settings = {"attn_implementation": "eager"} if kind in GEMMAS else {}
  network = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **settings)
  expected = []
  for ids in INPUTS:
    inputs = torch.tensor([ids])
    options = {"attention_mask": torch.ones_like(inputs), "max_new_tokens": LENGTH}
    # The decoder cache of `generate` has only as many layers as the encoder.
    options["use_cache"] = False
    (output,) = network.eval().generate(inputs, do_sample=False, **options)
    expected.append(output[1:].tolist())
  model = api.load_model(str(tmp_path))
  for draft in (None, model):
    found = api.generate(INPUTS, model, draft, max_length=LENGTH)
    assert [output.tokens for output in found] == expected
