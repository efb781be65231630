"""Reading and writing Hugging Face folders without torch."""

import json
import pathlib
import warnings

import chex
import jax
import numpy as np
import pytest
import safetensors.numpy

import specdec_t5x
from specdec_t5x import convert
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.hugging_face import export, folder, names
from tests import commands
from tests.damage import files_of_at_most
from tests.errors import folders
from tests.t5x_bridge import tiny

TEXTS = [
  "the old man sees a red house",
  "a  cat\tsees the   dog",
  "Zürich, ½ of ﬁve",
  "",
]


def to_t5x(source, made, *flags):
  return convert.main([f"--from={source}", f"--to={made}", *flags])


def to_theirs(made, back, *flags):
  """Converts the result of `to_t5x` back to a Hugging Face folder."""
  return to_t5x(f"{made}/checkpoint_0", back, "--to-hugging-face", *flags)


@pytest.fixture
def theirs(tmp_path):
  return folders.write(tmp_path / "theirs")


def arrays_of(path):
  return safetensors.numpy.load_file(path / folders.WEIGHTS)


@pytest.mark.parametrize("how", ["t5x", "orbax"])
def test_a_folder_converts_to_a_checkpoint_and_back(how, theirs, tmp_path):
  made = tmp_path / "ours"
  back = tmp_path / "back"
  assert to_t5x(theirs, made, f"--format={how}") == 0
  paths = str(theirs), f"{made}/checkpoint_0"
  loaded, converted = map(specdec_t5x.load_model, paths)
  assert loaded.network.config == converted.network.config == tiny.TARGET
  chex.assert_trees_all_equal(loaded.params, converted.params)
  assert to_theirs(made, back) == 0
  chex.assert_trees_all_equal(arrays_of(theirs), arrays_of(back))


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


def test_one_array_of_a_wrapped_module_is_surplus(theirs):
  def add(arrays):
    arrays["_orig_mod.shared.weight"] = arrays[folders.HEAD]

  folders.set_arrays(theirs, add)
  with pytest.raises(ValueError, match="the first is _orig_mod"):
    specdec_t5x.load_model(str(theirs))


def test_a_path_may_begin_with_the_home(theirs, monkeypatch):
  monkeypatch.setenv("HOME", str(theirs.parent))
  expected = specdec_t5x.load_model(str(theirs)).params
  chex.assert_trees_all_equal(specdec_t5x.load_model("~/theirs").params, expected)


def test_rounding_reads_weights_in_the_dtype_of_the_file(tmp_path):
  """Rounding reads bfloat16 files in bfloat16; float32 gives equal codes."""
  narrow = jax.tree.map(lambda x: x.astype("bfloat16"), tiny.drawn(tiny.TARGET))
  wide = jax.tree.map(lambda x: x.astype("float32"), narrow)
  loaded = []
  for name, params in {"narrow": narrow, "wide": wide}.items():
    export.write(str(tmp_path / name), tiny.TARGET, params)
    loaded.append(specdec_t5x.load_model(str(tmp_path / name), weights="int8").params)
  chex.assert_trees_all_equal(*loaded)
  found = [params["token_embedder"]["embedding"].dtype for params in loaded]
  assert found == ["bfloat16", "float32"]


def test_an_output_folder_is_never_overwritten(theirs, tmp_path, capsys):
  made = tmp_path / "ours"
  assert [to_t5x(theirs, made) for _ in range(2)] == [0, 1]
  assert "already holds a checkpoint_0" in capsys.readouterr().err
  assert to_theirs(made, theirs) == 1
  assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["target.gin", "draft.gin", "generation_config.json"])
def test_files_in_the_output_folder_stay(name, theirs, tmp_path, capsys):
  (tmp_path / name).write_text("mine")
  assert to_t5x(theirs, tmp_path) == 1
  assert f"already holds a {name}" in capsys.readouterr().err
  assert (tmp_path / name).read_text() == "mine"


def write_new_files(folder, *files):
  with export.all_or_nothing(folder) as partial:
    for file in files:
      (partial / file).parent.mkdir(exist_ok=True)
      (partial / file).write_text("new")


@pytest.mark.parametrize("first", ["1", "1/file"])
def test_an_interrupted_move_leaves_the_folder_as_before(first, tmp_path, monkeypatch):
  """The second of three moves fails; the first moved a file or a folder."""
  (tmp_path / "mine").write_text("mine")
  replace = pathlib.Path.replace

  def replace_one(path, to):
    if path.name == "2":
      raise OSError("no space left")
    return replace(path, to)

  monkeypatch.setattr(pathlib.Path, "replace", replace_one)
  with pytest.raises(OSError, match="no space"):
    write_new_files(tmp_path, first, "2", "3")
  assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_files_of_the_same_name_stay(tmp_path):
  (tmp_path / "taken").write_text("mine")
  with pytest.raises(ValueError, match="already holds"):
    write_new_files(tmp_path, "new", "taken")
  assert [path.name for path in tmp_path.iterdir()] == ["taken"]
  assert (tmp_path / "taken").read_text() == "mine"


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


@pytest.mark.parametrize("convert_to", [to_t5x, to_theirs])
def test_a_failed_conversion_leaves_no_files(convert_to, theirs, tmp_path, capsys):
  source = theirs
  made = tmp_path / "made"
  if convert_to is to_theirs:
    source = tmp_path / "ours"
    assert to_t5x(theirs, source) == 0
  # The first conversion compiles the programs, so the failing run caches no program.
  assert convert_to(source, tmp_path / "first") == 0
  before = commands.contents(tmp_path)
  with files_of_at_most(500):
    assert convert_to(source, made) == 1
  assert commands.contents(tmp_path) == before
  assert "error: " in capsys.readouterr().err.splitlines()[-1]
  assert convert_to(source, made) == 0


def test_a_missing_vocabulary_is_named_before_anything_is_written(
  theirs, tmp_path, capsys
):
  made = tmp_path / "ours"
  assert to_t5x(theirs, made) == 0
  before = commands.contents(tmp_path)
  assert to_theirs(made, tmp_path / "back", "--vocabulary=no.model") == 1
  assert "'no.model' is not a file" in capsys.readouterr().err
  assert commands.contents(tmp_path) == before


def test_the_configuration_gives_the_activation(theirs):
  """config.json gives the activation, because GELU and SiLU have equal shapes."""
  folders.set_config(theirs, feed_forward_proj="gated-silu")
  settings = Checkpoint.open(str(theirs)).settings()
  assert settings.mlp_activations == ("silu", "linear")
