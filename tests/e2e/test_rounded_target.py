"""The command with a rounded target (WEIGHTS)."""

import pytest

from tests.e2e import runs

ROUNDED = {"WEIGHTS": "int8"}


@pytest.fixture(scope="module")
def decoded(infer, tmp_path_factory):
  """Returns a function from settings to the output folder and the printed text."""

  def run(kind, *files, **bindings):
    output = tmp_path_factory.mktemp("out")
    files = [f"configs/{file}.gin" for file in files]
    return output, infer(output, *files, config=f"{kind}_ende", **bindings)

  return run


@pytest.fixture(scope="module")
def plain(decoded):
  return decoded("baseline", **ROUNDED)


def test_the_record_names_the_rounded_model(plain, speculative):
  output, printed = plain
  rounded, full = runs.summary(output), runs.summary(speculative)
  assert rounded["target"].endswith(
    "rounded to 8 bits (WEIGHTS='int8'), another model than the checkpoint's"
  )
  assert f"The target is {rounded['target']}." in printed
  assert full["target"] == "the checkpoint's network"
  assert rounded["decoder"]["target"]["config"]["weights"] == "int8"
  assert full["decoder"]["target"]["config"]["weights"] == "float32"
  assert runs.tokens(output) != runs.tokens(speculative)


@pytest.mark.slow
def test_speculation_gives_the_rounded_target_s_outputs(decoded, plain):
  """The draft has the target's weights, rounded to 4 bits."""
  rounded = {"BITS": 4, "GROUP": 8, "DRAFT_CHECKPOINT_PATH": None}
  output, _ = decoded("spec", "drafters/quantized", **ROUNDED, **rounded)
  assert runs.tokens(output) == runs.tokens(plain[0])
  summary = runs.summary(output)
  assert summary["statistics"]["drafted"] > 0
  assert summary["decoder"]["target"]["config"]["weights"] == "int8"
  (size,) = summary["derived"].values()
  assert 0 < size["bytes"] < size["bytes_of_target"]


@pytest.mark.slow
def test_a_certified_head_changes_no_output(decoded, speculative):
  output, _ = decoded("spec", HEAD="certified")
  assert runs.tokens(output) == runs.tokens(speculative)
  assert list(runs.summary(output)["derived"]) == ["head"]
