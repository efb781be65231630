"""Connects the processes of a job, and checks that JAX has the asked platform."""

import jax
from absl import flags
from jax.experimental import multihost_utils
from jax.extend.backend import clear_backends


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


def check_platform() -> None:
  """Raises a ValueError if JAX can't use any platform in JAX_PLATFORMS.

  JAX itself raises errors of several types, including an error without a text.
  """
  asked = jax.config.jax_platforms
  # Without JAX_PLATFORMS, JAX uses an available platform, and the CPU is always
  # available.
  if not asked or asked == "cpu":
    return
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:
    # JAX's default platform, before the setting of platforms is restored.
    jax.config.update("jax_platforms", None)
    try:
      present = jax.default_backend()
    finally:
      jax.config.update("jax_platforms", asked)
      clear_backends()
    reason = f" ({error})" if str(error) else ""
    # `from None` hides JAX's own trace, which is long and about internals.
    raise ValueError(
      f"JAX finds no platform {asked!r}, the value of JAX_PLATFORMS, but finds "
      f"{present!r}{reason}. Set JAX_PLATFORMS={present}, or install JAX for {asked!r}."
    ) from None
