"""What a decode needs besides restored parameters, before anything is compiled.

Weights are rounded, arrays are derived of parameters, and kernels for a GPU are chosen.
"""

import dataclasses
import os
import pathlib
import platform
from collections.abc import Callable, Mapping
from typing import Any

import jax

from specdec_t5x import console
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.native import library
from specdec_t5x.native.cuda import choice
from specdec_t5x.native.cuda import library as of_gpu
from specdec_t5x.native.cuda import step as draft_step
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import Network


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A network with its parameters; `specdec_t5x.load_model` makes one.

  A model equals itself alone: comparing parameters would take as long as reading.

  Attributes:
    network: the network.
    params: the parameters, rounded if the network's weights are rounded.
    restore: reads the parameters of the checkpoint again, if the weights are rounded.
    generation: the settings for generation in the checkpoint's folder.
    folder: the Hugging Face folder of the model, which may hold a vocabulary, or None.
  """

  network: Network
  params: Any = dataclasses.field(repr=False)
  restore: Callable[[], Any] | None = dataclasses.field(default=None, repr=False)
  generation: Generation = dataclasses.field(default_factory=Generation)
  folder: str | None = None
  # Not an argument: `dataclasses.replace` with other parameters derives anew.
  _derived: dict = dataclasses.field(default_factory=dict, init=False, repr=False)

  def derived(
    self, wanted: Mapping[str, Callable[[Any], Any]], name: str = "target"
  ) -> dict[str, Any]:
    """Returns arrays that a decode derives of the parameters; they are kept.

    Args:
      wanted: functions of the parameters, by name (`Decoder.derive`).
      name: the name of the network in the decode.
    """
    for of_decode, make in wanted.items():
      if make not in self._derived:
        params = self.restore() if self.restore else self.params
        self._derived[make] = made(of_decode, make, params, name)
    return {of_decode: self._derived[make] for of_decode, make in wanted.items()}


def made(
  name: str, make: Callable[[Any], Any], params: Any, network: str = "target"
) -> Any:
  """Computes an array from a network's parameters, and prints its size.

  Args:
    name: name of the array.
    make: one of `Decoder.derive`.
    params: the network's parameters.
    network: its name.
  """
  arrays = jax.block_until_ready(make(params))
  size, network_size = (rounded.size(tree) / 1e6 for tree in (arrays, params))
  console.say(
    f"{name.capitalize().replace('_', ' ')}: {size:.1f} MB beside the {network}'s "
    f"{network_size:.1f} MB."
  )
  return arrays


def in_weights(network: Any, params: Any) -> Any:
  """Rounds the parameters of a network with rounded weights, and prints their size.

  Args:
    network: the network.
    params: the restored parameters.
  """
  rounding = rounded.of_weights(network.config)
  rounded_params = jax.block_until_ready(rounded.within(params, rounding(params)))
  size, full_size = (rounded.size(tree) / 1e6 for tree in (rounded_params, params))
  console.say(
    f"The weights are rounded to {network.config.weights}: another model than the "
    f"checkpoint's, with {size:.1f} MB instead of {full_size:.1f} MB."
  )
  return rounded_params


def choose_kernels(
  networks: Mapping[str, Any], params: Mapping[str, Any], rows: int
) -> None:
  """Decides which kernels for a GPU the programs of a decode call, and says so.

  Args:
    networks: the decoder's networks, by name.
    params: of the networks, on the device.
    rows: rows that decode at once.

  Raises:
    ValueError: if products='native' asks for a kernel with wrong results.
  """
  if not draft_step.is_for_gpu():
    return
  choices = choice.CHOICES
  where = device()
  for name, network in networks.items():
    network_params = {name: params[name]}
    if name == "target":
      # Arrays derived of the target are multiplied like the target's weights.
      network_params |= {x: params[x] for x in params if x not in networks}
    contests = list(rounded.contests(network.config, network_params, choices.calls))
    weights = params.get(draft_step.name_of(name))
    problem = draft_step.problem_of(network, rows)
    if weights is not None and problem is None:
      step = draft_step.contest(network, params[name], weights, rows, choices.calls)
      contests.append((draft_step.key_of(network, rows), step))
    elif name != "target":
      reason = problem or "drafts are trees"
      console.say_once(f"Step of the {name}: XLA's, because {reason}.")
    is_asked_for = getattr(network.config, "products", None) == "native"
    for key, contest in contests:
      if line := choices.decide(key, contest, where, is_asked_for):
        console.say(line)


def device() -> tuple[str, ...]:
  """Returns everything beside the program that times depend on."""
  kernels = library.problem() or library.code().decode()
  if of_gpu.problem() is None:
    kernels = of_gpu.code().decode()
  return (
    jax.devices()[0].device_kind,
    processor(),
    str(library.cpus()),
    *(os.environ.get(name, "") for name in ("PJRT_NPROC", "NPROC")),
    jax.__version__,
    os.environ.get("XLA_FLAGS", ""),
    kernels,
  )


def processor() -> str:
  """Returns the name of this machine's processor; '' if the system gives none."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    return platform.processor()
  names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
  return next(names, "").strip()
