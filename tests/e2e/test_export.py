"""`python -m specdec_t5x.export`, served without this project's packages."""

import json
import pathlib
from importlib import metadata

import jax
import numpy as np
import pytest
import sentencepiece
import t5x

from specdec_t5x.data.tasks import TRANSLATE_ENDE
from specdec_t5x.t5x_bridge.examples import number_of
from tests import processes
from tests.contract.conftest import IS_RUNTIME, runtime_only
from tests.e2e import runs

# Python with the packages named by docs/how-to/export.md, and without other packages.
_BARE = """
import runpy, sys
class Refuse:
  def find_spec(self, name, path=None, target=None):
    if name in {absent}: raise ImportError(name)
sys.meta_path.insert(0, Refuse())
sys.argv = {argv}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_NEEDED = {"jax", "jaxlib", "numpy", "ml_dtypes", "scipy", "opt_einsum", "flatbuffers"}


def exported(pair, output, **settings):
  gin_file, draft = pair
  bindings = {"DRAFT_CHECKPOINT_PATH": draft, "GAMMA": 3, **settings}
  flags = [f"--output={output}", "--batch_sizes=1,12"]
  files = ["configs/spec_ende.gin", gin_file]
  runs.completed(*files, module="specdec_t5x.export", flags=flags, **bindings)
  return json.loads((output / "export.json").read_text())


def served(pair, folder, *flags):
  """Returns the tokens of the pair's texts from a process without this project."""
  root = pair[0].parent
  pieces = sentencepiece.SentencePieceProcessor(str(folder / "vocabulary.model"))
  texts = (root / "text.en").read_text().splitlines()
  ids = [[*pieces.encode(TRANSLATE_ENDE + text), 1] for text in texts]
  inputs = np.zeros((len(ids), max(map(len, ids))), np.int32)
  for row, tokens in zip(inputs, ids, strict=True):
    row[: len(tokens)] = tokens
  np.save(folder / "inputs.npy", inputs)
  absent = {*metadata.packages_distributions(), "specdec_t5x", "t5x"} - _NEEDED
  files = folder, folder / "inputs.npy", folder / "outputs.npy"
  argv = [str(x) for x in (runs.ROOT / "examples/serve_exported.py", *files, *flags)]
  processes.printed("-c", _BARE.format(absent=absent, argv=argv))
  rows = np.load(folder / "outputs.npy")
  return [row[: np.append(row, 0).argmin()].tolist() for row in rows]


@pytest.mark.slow
def test_samples_equal_infer_s_samples_at_the_same_seed(pair, infer, tmp_path):
  """Greedy outputs: docs/how-to/export.md and tests/t5x_bridge/test_exporting.py."""
  infer(tmp_path / "run", SEED=1, TEMPERATURE=1.0)
  about = exported(pair, tmp_path / "exported", TEMPERATURE=1.0)
  ours = served(pair, tmp_path / "exported", "--seed=1")
  assert ours == runs.tokens(tmp_path / "run")
  assert len({str(tokens) for tokens in ours}) > 1
  assert about["guarantee"] == runs.summary(tmp_path / "run")["guarantee"] == "EXACT"
  assert about["platforms"] == ["cpu", "tpu", "cuda"]
  assert about["seed"] == 0


@runtime_only
@pytest.mark.slow
@pytest.mark.parametrize("config", ["drafters/quantized"])
def test_decoders_can_be_exported(config, pair, tmp_path):
  files = ["configs/spec_ende.gin", pair[0], f"configs/{config}.gin"]
  bindings = {"DRAFT_CHECKPOINT_PATH": pair[1], "GAMMA": 3, "GAMMA_POLICY": "fixed"}
  flags = [f"--output={tmp_path}"]
  runs.completed(*files, module="specdec_t5x.export", flags=flags, **bindings)
  (program,) = json.loads((tmp_path / "export.json").read_text())["programs"].values()
  lowered = jax.export.deserialize(bytearray((tmp_path / program).read_bytes()))
  assert lowered.platforms == ("cpu", "tpu", "cuda")


@pytest.mark.skipif(IS_RUNTIME, reason="the runtime writes no SavedModel")
@pytest.mark.slow
def test_t5x_exports_a_saved_model_that_tensorflow_serves(pair, infer, tmp_path):
  pytest.importorskip("tensorflow_serving")  # T5X's exporter needs TensorFlow Serving.
  gin_file, draft = pair
  settings = {"DRAFT_CHECKPOINT_PATH": draft, "GAMMA": 3, "TEMPERATURE": 1.0}
  infer(tmp_path / "run", TEMPERATURE=1.0)
  (tmp_path / "batch.gin").write_text(f"BATCH_SIZE = {runs.EXAMPLES}\nREAD_AHEAD = 1\n")
  runs.completed(
    *("configs/export_ende.gin", gin_file, tmp_path / "batch.gin"),
    module="t5x.export",
    flags=[f"--gin_search_paths=.,{pathlib.Path(t5x.__file__).parents[1]}"],
    MODEL_OUTPUT_DIR=str(tmp_path / "saved/1"),
    **settings,
  )
  records = runs.records(tmp_path / "run")
  texts, keys = tmp_path / "texts", tmp_path / "keys.npy"
  texts.write_text("\n".join(r["inputs"]["inputs_pretokenized"] for r in records))
  task = jax.random.fold_in(jax.random.key(0), 0)
  task = jax.random.fold_in(task, number_of(f"tiny_{gin_file.parent.name}"))
  places = np.arange(runs.EXAMPLES)
  np.save(
    keys, jax.random.key_data(jax.vmap(lambda i: jax.random.fold_in(task, i))(places))
  )
  saved = tmp_path / "saved_cpu/1"
  printed = processes.printed("-m", "tests.e2e.saved_model", saved, texts, keys)
  served = json.loads(printed.splitlines()[-1])
  assert served == [record["prediction"] for record in records]
