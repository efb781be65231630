"""Shape annotations are checked in tests; programs compile quickly and are shared."""

import gc
import os
import pathlib
import time

import jax
import jaxtyping
import pytest

# Most of the time goes into compiling, so leave out what compiles slowly; commands that
# tests start inherit it. `XLA_FLAGS= make test` compiles as users do. (An XLA that has
# dropped one of these flags ends at once and names it: take it out then.)
os.environ.setdefault(
  "XLA_FLAGS",
  "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
  "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

# Not the user's own. Kernels stay compiled from run to run, measured times do not;
# commands that tests start inherit it.
KEPT = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "specdec_t5x"
os.environ["SPECDEC_T5X_CACHE"] = str(KEPT)

# What takes long and seldom breaks alone, by how its name begins: `make test-slow`.
SLOW = (pathlib.Path(__file__).parent / "slow.txt").read_text().split()

# Before any test imports TensorFlow: see there, of triton.
import specdec_t5x  # noqa: E402, F401

CHECKED = ("core", "decoding", "drafters", "network")
jaxtyping.install_import_hook(
  [f"specdec_t5x.{part}" for part in CHECKED], "beartype.beartype"
)


def pytest_configure(config):
  """Times are measured anew in each run, once for its processes side by side."""
  if not hasattr(config, "workerinput"):
    for times in KEPT.glob("seconds-*.json"):
      times.unlink(missing_ok=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  """Marks what is slow, before it is chosen or left out."""
  for item in items:
    if item.nodeid.startswith(tuple(SLOW)):
      item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
  """A tenth of the time would go into looking for garbage among what was imported."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(100_000, 50, 100)


@pytest.fixture(autouse=True, scope="session")
def compile_once(tmp_path_factory):
  """Tests build the same programs again and again, commands in processes of their own.

  The cache is new in each session, so a test never runs yesterday's program.
  """
  # Test processes side by side have folders of their own, in one that they share.
  base = tmp_path_factory.getbasetemp()
  cache = str(
    (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
  )
  settings = {
    "jax_compilation_cache_dir": cache,
    "jax_persistent_cache_min_compile_time_secs": 0.1,
  }
  for name, value in settings.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)


@pytest.fixture
def unchecked():
  """Arguments come as users pass them, whose annotations nobody checks."""
  jaxtyping.config.update("jaxtyping_disable", True)
  yield
  jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def processor_clock():
  """Programs are timed by the processor's time: what else runs does not add to it."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(time, "perf_counter", time.process_time)
    yield
