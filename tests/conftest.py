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

# What takes long and seldom breaks alone: `make test-slow` runs it, not `make test`.
SLOW = (
  *("bench/", "demo/", "diagnose/", "stress/", "contract/test_infer_safety.py"),
  *("docs/test_notebook", "docs/test_pages.py::test_what_a_page_says"),
  *("e2e/test_compile_ahead", "e2e/test_decoder_only", "e2e/test_drafters"),
  *("e2e/test_infer.py::test_samples_depend", "e2e/test_infer.py::test_two_processes"),
  *("e2e/test_m30k", "e2e/test_online", "e2e/test_tfds", "link/test_processes"),
  *("exactness/test_adaptive.py::test_it_keeps_it", "exactness/test_cascade"),
  *("exactness/test_layer_skip", "exactness/test_mutations", "exactness/test_online"),
  *("exactness/test_real_", "t5x_bridge/test_devices", "contract/test_real_data"),
  *("training/test_heads.py::test_each_kind", "training/test_heads.py::test_heads_"),
  *("training/test_train", "test_own_parts"),
  *("hugging_face/test_infer", "hugging_face/test_parity"),
  "native/test_rounded_builds",
  *("training/test_rejections", "decoding/test_batching.py::test_what_it_knows"),
  *("test_tuning.py::test_the_name_is_the_same", "test_tuning_memory"),
  *("drafters/test_heads", "drafters/test_layer_skip", "drafters/test_quantized"),
  *("drafters/test_rests.py::test_samples_follow", "drafters/test_rests.py::test_a_t"),
  "drafters/test_rests.py::test_draws_that_are_used_twice",
  "drafters/test_eagle.py::test_outputs",
  *("errors/test_fine.py::test_blank_and_enormous", "trace/test_page"),
  *("t5x_bridge/test_model.py::test_target_as_draft", "training/test_batches"),
  *("training/test_language_model", "training/test_online", "training/test_serving"),
  *("test_api.py::test_64_bits_change_nothing", "test_api.py::test_a_draft_of_nan"),
  *("test_api.py::test_logits_that_are_no_numbers", "test_api.py::test_no_more_rows"),
  *(
    "contract/test_eval.py::test_all_checkpoints",
    "decoding/test_baseline.py::test_one",
  ),
  *("decoding/test_baseline.py::test_the_fillers", "decoding/test_trees.py::test_all"),
  *("drafters/test_eagle", "drafters/test_shared_encoder", "e2e/test_other_vocabulary"),
  *(
    "e2e/test_rounded_target",
    "exactness/test_coupled.py::test_a_",
    "network/test_sizes",
  ),
  *("exactness/test_budget.py::test_rows_are", "exactness/test_loop.py::test_it_keeps"),
  *("network/test_gemma.py::test_every", "t5x_bridge/test_beam.py::test_without"),
  *("trace/test_trace", "training/test_shared_encoder"),
  "training/test_heads.py::test_drafts_learn_the_same",
  "core/test_distributions.py::test_sample_goes_by_the_grid_s_cells[xla-250112",
)

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
  names = tuple(f"tests/{name}" for name in SLOW)
  for item in items:
    if item.nodeid.startswith(names):
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
