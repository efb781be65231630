"""The library of kernels: damaged files, messages, and choices by the platform."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import prepared
from specdec_t5x.core.distributions import Sampling, argmax
from specdec_t5x.native import library
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network import products
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.net import block_widths
from tests import processes
from tests.damage import flip_a_bit, halve
from tests.kernels import needs_kernels


@pytest.fixture
def kept(monkeypatch, tmp_path):
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "kept"))
  library.problem.cache_clear()
  yield tmp_path / "kept"
  library.problem.cache_clear()


@pytest.fixture
def small(kept, monkeypatch, tmp_path):
  """Returns the source of a library that compiles quickly."""
  source = tmp_path / "one.cc"
  source.write_text('extern "C" int specdec_one() { return 1; }\n')
  monkeypatch.setattr(library, "SOURCES", [source])
  return source


def empty(path):
  path.write_bytes(b"")


def lose_the_digest(path):
  path.rename(path.with_stem(path.stem.rpartition("-")[0]))


@needs_kernels
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("damage", [halve, empty, flip_a_bit, lose_the_digest])
def test_a_damaged_library_is_built_again_with_a_message(damage, capsys):
  path = library.built()
  contents = path.read_bytes()
  damage(path)
  assert library.built().read_bytes() == contents
  time = path.stat().st_mtime_ns
  assert library.built() == path
  assert path.stat().st_mtime_ns == time  # Not built again.
  assert capsys.readouterr().err.count("Compiling kernels for this machine") == 2


@needs_kernels
def test_simultaneous_commands_rebuild_a_truncated_library(kept, small):
  halve(library.built())
  program = """
import ctypes, pathlib, sys
from specdec_t5x.native import library
library.SOURCES = [pathlib.Path(sys.argv[1])]
print(ctypes.CDLL(str(library.built())).specdec_one())
"""
  commands = [
    subprocess.Popen(
      [sys.executable, "-c", program, str(small)],
      env=processes.environment() | {"JAX_PLATFORMS": "cpu"},
      stdout=subprocess.PIPE,
      text=True,
    )
    for _ in range(2)
  ]
  outputs = [command.communicate(timeout=300)[0] for command in commands]
  assert [command.returncode for command in commands] == [0, 0]
  assert outputs == ["1\n", "1\n"]
  assert list(kept.iterdir()) == [library.built()]


# ---- Messages. ----


SIZES = {"vocab_size": 8, "emb_dim": 4, "num_heads": 1, "head_dim": 4, "mlp_dim": 4}


@pytest.mark.usefixtures("kept")
def test_without_a_compiler_xla_multiplies_after_a_single_warning(monkeypatch):
  monkeypatch.setenv("CXX", "no_compiler")
  with pytest.warns(UserWarning, match="without native products: the build failed"):
    reason = library.problem()
  assert "no_compiler" in reason
  assert library.problem() == reason  # A second warning would be an error.
  assert not library.folder().exists()
  x = np.ones((5, 64), np.float32)
  run = jax.jit(lambda x: products.multiply("auto", x, jnp.ones((64, 7)))[0])
  assert "specdec_" not in run.lower(x).as_text()
  np.testing.assert_allclose(run(x), 64)
  with pytest.raises(ValueError, match=r"the build failed: .* Use 'auto' or 'xla'"):
    T5Config(**SIZES, products="native")


def test_bfloat16_works_without_kernels():
  assert T5Config(**SIZES, products="auto", dtype="bfloat16").products == "auto"


def test_without_a_home_the_message_asks_for_a_folder(kept, monkeypatch):
  monkeypatch.delenv("SPECDEC_T5X_CACHE")
  monkeypatch.setenv("XDG_CACHE_HOME", "~no_such_user/cache")
  with pytest.raises(OSError, match="no home folder for ~no_such_user/cache/specdec"):
    library.folder()
  with pytest.warns(UserWarning, match="set SPECDEC_T5X_CACHE to a folder"):
    assert library.problem() is not None


@needs_kernels
def test_an_unusable_folder_is_reported_with_the_setting(kept):
  kept.write_text("a file where the folder should be")
  with pytest.warns(UserWarning, match=f"{kept}.*SPECDEC_T5X_CACHE names another fold"):
    assert library.problem() is not None


# ---- The number of CPUs. ----


@pytest.mark.skipif(
  not hasattr(os, "sched_setaffinity") or library.cpus() == 1,
  reason="no process can be pinned to fewer CPUs here",
)
def test_cpus_counts_the_cpus_of_this_process():
  all_of_them = os.sched_getaffinity(0)
  assert library.cpus() == len(all_of_them)
  before = prepared.device()
  os.sched_setaffinity(0, {min(all_of_them)})
  try:
    assert library.cpus() == 1
    assert prepared.device() != before
  finally:
    os.sched_setaffinity(0, all_of_them)
  assert prepared.device() == before


def test_cpus_counts_every_cpu_without_affinity(monkeypatch):
  monkeypatch.delattr(os, "sched_getaffinity", raising=False)
  assert library.cpus() == os.cpu_count()


# ---- Choices by the platform are made when a program is compiled. ----


def lowered(function, *args):
  traced = jax.jit(function).trace(*args)
  return {
    platform: traced.lower(lowering_platforms=(platform,)).as_text()
    for platform in ("cpu", "tpu", "cuda", "rocm")
  }


def test_argmax_uses_lanes_on_cpu_only():
  # A CPU program reduces lanes of 128, other platforms the whole vocabulary.
  found = lowered(argmax, jnp.zeros((2, 32_128)))
  assert [name for name, text in found.items() if "2x251x128" in text] == ["cpu"]


@needs_kernels
def test_native_kernels_are_called_on_cpu_only():
  row, cache, bias = map(jnp.zeros, ((2, 1, 3, 8), (2, 3, 5, 8), (1, 1, 1, 5)))
  multiply, attend = (
    functools.partial(f, "auto") for f in (products.multiply, products.attend)
  )
  calls = {
    "specdec_multiply": lowered(multiply, row, row[0, 0].T),
    "specdec_attention": lowered(attend, row, cache, cache, bias),
    "specdec_adjust": lowered(lambda x: adjusted_probs(x, Sampling()), row),
  }
  for name, found in calls.items():
    assert [platform for platform, text in found.items() if name in text] == ["cpu"]


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_blocks_have_many_widths_on_cpu_only(monkeypatch, platform):
  assert block_widths(6) == (1, 2, 4, 7)
  monkeypatch.setattr(jax, "default_backend", lambda: platform)
  assert block_widths(6) == (1, 7)
  assert block_widths(6, least=2) == (7,)
