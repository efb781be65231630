"""Descriptions of TPU slices, to compile programs for TPUs without a TPU.

`pip install libtpu` installs the TPU's compiler.
"""

import os

import numpy as np

# Without a TPU, libtpu reads the type of the accelerator from the environment.
_TYPES = {"v4": "v4-8", "v5e": "v5litepod-1", "v5p": "v5p-8", "v6e": "v6e-1"}
_ALONE = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  # Compilation does not occupy a TPU, so several processes may load libtpu.
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def described(topology: str) -> np.ndarray:
  """Returns the devices of a described TPU slice, for compilation without the devices.

  Args:
    topology: type and shape of the slice, such as v4:2x2x1 or v5e:1x1.

  Raises:
    ValueError: if there is no slice of this topology, or no compiler for the slice.
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
  # JAX runs the two cores of a v4 as one device.
  options = {"chip_config_name": "megacore"} if kind == "v4" else {}
  if set(shape.split("x")) == {"1"}:
    options["chips_per_host_bounds"] = (1, 1, 1)
  try:
    description = topologies.get_topology_desc(topology, platform="tpu", **options)
  except (RuntimeError, NotImplementedError, FileNotFoundError) as error:
    raise ValueError(
      f"No compiler for {topology!r}: {error}. Install the compiler with `pip install "
      "libtpu`, in the version of the extra `tpu` of the installed jax."
    ) from error
  return np.array(description.devices)
