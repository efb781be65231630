"""A rounded target under the command: WEIGHTS, on which everything works as ever."""

import pytest

from tests.e2e import runs

ROUNDED = {"WEIGHTS": "int8"}


@pytest.fixture(scope="module")
def decoded(infer, tmp_path_factory):
  """Runs the command with gin files and bindings: a directory, and what it printed."""

  def run(kind, *files, **bindings):
    output = tmp_path_factory.mktemp("out")
    files = [f"configs/{file}.gin" for file in files]
    return output, infer(output, *files, config=f"{kind}_ende", **bindings)

  return run


@pytest.fixture(scope="module")
def plain(decoded):
  return decoded("baseline", **ROUNDED)


def test_the_record_says_which_model_it_is(plain, speculative):
  output, printed = plain
  rounded, whole = runs.summary(output), runs.summary(speculative)
  assert rounded["target"].endswith(
    "rounded to 8 bits (WEIGHTS='int8'), another model than the checkpoint's"
  )
  assert f"The target is {rounded['target']}." in printed
  assert whole["target"] == "the checkpoint's network"
  assert rounded["decoder"]["target"]["config"]["weights"] == "int8"
  assert whole["decoder"]["target"]["config"]["weights"] == "float32"
  assert runs.tokens(output) != runs.tokens(speculative)


@pytest.mark.slow
def test_speculation_gives_the_rounded_target_s_own_outputs(decoded, plain):
  """The draft's weights are the target's, rounded to 4 bits."""
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
