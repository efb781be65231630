"""Restoring pairs, and refusing unusable checkpoints before any model work."""

import chex
import jax
import pytest
import seqio
from t5x import utils

from specdec_t5x.data import language_modeling, tasks
from specdec_t5x.network.functional import network_for
from specdec_t5x.t5x_bridge import preflight
from tests.t5x_bridge import tiny, tiny_gpt

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
  """Returns the checkpoints of target and draft by kind."""

  def saved(kind, format):
    root = tmp_path_factory.mktemp("pair")
    return {
      "target": tiny.save_t5x(root / "target", kind.TARGET, seed=1, format=format),
      "draft": tiny.save_t5x(root / "draft", kind.DRAFT, seed=2, format=format),
    }

  return {
    "t5x": saved(tiny, "t5x"),
    "orbax": saved(tiny, "orbax"),
    "decoder-only": saved(tiny_gpt, "t5x"),
  }


@pytest.mark.parametrize("pair", ["t5x", "orbax", "decoder-only"])
def test_target_and_draft_get_their_parameters(vocabulary, paths, pair):
  kind = tiny_gpt if pair == "decoder-only" else tiny
  model = kind.speculative(vocabulary)
  restored = tiny.restored(model, paths[pair])
  assert int(restored.step) == 7
  for name, config, seed in (("target", kind.TARGET, 1), ("draft", kind.DRAFT, 2)):
    saved = tiny.state(network_for(config), seed).params
    chex.assert_trees_all_equal(restored.params[name], saved)
  assert list(model.tuned) == [(2, tiny.LENGTHS["targets"])]


@pytest.mark.parametrize("pair", ["t5x", "orbax"])
def test_parameters_are_restored_in_the_requested_dtype(vocabulary, paths, pair):
  restored = tiny.restored(tiny.speculative(vocabulary), paths[pair], "bfloat16")
  assert {leaf.dtype.name for leaf in jax.tree.leaves(restored.params)} == {"bfloat16"}


@pytest.fixture(scope="module")
def dataset(vocabulary, tmp_path_factory):
  text = tmp_path_factory.mktemp("text") / "in.txt"
  text.write_text("a man\n")
  # The name has the folder, because the fixture may run again with a new text.
  name = tasks.translation_from_files(
    f"preflight_{text.parent.name}", {"test": (str(text), None)}, vocabulary=vocabulary
  )
  return lambda task=name, **lengths: utils.DatasetConfig(
    mixture_or_task_name=task,
    task_feature_lengths={"inputs": 8, "targets": 8, **lengths},
    split="test",
    batch_size=1,
    shuffle=False,
    seed=0,
  )


def check(vocabulary, dataset_cfg, paths, tmp_path, **overrides):
  settings = {
    "output_dir": str(tmp_path / "out"),
    "model": tiny.speculative(vocabulary),
    **overrides,
  }
  preflight.check_run(dataset_cfg, paths=paths, **settings)


def test_a_good_run_passes(vocabulary, dataset, paths, tmp_path):
  check(vocabulary, dataset(), paths["t5x"], tmp_path)
  check(vocabulary, dataset(), paths["orbax"], tmp_path)
  check(vocabulary, dataset(), paths["t5x"], tmp_path, model=tiny.plain(vocabulary))
  (tmp_path / "text").write_text("a man sees the dog\n")
  task = language_modeling.language_modeling_from_files(
    "decoder_only_task", {"test": str(tmp_path / "text")}, vocabulary, prompt_words=2
  )
  prompts = dataset(task, **tiny_gpt.LENGTHS)
  model = tiny_gpt.speculative(vocabulary)
  check(vocabulary, prompts, paths["decoder-only"], tmp_path, model=model)
  assert not (tmp_path / "out").exists()


def test_a_network_without_a_path_is_named(vocabulary, dataset, paths, tmp_path):
  alone = {"target": paths["t5x"]["target"]}
  with pytest.raises(ValueError, match="needs a path of the network 'draft'"):
    check(vocabulary, dataset(), alone, tmp_path)


def test_a_task_with_a_different_vocabulary_is_refused(
  vocabulary_path, dataset, paths, tmp_path
):
  other = seqio.SentencePieceVocabulary(vocabulary_path, extra_ids=9)
  with pytest.raises(ValueError, match="ocabular"):
    check(other, dataset(), paths["t5x"], tmp_path)
