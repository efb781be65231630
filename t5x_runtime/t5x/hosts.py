"""Connects the processes of a job."""

import jax
from absl import flags
from jax.experimental import multihost_utils


def define_flags() -> None:
  """Defines the flags about the job and the index of this process."""
  flags.DEFINE_bool(
    "multi_host",
    False,
    "Whether the job has several processes that JAX finds without flags: on a TPU "
    "pod, or under SLURM, Open MPI or Kubernetes.",
  )
  flags.DEFINE_string(
    "coordinator_address",
    None,
    "host:port of the first process, if JAX can't find the process.",
  )
  flags.DEFINE_integer(
    "process_count", None, "With coordinator_address: the number of processes."
  )
  flags.DEFINE_integer(
    "process_index", None, "With coordinator_address: the index of the process."
  )


def connect() -> None:
  """Joins the job in the flags, before the first use of a device.

  Raises:
    ValueError: if the flags are incompatible, or this process can't join the job.
  """
  values = flags.FLAGS
  names = ("coordinator_address", "process_count", "process_index")
  settings = {name: getattr(values, name) for name in names}
  if not values.multi_host and not any(x is not None for x in settings.values()):
    return
  lacking = [f"--{name}" for name, value in settings.items() if value is None]
  if lacking and not (values.multi_host and len(lacking) == len(settings)):
    raise ValueError(
      "--coordinator_address, --process_count and --process_index go together; "
      f"{', '.join(lacking)} missing. Give the three flags, or --multi_host alone if "
      "JAX finds the processes without flags."
    )
  try:
    jax.distributed.initialize(
      values.coordinator_address, values.process_count, values.process_index
    )
  # JAX raises a RuntimeError, or a ValueError about the cluster.
  except (RuntimeError, ValueError) as error:
    raise ValueError(
      f"Process {values.process_index} could not join the job "
      f"({' '.join(str(error).split())[:300]}). The first process must run at "
      "--coordinator_address, and the processes must agree on --process_count."
    ) from error


def from_first(value: int) -> int:
  """Returns the first process's value in all processes."""
  if jax.process_count() == 1:
    return value
  return int(multihost_utils.broadcast_one_to_all(value))


def sync(name: str) -> None:
  """Waits for all processes; does nothing in a job of one process."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
