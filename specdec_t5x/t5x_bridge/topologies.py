"""TPU slices that programs are compiled for without a TPU.

The TPU's own compiler comes with `pip install libtpu`.
"""

import os

import numpy as np

# libtpu reads the type of the accelerator from the environment where no TPU is.
_TYPES = {"v4": "v4-8", "v5e": "v5litepod-1", "v5p": "v5p-8", "v6e": "v6e-1"}
_ALONE = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  # Compiling needs no TPU of its own: others may use theirs meanwhile.
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def described(topology: str) -> np.ndarray:
  """Returns the devices of a TPU slice that need not be there, for compiling.

  Args:
    topology: as v4:2x2x1 or v5e:1x1.

  Raises:
    ValueError: where there is no such slice, or no compiler for it.
  """
  from jax.experimental import topologies

  kind, _, shape = topology.partition(":")
  if kind not in _TYPES or not shape:
    raise ValueError(
      f"Expected a topology such as v4:1x1x1 or v5e:1x1, of one of {tuple(_TYPES)}, "
      f"got {topology!r}."
    )
  for name, value in {**_ALONE, "TPU_ACCELERATOR_TYPE": _TYPES[kind]}.items():
    os.environ.setdefault(name, value)
  # As JAX runs a v4: its two cores are one device.
  options = {"chip_config_name": "megacore"} if kind == "v4" else {}
  if set(shape.split("x")) == {"1"}:
    options["chips_per_host_bounds"] = (1, 1, 1)
  try:
    found = topologies.get_topology_desc(topology, platform="tpu", **options)
  except (RuntimeError, NotImplementedError, FileNotFoundError) as error:
    raise ValueError(
      f"No compiler for {topology!r}: {error}. It comes with `pip install libtpu`, of "
      "the version that this jax's extra `tpu` names."
    ) from error
  return np.array(found.devices)
