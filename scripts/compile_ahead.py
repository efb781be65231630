"""Compiles a run for absent devices and prints whether the run fits their memory.

The script takes the gin files and bindings of `python -m t5x.infer`. It reads no
weights and needs no checkpoint:

  python scripts/compile_ahead.py --devices=4 --gin_file=configs/spec_ende.gin \
    --gin_file=configs/pairs/t5_1_1_xxl_small.gin --gin.DRAFT_SHARDING="'replicated'" \
    --gin.TARGET_CHECKPOINT_PATH=None --gin.DRAFT_CHECKPOINT_PATH=None \
    --gin.partitioning.PjitPartitioner.num_partitions=4

The default devices are virtual CPUs. XLA's compiler for CPUs computes bfloat16 products
in float32. --topology=v4:2x2x1 compiles for a TPU slice with the TPU's compiler (`pip
install libtpu`; no TPU is needed).
"""

import argparse
import os
import sys


def infer(
  *, model, dataset_cfg, restore_checkpoint_cfg, partitioner, devices=None, **others
):
  """Takes the place of T5X's `infer` in gin: compiles, and prints the memory."""
  del others  # Arguments of `infer` on outputs and chunks.
  from specdec_t5x.t5x_bridge.ahead import compile_ahead

  dtype = restore_checkpoint_cfg.dtype
  needs = compile_ahead(model, dataset_cfg, partitioner, dtype, devices)
  mesh = " x ".join(f"{size} ({name})" for name, size in needs.mesh.items())
  print(f"Mesh: {mesh}. Sizes in GB (10^9 bytes) on each device.")
  print(f"parameters {needs.params / 1e9:8.2f}")
  print(f"temporary  {needs.temporary / 1e9:8.2f}")
  print(f"sum        {(needs.params + needs.temporary) / 1e9:8.2f}")
  for when, counts in needs.collectives.items():
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "none"
    print(f"collectives, {when}: {kinds}")


def _topology(name: str | None):
  """Returns the devices of a described TPU slice; None for this machine's devices."""
  if name is None:
    return None
  from specdec_t5x.t5x_bridge.topologies import described

  return described(name)


def _main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--devices", type=int, default=1, help="number of devices")
  parser.add_argument("--topology", help="TPU slice, such as v4:2x2x1")
  parser.add_argument(
    "--gin_file", action="append", default=[], help="gin files; later files win"
  )
  values, bindings = parser.parse_known_args()
  # XLA reads the flag once, when JAX starts.
  count = f"--xla_force_host_platform_device_count={values.devices}"
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {count}"

  import gin
  import t5x
  from t5x import gin_utils

  run = gin.configurable(infer)
  bindings = [
    binding.removeprefix("--gin_bindings=")
    for binding in gin_utils.rewrite_gin_args(bindings)
  ]
  gin_utils.parse_gin_flags(
    [".", os.path.dirname(os.path.dirname(t5x.__file__))], values.gin_file, bindings
  )
  try:
    run(devices=_topology(values.topology))
  except ValueError as error:
    sys.exit(f"compile_ahead: {error}")


if __name__ == "__main__":
  _main()
