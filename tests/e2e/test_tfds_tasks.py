"""WMT and CNN/DailyMail through TFDS folders and T5's vocabulary."""

import pytest
import seqio

from tests import real_data, tfds_folders
from tests.e2e import runs
from tests.t5x_bridge import tiny

COUNT = 12


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
  """Returns the networks' gin file and the bindings of a pair over T5's vocabulary."""
  vocabulary = real_data.path("t5_spiece", "spiece.model")
  root = tmp_path_factory.mktemp("t5_pair")
  gin_file = root / "networks.gin"
  networks = f"{runs.TINY_NETWORKS}config.T5Config.vocab_size = 32128\n"
  gin_file.write_text(f"{networks}include 'configs/pairs/t5_benchmark.gin'\n")
  target, draft = tiny.config(2, 16, 32128), tiny.config(1, 8, 32128)
  return gin_file, {
    "TARGET_CHECKPOINT_PATH": tiny.save(root / "target", target, tiny.drawn(target)),
    "DRAFT_CHECKPOINT_PATH": tiny.save(root / "draft", draft, tiny.drawn(draft)),
    "VOCABULARY_PATH": str(vocabulary),
    "PARAM_DTYPE": "float32",
    "ACTIVATION_DTYPE": "float32",
    "BATCH_SIZE": 4,
    "GAMMA": 3,
  }


TEXTS = tiny.sentences(COUNT)
WMT = [{"en": text, "de": text} for text in TEXTS]
CNNDM = [
  {"article": text, "highlights": text, "id": str(number), "publisher": ""}
  for number, text in enumerate(TEXTS)
]
CASES = {
  "ende": ("wmt14_translate/de-en", WMT, "translate English to German: "),
  "cnndm": ("cnn_dailymail", CNNDM, "summarize: "),
}


@pytest.fixture
def empty_registry(monkeypatch):
  """Empties the registry, because a registered task may name a different folder."""
  monkeypatch.setattr(seqio.TaskRegistry, "_REGISTRY", {})
  yield
  seqio.set_tfds_data_dir_override(None)


@pytest.mark.usefixtures("empty_registry")
@pytest.mark.parametrize("task", CASES)
def test_speculation_decodes_the_tfds_task(task, settings, tmp_path):
  dataset, rows, prefix = CASES[task]
  tfds_dir = str(tmp_path / "tfds")
  tfds_folders.write(dataset, tfds_dir, test=rows)
  gin_file, bindings = settings
  runs.completed(
    *(f"configs/spec_{task}.gin", gin_file),
    flags=[f"--tfds_data_dir={tfds_dir}"],
    TASK_FEATURE_LENGTHS={"inputs": 128, "targets": 16},
    INFER_OUTPUT_DIR=str(tmp_path / "spec"),
    **bindings,
  )
  records = runs.records(tmp_path / "spec")
  for record, text in zip(records, TEXTS, strict=True):
    assert record["inputs"]["inputs_pretokenized"] == prefix + text
    assert record["inputs"]["targets_pretokenized"] == text
    assert record["aux"]["tokens"] == len(record["prediction_tokens"])
