"""Shape annotations are checked in tests; programs compile quickly and are shared."""

import gc
import os
import pathlib

import jax
import jaxtyping
import pytest

from tests import suite, xla_flags

# Not the user's own folder. Kernels stay compiled from run to run, measured times do
# not; commands that tests start inherit it.
KEPT = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "specdec_t5x"
os.environ["SPECDEC_T5X_CACHE"] = str(KEPT)

# Most of the time goes into compiling, so what compiles slowly is off; commands that
# tests start inherit the flags. `XLA_FLAGS= make test` compiles as users do.
FAST_COMPILES = (
  "--xla_backend_optimization_level=0",
  "--xla_llvm_disable_expensive_passes=true",
  "--xla_cpu_use_fusion_emitters=false",
  "--xla_cpu_parallel_codegen_split_count=1",
)
if "XLA_FLAGS" not in os.environ:
  os.environ["XLA_FLAGS"] = " ".join(xla_flags.accepted(FAST_COMPILES, KEPT))

# Before any test imports TensorFlow: see there, of triton.
import specdec_t5x  # noqa: E402, F401
from specdec_t5x.doctor import tested  # noqa: E402

# Compiled programs stay in memory: a process that holds more than this after a file
# forgets them.
MOST_BYTES = 3 * 2**30

CHECKED = ("core", "decoding", "drafters", "network")
jaxtyping.install_import_hook(
  [f"specdec_t5x.{part}" for part in CHECKED], "beartype.beartype"
)


def pytest_addoption(parser):
  parser.addoption("--suite", choices=("quick", "slow", "all"), default="all")
  parser.addoption("--write-durations", action="store_true")


def pytest_configure(config):
  """Times are measured anew in each run, once for its processes side by side."""
  if hasattr(config, "workerinput"):
    return
  for times in KEPT.glob("seconds-*.json"):
    times.unlink(missing_ok=True)
  if config.getoption("write_durations"):
    config.pluginmanager.register(suite.Durations())


def pytest_report_header():
  return tested.warning(tested.installed(), tested.read())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
  wanted = suite.chosen(items, config.getoption("suite"))
  parts = {True: [], False: []}
  for item, is_wanted in zip(items, wanted, strict=True):
    parts[is_wanted].append(item)
  config.hook.pytest_deselected(items=parts[False])
  items[:] = parts[True]
  suite.costliest_first(items)


def pytest_collection_finish():
  """A tenth of the time would go into looking for garbage among what was imported."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(100_000, 50, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
  suite.start_timing(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
  result = yield
  suite.end_timing(item)
  is_last = nextitem is None or nextitem.path != item.path
  if is_last and suite.resident_bytes() > MOST_BYTES:
    jax.clear_caches()
    gc.collect()
  return result


@pytest.fixture(autouse=True, scope="session")
def compile_once(tmp_path_factory):
  """Programs are compiled once for all tests and the commands that tests start.

  The folder is that of JAX_COMPILATION_CACHE_DIR, else new in each session: a test
  never runs yesterday's program.
  """
  # Test processes side by side have folders of their own, in one that they share.
  base = tmp_path_factory.getbasetemp()
  base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
  cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(base / "compiled")
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
