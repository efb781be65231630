"""`scripts/compile_ahead.py` reads the gin files of a run; no checkpoint is there."""

from tests.e2e import runs


def test_a_run_is_compiled_for_devices_that_share_the_networks(tmp_path):
  gin_file = runs.tiny_pair(tmp_path, examples=1)
  process = runs.infer(
    *("configs/spec_ende.gin", gin_file),
    module="scripts.compile_ahead",
    flags=["--devices=2"],
    TARGET_CHECKPOINT_PATH=None,
    DRAFT_CHECKPOINT_PATH=None,
    **{"partitioning.PjitPartitioner.num_partitions": 2},
  )
  assert process.returncode == 0, process.stderr[-4000:]
  mesh, params, temporary, _, *collectives = process.stdout.splitlines()
  assert mesh.startswith("Mesh: 1 (data) x 2 (model).")
  assert params.startswith("parameters ")
  assert temporary.startswith("temporary ")
  (iteration,) = (line for line in collectives if line.startswith("collectives, iter"))
  assert "all-reduce" in iteration
