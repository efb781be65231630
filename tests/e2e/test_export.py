"""The exported decode of examples/serve_exported.py, served without this project."""

from importlib import metadata

import pytest

import specdec_t5x
from specdec_t5x.demo import embedded
from tests import commands, processes
from tests.real_data import ROOT

# Python with the packages named by docs/examples/serve_exported.md, and no others.
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


@pytest.mark.slow
def test_the_exported_decode_gives_the_tokens_of_generate(tmp_path):
  example = commands.script_module("serve_exported", "examples")
  (tokens,) = example.export(tmp_path / "exported").tolist()
  target = specdec_t5x.load_model(embedded.target())
  (output,) = specdec_t5x.generate([example.TEXT], target, None, embedded.vocabulary())
  assert tokens[: len(output.tokens)] == output.tokens
  assert not any(tokens[len(output.tokens) :])
  absent = {*metadata.packages_distributions(), "specdec_t5x", "t5x"} - _NEEDED
  argv = [str(ROOT / "examples/serve_exported.py"), "serve", str(tmp_path / "exported")]
  printed = processes.printed("-c", _BARE.format(absent=absent, argv=argv))
  assert [int(token) for token in printed.split()] == output.tokens
