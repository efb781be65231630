"""Checks shape annotations in tests, compiles programs fast and shares programs."""

import gc
import os
import pathlib

import gin
import jax
import jaxtyping
import pytest

# Separate from the user's folder. Compiled kernels are kept between runs, measured
# times are not. Commands started by tests inherit the folder.
KEPT = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "specdec_t5x"
os.environ["SPECDEC_T5X_CACHE"] = str(KEPT)

# Compilation takes most of the time, so slow compiler passes are off. Commands started
# by tests inherit the flags. `XLA_FLAGS= make test` compiles as for users.
FAST_COMPILES = (
  "--xla_backend_optimization_level=0",
  "--xla_llvm_disable_expensive_passes=true",
  "--xla_cpu_use_fusion_emitters=false",
  "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ.setdefault("XLA_FLAGS", " ".join(FAST_COMPILES))

# Before a test imports TensorFlow: specdec_t5x/__init__.py has the reason (triton).
import specdec_t5x  # noqa: E402, F401

# Compiled programs stay in memory. A process that holds more bytes after a test file
# clears the programs.
MOST_BYTES = 3 * 2**30

CHECKED = ("core", "decoding", "drafters", "network")
jaxtyping.install_import_hook(
  [f"specdec_t5x.{part}" for part in CHECKED], "beartype.beartype"
)


def pytest_configure(config):
  """Deletes the times of earlier runs, once for the parallel processes of a run."""
  if not hasattr(config, "workerinput"):
    for times in KEPT.glob("seconds-*.json"):
      times.unlink(missing_ok=True)


def pytest_collection_finish():
  """Freezes imported objects: collecting garbage would take a tenth of the time."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(100_000, 50, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
  result = yield
  gin.clear_config()  # Also unlocks gin for the next test.
  is_last = nextitem is None or nextitem.path != item.path
  if is_last and _resident_bytes() > MOST_BYTES:
    jax.clear_caches()
    gc.collect()
  return result


def _resident_bytes() -> int:
  """Returns the resident memory of this process on Linux, else 0."""
  statm = pathlib.Path("/proc/self/statm")
  if not statm.is_file():
    return 0
  return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True, scope="session")
def compile_once(tmp_path_factory):
  """Compiles programs once for the tests and for the commands started by tests.

  The folder is JAX_COMPILATION_CACHE_DIR, or else a new folder per session, so a test
  never runs a program of an earlier session.
  """
  # Parallel test processes have separate folders within a shared folder.
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


@pytest.fixture(scope="session")
def vocabulary_path(tmp_path_factory):
  """Returns the path of the tiny networks' SentencePiece model."""
  from tests.t5x_bridge import tiny  # The imports above install the checks first.

  return tiny.train_vocabulary(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture
def unchecked():
  """Disables the checks of annotations: users' arguments are not checked."""
  jaxtyping.config.update("jaxtyping_disable", True)
  yield
  jaxtyping.config.update("jaxtyping_disable", False)
