"""`python -m t5x.infer` with configs/contrib/online.gin: exact, saved and resumed."""

import pathlib
import shutil

import pytest

from tests.e2e import runs

pytestmark = pytest.mark.slow

ONLINE = "configs/contrib/online.gin"
FAST = {"GAMMA": 3, "BATCH_SIZE": 4, "ONLINE_PERIOD": 2, "INTERVAL": 3, "KEPT": 5}
KNOWN_DRAWS = r"has learned from .*, drawn with SEED=0"
STEPS = 8  # 20 examples in chunks of 8, 8 and 4.


@pytest.fixture(scope="module")
def online(infer):
  """Returns a function that runs the pair and trains the draft."""
  rate = {"LEARNING_RATE": 0.02}
  return lambda output, **bindings: infer(output, ONLINE, **FAST, **rate, **bindings)


@pytest.fixture(scope="module")
def sampled(online, tmp_path_factory):
  """Returns the folder of a sampled run; the draft has learned the draws of SEED=0."""
  output = tmp_path_factory.mktemp("sampled") / "out"
  online(output, TEMPERATURE=1.0)
  return output


@pytest.fixture
def sampled_copy(sampled, tmp_path):
  """Returns a copy of `sampled`."""
  return pathlib.Path(shutil.copytree(sampled, tmp_path / "out"))


def alpha(output):
  return runs.summary(output)["statistics"]["alpha_by_counts"]["value"]


def test_outputs_are_exact_and_the_draft_is_saved(online, infer, speculative, tmp_path):
  online(tmp_path / "out")
  assert runs.tokens(tmp_path / "out") == runs.tokens(speculative)
  saved = tmp_path / "out" / "draft"
  steps = {int(p.name.split("_")[1]) for p in saved.glob("checkpoint_*")}
  assert steps == {6, STEPS}
  record = runs.records(tmp_path / "out")[0]
  assert not set(record["aux"]) & {"kept_tokens", "kept_probs", "encoder_inputs"}
  summary = runs.summary(tmp_path / "out")
  assert summary["decoder"]["observer"] == {"kind": "KeepRejections", "count": 5}
  assert summary["guarantee"] == "EXACT"
  # The saved draft drafts in a later run like any checkpoint.
  learned = str(saved / f"checkpoint_{STEPS}")
  infer(tmp_path / "later", DRAFT_CHECKPOINT_PATH=learned)
  assert runs.tokens(tmp_path / "later") == runs.tokens(speculative)
  assert alpha(tmp_path / "later") > alpha(tmp_path / "out")


def test_a_draft_that_knows_a_run_s_draws_is_refused(online, sampled_copy, tmp_path):
  shared = {"ONLINE_DIR": str(sampled_copy / "draft"), "TEMPERATURE": 1.0}
  with pytest.raises((SystemExit, AssertionError), match=KNOWN_DRAWS):
    online(tmp_path / "two", **shared)
  online(tmp_path / "two", SEED=1, **shared)
  # A second run continues from the learned parameters.
  assert (sampled_copy / "draft" / f"checkpoint_{2 * STEPS}").exists()


def test_deleted_results_are_not_drawn_again(online, sampled_copy):
  """The draft that learned from the deleted results still knows the draws."""
  for result in sampled_copy.glob("*.jsonl-*"):
    result.unlink()
  with pytest.raises((SystemExit, AssertionError), match=KNOWN_DRAWS):
    online(sampled_copy, TEMPERATURE=1.0)


def test_a_saved_draft_is_refused_at_the_seed_of_its_training(infer, sampled, tmp_path):
  draft = str(sampled / "draft" / f"checkpoint_{STEPS}")
  serving = {"DRAFT_CHECKPOINT_PATH": draft, "TEMPERATURE": 1.0}
  with pytest.raises((SystemExit, AssertionError), match=r"has learned from .*SEED=0"):
    infer(tmp_path / "refused", SEED=0, **serving)
  infer(tmp_path / "served", SEED=1, **serving)


def test_each_shard_has_a_separate_draft(online, tmp_path):
  for shard in (0, 1):
    shards = {"infer.num_shards": 2, "infer.shard_id": shard}
    online(tmp_path / "out", TEMPERATURE=1.0, **shards)
  folders = sorted(path.name for path in tmp_path.glob("out/draft*"))
  assert folders == ["draft-00000-of-00002", "draft-00001-of-00002"]
  for folder in folders:
    assert list((tmp_path / "out" / folder).glob("checkpoint_*"))
