"""Reading and writing Hugging Face folders without torch, also as published."""

import dataclasses
import functools
import json
import os
import pathlib
import warnings

import chex
import flax
import jax
import numpy as np
import pytest
import safetensors.numpy

import specdec_t5x
from lab.peers import hf_folder
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.hugging_face import folder, names
from specdec_t5x.hugging_face.folder import Folder
from specdec_t5x.network.functional import network_for
from specdec_t5x.t5x_bridge import restore
from tests import commands, damage
from tests.errors import folders
from tests.errors.test_fuzz import assert_read_or_refused
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
@pytest.mark.parametrize("shard_bytes", [2**30, 4000])
def test_arrays_of_a_wrapped_module_are_read(prefix, shard_bytes, tmp_path):
  theirs = folders.write(tmp_path / "theirs", shard_bytes=shard_bytes)
  expected = specdec_t5x.load_model(str(theirs)).params
  for file in theirs.glob("*.safetensors"):
    arrays = safetensors.numpy.load_file(file)
    wrapped = {f"{prefix}{name}": array for name, array in arrays.items()}
    safetensors.numpy.save_file(wrapped, file, metadata={"format": "pt"})
  has_index = (theirs / folders.INDEX).exists()
  if has_index:
    index = json.loads((theirs / folders.INDEX).read_text())["weight_map"]
    index = {f"{prefix}{name}": file for name, file in index.items()}
    folders.set_json(theirs / folders.INDEX, {"weight_map": index})
  chex.assert_trees_all_equal(specdec_t5x.load_model(str(theirs)).params, expected)
  if not has_index:  # One array of a wrapped module is surplus.
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


# ---- Folders as published on hubs. ----

TIED = dataclasses.replace(tiny.TARGET, logits_via_embedding=True)
EMBEDDING = "shared.weight"


def sharded(folder, config=tiny.TARGET):
  """Writes a folder of several files and returns the network's parameters."""
  params = tiny.drawn(config)
  hf_folder.write(str(folder), config, params, shard_bytes=9000)
  return params


def assert_reads(folder, params):
  chex.assert_trees_all_equal(specdec_t5x.load_model(str(folder)).params, params)


@pytest.mark.parametrize(
  ("config", "copies"),
  [
    (tiny.TARGET, names.ALIASES),
    (tiny.TARGET, names.ALIASES[1:]),
    (TIED, (folders.HEAD,)),
    (TIED, (folders.HEAD, *names.ALIASES, names.UNUSED)),
  ],
)
@pytest.mark.parametrize("has_name", [True, False])
def test_an_index_may_name_copies_of_stored_arrays(config, copies, has_name, tmp_path):
  """The index may also name an alias of the embedding alone."""
  params = sharded(tmp_path, config)

  def change(files):
    files |= dict.fromkeys(copies, files[EMBEDDING])
    if not has_name:
      del files[EMBEDDING]

  folders.set_map(tmp_path, change)
  assert_reads(tmp_path, params)


@pytest.mark.parametrize(
  ("stored", "lost"),
  [
    (folders.HEAD, folders.HEAD),  # The network is untied, so the head is needed.
    (EMBEDDING, names.ALIASES[1]),
  ],
)
def test_a_missing_array_is_named(stored, lost, tmp_path):
  """tests/errors/cases.toml has the other arrays."""
  sharded(tmp_path)
  files = json.loads((tmp_path / folders.INDEX).read_text())["weight_map"]
  path = tmp_path / files[stored]
  arrays = safetensors.numpy.load_file(path)
  del arrays[stored]
  safetensors.numpy.save_file(arrays, path)
  folders.set_map(tmp_path, lambda files: files.setdefault(lost, files[stored]))
  with pytest.raises(ValueError, match=f"lacks {lost}"):
    Folder.open(str(tmp_path))


LEFTOVERS = {
  "encoder.block.0.layer.0.layer_norm.bias": (16,),
  "decoder.final_layer_norm.bias": (16,),
  "model.encoder.embed_positions._float_tensor": (1,),
  "final_logits_bias": (1, 64),
  "lm_head.bias": (64,),
}


@pytest.mark.parametrize("name", LEFTOVERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_leftover_zeros_are_reported_and_skipped(name, dtype, tmp_path, capsys):
  theirs = folders.write(tmp_path / "theirs")
  leftover = np.zeros(LEFTOVERS[name], dtype)
  folders.set_arrays(theirs, lambda arrays: arrays.update({name: leftover}))
  assert_reads(theirs, tiny.drawn(tiny.TARGET))
  lines = capsys.readouterr().err.splitlines()
  assert [
    line for line in lines if "left out 1 arrays of zeros" in line and name in line
  ]
  assert len([line for line in lines if name in line]) == 1
  for value in (-1, np.nan):
    leftover.flat[-1] = value
    folders.set_arrays(theirs, lambda arrays: arrays.update({name: leftover}))
    with pytest.raises(ValueError, match=f"lacks; the first is {name}"):
      Folder.open(str(theirs))


def assert_says_pointer(read, path):
  damage.make_pointer(path)
  message = r"is a pointer of Git LFS.*`git lfs pull` in "
  with pytest.raises((ValueError, SystemExit), match=message) as error:
    read()
  assert str(path) in str(error.value)


@pytest.mark.parametrize("name", [folders.CONFIG, folders.INDEX, "model-00002-of-*"])
def test_a_pointer_in_a_folder_is_named(name, tmp_path):
  sharded(tmp_path)
  path = next(tmp_path.glob(name))
  assert_says_pointer(lambda: specdec_t5x.load_model(str(tmp_path)), path)
  theirs = folders.write(tmp_path / "theirs")
  tokenizer = theirs / "tokenizer.json"
  tokenizer.touch()
  assert_says_pointer(lambda: commands.loading(str(theirs)), tokenizer)


def test_an_unused_pointer_is_ignored(tmp_path):
  theirs = folders.write(tmp_path / "theirs")
  for name in ("tf_model.h5", "pytorch_model.bin", "flax_model.msgpack"):
    (theirs / name).touch()
    damage.make_pointer(theirs / name)
  assert_reads(theirs, tiny.drawn(tiny.TARGET))
  folders.set_arrays(theirs, lambda arrays: arrays[folders.NORM].fill(np.nan))
  with pytest.raises(ValueError, match="is not finite"):
    specdec_t5x.load_model(str(theirs))


@pytest.mark.parametrize(
  ("format", "pattern"),
  [
    ("t5x", "checkpoint"),
    ("orbax", "state/_METADATA"),
    ("orbax", "state/manifest.ocdbt"),
    ("orbax", "state/d/*"),
  ],
)
def test_a_pointer_in_a_checkpoint_is_named(format, pattern, tmp_path):
  saved = tiny.save(tmp_path, tiny.TARGET, tiny.drawn(tiny.TARGET), format)
  state = restore.abstract_state(network_for(tiny.TARGET))

  def read():
    checkpoint = Checkpoint.open(saved)
    return restore.restore(checkpoint, state, restore.one_device(), None)

  read()
  for path in pathlib.Path(saved).glob(pattern):
    assert_says_pointer(read, path)
  with pytest.raises(ValueError, match="is a pointer of Git LFS"):
    specdec_t5x.load_model(saved)


def flax_path(name):
  """Returns the path of an array in transformers' Flax classes."""
  path = name.replace(".", "/").removesuffix("weight")
  if "shared" in path or "relative" in path:
    return f"{path}embedding"
  return f"{path}weight" if "norm" in path else f"{path}kernel"


def flax_file_of(path):
  return path.name.replace("model", "flax_model", 1).replace("safetensors", "msgpack")


def as_flax(folder, dtype="float32"):
  """Replaces the safetensors files of a folder by files in Flax's format."""
  index = folder / folders.INDEX
  files = {}
  for path in sorted(folder.glob("*.safetensors")):
    arrays = {
      flax_path(name): array.astype(dtype)
      for name, array in safetensors.numpy.load_file(path).items()
    }
    files |= dict.fromkeys(arrays, flax_file_of(path))
    arrays = {n: x.T if n.endswith("kernel") else x for n, x in arrays.items()}
    tree = flax.traverse_util.unflatten_dict(arrays, sep="/")
    contents = flax.serialization.msgpack_serialize(tree)
    (folder / flax_file_of(path)).write_bytes(contents)
    path.unlink()
  if index.exists():
    index.unlink()
    folders.set_json(folder / "flax_model.msgpack.index.json", {"weight_map": files})
  return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shard_bytes", [9000, 2**30])
@pytest.mark.parametrize("chunk_bytes", [500, 2**30])
def test_flax_s_format_is_read(dtype, shard_bytes, chunk_bytes, tmp_path, monkeypatch):
  """Flax's files are read, also with large arrays split into chunks."""
  monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", chunk_bytes)
  config = dataclasses.replace(
    tiny.TARGET, relpos_per_layer=shard_bytes < 2**30, mlp_activations=("relu",)
  )
  params = tiny.drawn(config)
  hf_folder.write(str(tmp_path), config, params, shard_bytes=shard_bytes)
  as_flax(tmp_path, dtype)
  loaded = specdec_t5x.load_model(str(tmp_path))
  assert loaded.network.config == config
  narrow = jax.tree.map(lambda x: x.astype(dtype).astype("float32"), params)
  chex.assert_trees_all_equal(loaded.params, narrow)


def test_safetensors_are_read_before_flax_s_format(tmp_path):
  params = sharded(tmp_path, TIED)
  (tmp_path / "flax_model.msgpack").write_bytes(b"")
  assert_reads(tmp_path, params)
  (tmp_path / "flax_model.msgpack").unlink()
  assert_reads(as_flax(tmp_path), params)
  first = min(tmp_path.glob("flax_model-*"))
  last = max(tmp_path.glob("flax_model-*"))
  last.write_bytes(first.read_bytes())
  with pytest.raises(
    ValueError, match=r"msgpack lacks .*flax_model.msgpack.index.json"
  ):
    Folder.open(str(tmp_path))


@pytest.mark.parametrize(
  ("tree", "says"),
  [
    ({"shared": {"embedding": np.ones(3, np.int8)}}, "is int8, expected one of"),
    ({"shared": {"embedding": np.float32(5)}}, "shared/embedding is no array"),
    ({"a": {"kernel": np.ones(1), "weight": np.ones(1)}}, "two arrays a.weight"),
    ({"shared": {5: np.ones(1)}}, "the file has 5 instead of a name"),
    (functools.reduce(lambda tree, _: {"a": tree}, range(40), {}), "is too deep"),
  ],
)
def test_flax_files_without_a_network_are_refused(tree, says, tmp_path):
  folders.write(tmp_path)
  (tmp_path / folders.WEIGHTS).unlink()
  contents = flax.serialization.msgpack_serialize(tree)
  (tmp_path / "flax_model.msgpack").write_bytes(contents)
  with pytest.raises(ValueError, match=f"flax_model.msgpack.*{says}"):
    Folder.open(str(tmp_path))


@pytest.mark.parametrize("seed", range(4))
def test_damage_to_flax_s_format_is_refused_or_changes_numbers_alone(seed, tmp_path):
  rng = np.random.default_rng(seed)
  folder = as_flax(folders.write(tmp_path / "theirs"))
  path = folder / "flax_model.msgpack"
  contents = path.read_bytes()
  shapes = dict(Folder.open(str(folder)).shapes)
  for time in range(50):
    damaged = bytearray(contents)
    damaged[rng.integers(len(contents))] ^= int(rng.integers(1, 256))
    cut = rng.integers(2) * rng.integers(1, len(contents))
    path.write_bytes(bytes(damaged[: len(contents) - cut]))
    os.utime(path, ns=(time, time))
    found = assert_read_or_refused(lambda: Folder.open(str(folder)), folder)
    assert found is None or cut == 0
    assert found is None or {x: found.read(x).shape for x in shapes} == shapes
