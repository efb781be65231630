"""Reading and writing Hugging Face folders without torch."""

import json
import warnings

import chex
import jax
import numpy as np
import pytest
import safetensors.numpy

import specdec_t5x
from lab.peers import hf_folder
from specdec_t5x.hugging_face import folder, names
from tests.errors import folders
from tests.t5x_bridge import tiny


@pytest.fixture
def theirs(tmp_path):
  return folders.write(tmp_path / "theirs")


def arrays_of(path):
  return safetensors.numpy.load_file(path / folders.WEIGHTS)


def test_a_written_folder_has_the_network_s_parameters(theirs, monkeypatch):
  monkeypatch.setenv("HOME", str(theirs.parent))
  for path in (str(theirs), "~/theirs"):
    loaded = specdec_t5x.load_model(path)
    assert loaded.network.config == tiny.TARGET
    chex.assert_trees_all_equal(loaded.params, tiny.drawn(tiny.TARGET))
  # config.json gives the activation, because GELU and SiLU have equal shapes.
  folders.set_config(theirs, feed_forward_proj="gated-silu")
  settings = specdec_t5x.load_model(str(theirs)).network.config
  assert settings.mlp_activations == ("silu", "linear")


@pytest.mark.parametrize(
  "prefix", ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."]
)
@pytest.mark.parametrize("shard_bytes", [None, 4000])
def test_arrays_of_a_wrapped_module_are_read(prefix, shard_bytes, tmp_path):
  how = {} if shard_bytes is None else {"shard_bytes": shard_bytes}
  theirs = folders.write(tmp_path / "theirs", **how)
  expected = specdec_t5x.load_model(str(theirs)).params
  for file in theirs.glob("*.safetensors"):
    arrays = safetensors.numpy.load_file(file)
    wrapped = {f"{prefix}{name}": array for name, array in arrays.items()}
    safetensors.numpy.save_file(wrapped, file, metadata={"format": "pt"})
  if shard_bytes is not None:
    index = json.loads((theirs / folders.INDEX).read_text())["weight_map"]
    index = {f"{prefix}{name}": file for name, file in index.items()}
    folders.set_json(theirs / folders.INDEX, {"weight_map": index})
  chex.assert_trees_all_equal(specdec_t5x.load_model(str(theirs)).params, expected)
  if shard_bytes is None:  # One array of a wrapped module is surplus.
    arrays[f"{prefix}surplus"] = arrays[folders.HEAD]
    safetensors.numpy.save_file(arrays, file)
    with pytest.raises(ValueError, match=f"the first is {prefix}surplus"):
      specdec_t5x.load_model(str(theirs))


def test_rounding_reads_weights_in_the_dtype_of_the_file(tmp_path):
  """Rounding reads bfloat16 files in bfloat16; float32 gives equal codes."""
  narrow = jax.tree.map(lambda x: x.astype("bfloat16"), tiny.drawn(tiny.TARGET))
  wide = jax.tree.map(lambda x: x.astype("float32"), narrow)
  loaded = []
  for name, params in {"narrow": narrow, "wide": wide}.items():
    hf_folder.write(str(tmp_path / name), tiny.TARGET, params)
    loaded.append(specdec_t5x.load_model(str(tmp_path / name), weights="int8").params)
  chex.assert_trees_all_equal(*loaded)
  found = [params["token_embedder"]["embedding"].dtype for params in loaded]
  assert found == ["bfloat16", "float32"]


@pytest.mark.parametrize("name", [*names.ALIASES, "lm_head.weight"])
def test_the_embedding_may_have_an_alias(name, theirs):
  found = arrays_of(theirs)
  embedding = found.pop("shared.weight")
  expected = found.setdefault(name, embedding)
  unused = np.zeros((32, 2), np.float32)
  folders.replace_arrays(theirs, found | {names.UNUSED: unused})
  found = folder.Folder.open(str(theirs)).read(names.EMBEDDING)
  np.testing.assert_array_equal(found, expected)


def test_the_file_and_the_configuration_decide_the_logits(theirs):
  arrays = arrays_of(theirs)
  head = arrays.pop("lm_head.weight")
  shared = arrays["shared.weight"]
  root = np.float32(tiny.TARGET.emb_dim**-0.5)
  # (tied in config.json, head in the file, tied in our network, projection).
  cases = [
    (False, head, False, head.T),
    (False, shared, False, shared.T),
    (False, None, False, shared.T),
    (True, head, False, head.T * root),
    (True, shared, True, None),
    (True, None, True, None),
  ]
  for tied, in_file, embeds, expected in cases:
    folders.set_config(theirs, tie_word_embeddings=tied)
    head_array = {} if in_file is None else {"lm_head.weight": in_file}
    folders.replace_arrays(theirs, arrays | head_array)
    found = folder.Folder.open(str(theirs))
    assert found.config.logits_via_embedding == embeds
    assert (names.LOGITS in found.shapes) == (not embeds)
    if not embeds:
      np.testing.assert_allclose(found.read(names.LOGITS), expected, rtol=1e-6)


def test_an_untied_folder_without_a_projection_warns(theirs):
  """The warning names the embedding, which transformers 5 also uses.

  transformers 4 would draw a random projection.
  """
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    folder.Folder.open(str(theirs))
    folders.set_arrays(theirs, lambda arrays: arrays.pop("lm_head.weight"))
    message = "lm_head.weight is missing: logits come from shared.weight, as in tr"
    with pytest.raises(UserWarning, match=message):
      folder.Folder.open(str(theirs))
    folders.set_config(theirs, tie_word_embeddings=True)
    folder.Folder.open(str(theirs))
