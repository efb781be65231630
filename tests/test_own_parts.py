"""examples/: a drafter and a rule of one's own, from Python."""

import shutil
import warnings

import pytest

from examples import write_a_drafter, write_a_rule
from tests.t5x_bridge import tiny


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
  """A folder with what the examples read of the demo's, of tiny networks."""
  root = tmp_path_factory.mktemp("demo")
  tiny.save_t5x(root / "target", tiny.TARGET, seed=1, step=1000)
  tiny.save_t5x(root / "draft_small", tiny.DRAFT, seed=2, step=1000)
  shutil.move(tiny.train_vocabulary(root), root / "vocabulary.model")
  return str(root)


def printed(capsys):
  """Returns (calls, text) of each line."""
  lines = [
    line.partition(" calls of the target: ")
    for line in capsys.readouterr()[0].splitlines()
  ]
  return [(int(calls), text) for calls, _, text in lines]


def test_a_drafter_of_one_s_own_drafts(demo, capsys):
  write_a_drafter.main(demo)
  (plain_calls, plain_text), (calls, text) = printed(capsys)
  assert text == plain_text
  assert calls < plain_calls


def test_a_rule_of_one_s_own_accepts_more_and_is_warned_of(demo, capsys):
  with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always", UserWarning)
    write_a_rule.main(demo)
  (exact, _), (lossy, _) = printed(capsys)
  assert lossy > 0
  assert exact > 0
  assert any("LOSSY: the outputs keep nothing" in str(w.message) for w in seen)
