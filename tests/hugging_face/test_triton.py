"""triton is loaded before TensorFlow; transformers import triton with torch."""

import os

import pytest
import tensorflow

from tests import processes
from tests.real_data import ROOT

PACKAGES = ("specdec_t5x", "t5x")
TINY = {"vocab_size": 8, "d_model": 4, "d_kv": 2, "d_ff": 4, "num_layers": 1}
T5 = f"""
import tensorflow
from transformers import T5Config, T5ForConditionalGeneration
print(T5ForConditionalGeneration(T5Config(**{TINY})).config.d_model)
"""


def python(code, *paths):
  paths = map(str, [*paths, ROOT, ROOT / "t5x_runtime"])
  return processes.printed("-c", code, PYTHONPATH=os.pathsep.join(paths))


@pytest.fixture(params=PACKAGES)
def package(request):
  """Returns the name of a package; upstream T5X is skipped."""
  if request.param == "t5x":
    pytest.importorskip("t5x.quiet_start", reason="upstream T5X is active")
  return request.param


def test_a_broken_triton_is_ignored(package, tmp_path):
  folder = tmp_path / "triton" / "_C"
  folder.mkdir(parents=True)
  (tmp_path / "triton" / "__init__.py").touch()
  assert python(f"import {package}; print('alive')", tmp_path) == "alive\n"
  (folder / "libtriton.so").write_text("no library")
  assert python(f"import {package}; print('alive')", tmp_path) == "alive\n"


def test_transformers_t5_works_after_tensorflow(package):
  """Without the early import of triton, the process would abort.

  Tests of transformers and of TensorFlow share this process.
  """
  transformers = pytest.importorskip(
    "transformers", reason="the extra `peers` is not installed"
  )
  assert python(f"import {package}{T5}") == "4\n"
  assert tensorflow.__version__
  config = transformers.T5Config(**TINY)
  assert transformers.T5ForConditionalGeneration(config).config.d_model == 4
