"""`load_model` and `generate` need no TensorFlow, seqio or T5X, as on Python 3.14."""

import json

import pytest

import specdec_t5x
from lab.peers import hf_folder
from tests import processes
from tests.t5x_bridge import tiny

ABSENT = ("tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio", "t5x")
TEXTS = ["the old man sees a dog", "a cat"]
PROGRAM = """
import json, sys
for name in {absent}:
  sys.modules[name] = None  # Importing it fails, as where it is not installed.
import specdec_t5x
targets, draft, vocabulary, texts = json.loads(sys.argv[1])
found = []
for target in targets:
  models = map(specdec_t5x.load_model, (target, draft))
  outputs = specdec_t5x.generate(texts, *models, vocabulary, gamma=3, max_length=8)
  found.append([output.tokens for output in outputs])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
  root = tmp_path_factory.mktemp("pair")
  t5x_format = tiny.save_t5x(root / "t5x", tiny.TARGET, seed=1)
  orbax = tiny.save_t5x(root / "orbax", tiny.TARGET, seed=1, format="orbax")
  folder = str(root / "folder")
  hf_folder.write(folder, tiny.TARGET, specdec_t5x.load_model(t5x_format).params)
  draft = tiny.save_t5x(root / "draft", tiny.DRAFT, seed=2, format="orbax")
  return [t5x_format, orbax, folder], draft, tiny.train_vocabulary(root)


def test_every_format_is_loaded_and_decoded(paths):
  targets, _, vocabulary = paths
  program = PROGRAM.format(absent=ABSENT)
  printed = processes.printed("-c", program, json.dumps([*paths, TEXTS]))
  expected = [
    output.tokens
    for output in specdec_t5x.generate(
      TEXTS, specdec_t5x.load_model(targets[0]), None, vocabulary, max_length=8
    )
  ]
  assert json.loads(printed.splitlines()[-1]) == [expected] * len(targets)
