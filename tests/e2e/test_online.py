"""`python -m t5x.infer` with configs/contrib/online.gin: exact, and saved."""

import re

import pytest
import t5x

from specdec_t5x.contrib.online.run import Course
from specdec_t5x.t5x_bridge import learned
from tests.e2e import runs

pytestmark = pytest.mark.slow

ONLINE = "configs/contrib/online.gin"
FAST = {"GAMMA": 3, "BATCH_SIZE": 4, "ONLINE_PERIOD": 2, "INTERVAL": 3, "KEPT": 5}
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


def alpha(output):
  return runs.summary(output)["statistics"]["alpha_by_counts"]["value"]


def test_outputs_are_exact_and_the_draft_is_saved(online, infer, speculative, tmp_path):
  online(tmp_path / "out")
  assert runs.tokens(tmp_path / "out") == runs.tokens(speculative)
  saved = tmp_path / "out" / "draft"
  assert [path.name for path in saved.iterdir()] == [f"checkpoint_{STEPS}"]
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


@pytest.mark.skipif(not hasattr(t5x, "PROVIDER"), reason="killed within the process")
def test_a_killed_run_learns_anew(online, speculative, tmp_path, capfd):
  """The first chunk is kept; the draft learns from the remaining chunks alone."""
  output = tmp_path / "out"
  learn = Course.learn

  def killed(course, served, numbers):
    if numbers[0, 1]:
      raise KeyboardInterrupt
    learn(course, served, numbers)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Course, "learn", killed)
    with pytest.raises(KeyboardInterrupt):
      online(output)
  draft = output / "draft"
  assert [path.name for path in draft.iterdir()] == ["checkpoint_3"]
  capfd.readouterr()
  online(output)
  says = f"Learning starts anew .* replaces checkpoint_3 of an earlier run in {draft}"
  assert re.search(says, capfd.readouterr().err)
  assert runs.tokens(output) == runs.tokens(speculative)
  drafted = sum(record["aux"]["drafted"] for record in runs.records(output))
  assert runs.summary(output)["statistics"]["drafted"] == drafted
  (checkpoint,) = draft.iterdir()
  assert checkpoint.name == "checkpoint_5"
  places = [chunk.places for chunk in learned.read(checkpoint)]
  assert places == [[8, 15, 1], [16, 19, 1]]


def test_a_saved_draft_is_refused_at_the_seed_of_its_training(
  infer, online, sampled, tmp_path
):
  draft = str(sampled / "draft" / f"checkpoint_{STEPS}")
  serving = {"DRAFT_CHECKPOINT_PATH": draft, "TEMPERATURE": 1.0}
  with pytest.raises((SystemExit, AssertionError), match=r"has learned from .*SEED=0"):
    infer(tmp_path / "refused", SEED=0, **serving)
  online(tmp_path / "served", SEED=1, **serving)
  (checkpoint,) = (tmp_path / "served" / "draft").iterdir()
  assert {chunk.seed for chunk in learned.read(checkpoint)} == {0, 1}


def test_each_shard_has_a_separate_draft(online, tmp_path):
  for shard in (0, 1):
    shards = {"infer.num_shards": 2, "infer.shard_id": shard}
    online(tmp_path / "out", TEMPERATURE=1.0, **shards)
  folders = sorted(path.name for path in tmp_path.glob("out/draft*"))
  assert folders == ["draft-00000-of-00002", "draft-00001-of-00002"]
  for folder in folders:
    assert list((tmp_path / "out" / folder).glob("checkpoint_*"))
