"""A rounded target under the command: WEIGHTS, on which everything works as ever."""

import pytest

from tests.e2e import runs

ROUNDED = {"WEIGHTS": "int8"}
BEAM = {"BEAM_SIZE": 2, **ROUNDED}


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
@pytest.mark.parametrize(
  ("files", "bindings"),
  [
    ([], {}),
    (["drafters/quantized"], {"BITS": 4, "GROUP": 8, "DRAFT_CHECKPOINT_PATH": None}),
  ],
  ids=["draft model", "4 bits"],
)
def test_speculation_gives_the_rounded_target_s_own_outputs(
  files, bindings, decoded, plain
):
  output, _ = decoded("spec", *files, **ROUNDED, **bindings)
  assert runs.tokens(output) == runs.tokens(plain[0])
  assert runs.summary(output)["statistics"]["drafted"] > 0
  assert runs.summary(output)["decoder"]["target"]["config"]["weights"] == "int8"


@pytest.mark.slow
def test_beams_are_the_rounded_target_s(decoded):
  found, _ = decoded("spec", "runs/beam", DRAFT_BEAM_SIZE=4, **BEAM)
  expected, _ = decoded("baseline", "runs/beam_baseline", **BEAM)
  assert runs.tokens(found) == runs.tokens(expected)
  whole, _ = decoded("baseline", "runs/beam_baseline", BEAM_SIZE=2)
  assert runs.tokens(whole) != runs.tokens(expected)


@pytest.mark.slow
def test_a_certified_head_changes_no_output(decoded):
  whole, _ = decoded("baseline")
  for kind in ("baseline", "spec"):
    output, _ = decoded(kind, HEAD="certified")
    assert runs.tokens(output) == runs.tokens(whole)
    assert list(runs.summary(output)["derived"]) == ["head"]
