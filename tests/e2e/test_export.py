"""`python -m specdec_t5x.export`, served where neither it nor its packages are."""

import json
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
import sentencepiece

from specdec_t5x.data.tasks import TRANSLATE_ENDE
from tests.contract.conftest import runtime_only
from tests.e2e import runs

# Python, whose packages are those that the page says, and no others.
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
  files = "configs/spec_ende.gin", gin_file
  runs.completed(*files, module="specdec_t5x.export", flags=flags, **bindings)
  return json.loads((output / "export.json").read_text())


def served(pair, folder, *flags):
  """Returns the tokens of the pair's texts, of a process that lacks this project."""
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
  process = subprocess.run(
    [sys.executable, "-c", _BARE.format(absent=absent, argv=argv)],
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0, process.stderr[-3000:]
  rows = np.load(folder / "outputs.npy")
  return [row[: np.append(row, 0).argmin()].tolist() for row in rows]


def test_what_is_exported_decodes_as_infer_does(pair, speculative, tmp_path):
  about = exported(pair, tmp_path)
  assert served(pair, tmp_path) == runs.tokens(speculative)
  assert about["guarantee"] == runs.summary(speculative)["guarantee"] == "EXACT"
  assert about["platforms"] == ["cpu", "tpu", "cuda"]


@pytest.mark.slow
def test_samples_are_those_of_infer_for_the_same_seed(pair, tmp_path):
  sampled = {"TEMPERATURE": 1.0, "PARAM_DTYPE": "bfloat16"}
  for seed in (0, 5):
    runs.completed(
      *("configs/spec_ende.gin", pair[0]),
      **{"DRAFT_CHECKPOINT_PATH": pair[1], "GAMMA": 3, "SEED": seed, **sampled},
      INFER_OUTPUT_DIR=str(tmp_path / f"run{seed}"),
    )
  exported(pair, tmp_path / "exported", **sampled)
  ours = [served(pair, tmp_path / "exported", f"--seed={seed}") for seed in (0, 5)]
  assert ours == [runs.tokens(tmp_path / f"run{seed}") for seed in (0, 5)]
  assert ours[0] != ours[1]


@runtime_only
@pytest.mark.slow
@pytest.mark.parametrize(
  "more",
  [
    *("drafters/copy", "drafters/quantized", "drafters/layer_skip", "drafters/tree"),
    *("runs/beam", "policies/confidence"),
  ],
)
def test_decoders_can_be_exported(more, pair, tmp_path):
  files = "configs/spec_ende.gin", pair[0], f"configs/{more}.gin"
  bindings = {"DRAFT_CHECKPOINT_PATH": pair[1], "GAMMA": 3, "GAMMA_POLICY": "fixed"}
  if more.startswith("policies"):
    del bindings["GAMMA_POLICY"]
  if "layer_skip" in more:
    bindings["SKIP"] = ("mlp_1",)
  flags = [f"--output={tmp_path}"]
  runs.completed(*files, module="specdec_t5x.export", flags=flags, **bindings)
