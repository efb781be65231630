"""Full device memory ends a command, and `generate`, with one sentence."""

import jax
import pytest
import t5x

from specdec_t5x import generate, tuning
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.network.functional import network_for
from specdec_t5x.ways import Model
from tests import commands, networks
from tests.e2e import runs
from tests.errors import inputs
from tests.t5x_bridge import tiny

FULL = (
  "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 68719476736 bytes.",
  "RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes\nand how it came about",
)
OTHER = "INTERNAL: the program ended"
NETWORK = network_for(tiny.DRAFT)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  return inputs.make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def ends_with(monkeypatch):
  """Returns a function that sets the error of a decode."""

  def set_error(message):
    def tuned(*arguments):
      raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(tuning, "tuned", tuned)

  return set_error


def decode():
  model = Model(NETWORK, networks.sharp(NETWORK), generation=Generation(eos_ids=(1,)))
  return generate([[3, 4]], model, None)


@pytest.mark.parametrize("message", FULL)
def test_generate_names_the_settings_to_lower(ends_with, message):
  ends_with(message)
  expected = r"memory is full: RESOURCE_EXHAUSTED: .*\. Lower batch_size or max_length"
  with pytest.raises(ValueError, match=expected) as error:
    decode()
  assert "dtype='bfloat16'" in str(error.value)
  assert "\n" not in str(error.value)


def test_other_device_errors_are_not_changed(ends_with):
  ends_with(OTHER)
  with pytest.raises(jax.errors.JaxRuntimeError, match=OTHER):
    decode()


@pytest.mark.skipif(not hasattr(t5x, "PROVIDER"), reason="upstream T5X's command")
@pytest.mark.parametrize("message", [*FULL, OTHER])
def test_the_command_names_the_settings_to_lower(
  pair, ends_with, message, unchecked, tmp_path, monkeypatch
):
  ends_with(message)
  monkeypatch.chdir(runs.ROOT)
  pair.gin_file(tmp_path, name=f"full_{tmp_path.name}")
  flags = ["configs/spec_ende.gin", f"{tmp_path}/pair.gin"]
  arguments = [f"--gin_file={path}" for path in flags]
  arguments.append(f"--gin.INFER_OUTPUT_DIR='{tmp_path}/out'")
  if message == OTHER:
    with pytest.raises(jax.errors.JaxRuntimeError, match=OTHER):
      commands.infer(*arguments)
    return
  with pytest.raises(SystemExit) as ended:
    commands.infer(*arguments)
  reason = message.splitlines()[0].removesuffix(".")
  assert ended.value.code == (
    f"t5x.infer: The device's memory is full: {reason}. Lower BATCH_SIZE or "
    "TASK_FEATURE_LENGTHS, or set PARAM_DTYPE='bfloat16'."
  )
