"""`python -m t5x.infer` with configs/contrib/online.gin: exact, saved, and resumed."""

import pathlib
import shutil

import pytest

from tests.e2e import runs

ONLINE = "configs/contrib/online.gin"
FAST = {"GAMMA": 3, "BATCH_SIZE": 4, "ONLINE_PERIOD": 2, "INTERVAL": 3, "KEPT": 5}
KNOWN = r"has learned from .*, drawn with SEED=0"
STEPS = 8  # Of 20 examples: chunks of 8, 8 and 4.


@pytest.fixture(scope="module")
def online(infer):
  """Runs the pair while its draft learns."""
  rate = {"LEARNING_RATE": 0.02}
  return lambda output, **bindings: infer(output, ONLINE, **FAST, **rate, **bindings)


@pytest.fixture(scope="module")
def sampled(online, tmp_path_factory):
  """The directory of a run that sampled; its draft knows the draws of SEED=0."""
  output = tmp_path_factory.mktemp("sampled") / "out"
  online(output, TEMPERATURE=1.0)
  return output


@pytest.fixture
def own(sampled, tmp_path):
  """A copy of it."""
  return pathlib.Path(shutil.copytree(sampled, tmp_path / "out"))


def alpha(output):
  return runs.summary(output)["statistics"]["alpha_by_counts"]["value"]


def test_outputs_are_the_target_s_own_and_the_draft_is_saved(
  online, infer, speculative, tmp_path
):
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
  # What was saved drafts elsewhere, as any checkpoint does.
  learned = str(saved / f"checkpoint_{STEPS}")
  infer(tmp_path / "later", DRAFT_CHECKPOINT_PATH=learned)
  assert runs.tokens(tmp_path / "later") == runs.tokens(speculative)
  assert alpha(tmp_path / "later") > alpha(tmp_path / "out")


def test_no_draft_knows_the_draws_of_the_run_it_serves(online, own, tmp_path):
  shared = {"ONLINE_DIR": str(own / "draft"), "TEMPERATURE": 1.0}
  with pytest.raises((SystemExit, AssertionError), match=KNOWN):
    online(tmp_path / "two", **shared)
  online(tmp_path / "two", SEED=1, **shared)
  # Another run goes on with what was learned.
  assert (own / "draft" / f"checkpoint_{2 * STEPS}").exists()


def test_results_that_are_gone_are_not_drawn_again(online, own):
  """The draft that learned from them is there still, and knows their draws."""
  for result in own.glob("*.jsonl-*"):
    result.unlink()
  with pytest.raises((SystemExit, AssertionError), match=KNOWN):
    online(own, TEMPERATURE=1.0)


def test_a_learned_draft_does_not_serve_the_draws_that_it_knows(
  infer, sampled, tmp_path
):
  draft = str(sampled / "draft" / f"checkpoint_{STEPS}")
  serving = {"DRAFT_CHECKPOINT_PATH": draft, "TEMPERATURE": 1.0}
  with pytest.raises((SystemExit, AssertionError), match=r"has learned from .*SEED=0"):
    infer(tmp_path / "refused", SEED=0, **serving)
  infer(tmp_path / "served", SEED=1, **serving)


def test_each_of_several_shards_has_a_draft_of_its_own(online, tmp_path):
  for shard in (0, 1):
    shards = {"infer.num_shards": 2, "infer.shard_id": shard}
    online(tmp_path / "out", TEMPERATURE=1.0, **shards)
  folders = sorted(path.name for path in tmp_path.glob("out/draft*"))
  assert folders == ["draft-00000-of-00002", "draft-00001-of-00002"]
  for folder in folders:
    assert list((tmp_path / "out" / folder).glob("checkpoint_*"))
