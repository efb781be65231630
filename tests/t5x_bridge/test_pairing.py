"""Restoring pairs, and refusing what can't be restored, before any model work."""

import chex
import jax
import pytest
import seqio
from t5x import utils

from specdec_t5x.data import tasks
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge import preflight
from tests.t5x_bridge import tiny


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
  root = tmp_path_factory.mktemp("pair")
  return {
    "target": tiny.save_t5x(root / "target", tiny.TARGET, seed=1),
    "draft": tiny.save_t5x(root / "draft", tiny.DRAFT, seed=2),
    "target_orbax": tiny.save_orbax(root / "target_orbax", tiny.TARGET, seed=1),
    "draft_orbax": tiny.save_orbax(root / "draft_orbax", tiny.DRAFT, seed=2),
  }


def restore(vocabulary, target, draft, *dtype, **settings):
  paths = {"target": target, "draft": draft}
  return tiny.restored(tiny.speculative(vocabulary), paths, *dtype, **settings)


@pytest.mark.parametrize(
  ("target", "draft"), [("target", "draft"), ("target_orbax", "draft_orbax")]
)
def test_both_models_get_their_own_parameters(vocabulary, paths, target, draft):
  restored = restore(vocabulary, paths[target], paths[draft])
  expected = {
    "target": tiny.state(Transformer(tiny.TARGET), seed=1).params,
    "draft": tiny.state(Transformer(tiny.DRAFT), seed=2).params,
  }
  assert int(restored.step) == 7
  chex.assert_trees_all_equal(
    restored.params.unfreeze(),
    {name: params.unfreeze() for name, params in expected.items()},
  )


def test_what_is_to_be_done_before_compiling_is_given_the_parameters(vocabulary, paths):
  given = []
  keep = lambda params: given.append(params) or {}
  restored = restore(vocabulary, paths["target"], paths["draft"], ready=keep)
  (params,) = given
  chex.assert_trees_all_equal(params, restored.params)


@pytest.mark.parametrize("suffix", ["", "_orbax"])
def test_parameters_come_in_the_wanted_dtype(vocabulary, paths, suffix):
  restored = restore(
    vocabulary, paths["target" + suffix], paths["draft" + suffix], "bfloat16"
  )
  assert {leaf.dtype.name for leaf in jax.tree.leaves(restored.params)} == {"bfloat16"}


@pytest.fixture(scope="module")
def dataset(vocabulary, tmp_path_factory):
  text = tmp_path_factory.mktemp("text") / "in.txt"
  text.write_text("a man\n")
  # Other modules' tests may come between those of this one, and the text be made anew.
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
  check(vocabulary, dataset(), paths, tmp_path)
  orbax = {name: paths[f"{name}_orbax"] for name in ("target", "draft")}
  check(vocabulary, dataset(), orbax, tmp_path)
  check(vocabulary, dataset(), paths, tmp_path, model=tiny.plain(vocabulary))
  assert not (tmp_path / "out").exists()


def test_a_network_without_a_path_is_named(vocabulary, dataset, paths, tmp_path):
  alone = {"target": paths["target"]}
  with pytest.raises(ValueError, match="no path of the network 'draft'"):
    check(vocabulary, dataset(), alone, tmp_path)


def test_a_task_of_another_vocabulary_is_refused(
  vocabulary_path, dataset, paths, tmp_path
):
  other = seqio.SentencePieceVocabulary(vocabulary_path, extra_ids=9)
  with pytest.raises(ValueError, match="ocabular"):
    check(other, dataset(), paths, tmp_path)
