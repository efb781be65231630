"""The state of training, and the compiled steps of training and evaluation."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.core import unfreeze
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from specdec_t5x.network.functional import Network, initial_variables
from specdec_t5x.training.losses import weighted_mean
from specdec_t5x.training.objectives import Batch, Objective, Params
from specdec_t5x.training.optimizers import Optimizer

Numbers = dict[str, Float[Array, ""]]


class DivergedError(FloatingPointError, ValueError):
  """Raised if a loss or a gradient is not finite."""


def initial_params(network: Network, seed: int) -> Params:
  """Returns seeded random parameters, with T5X's initialisation."""

  def init(key):
    return unfreeze(initial_variables(network, key)["params"])

  return jax.jit(init)(jax.random.key(seed))


def initial_state(params: Params, optimizer: Optimizer) -> TrainState:
  """Returns the state before the first step.

  The state has a copy of `params`, because the first step donates the state's memory.

  Raises:
    ValueError: if some parameters are not floating-point numbers.
  """
  if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(params)):
    raise ValueError(
      "A draft trimmed to hot tokens, or a table of n-grams, can't be trained, because "
      "some parameters are whole numbers. Train the draft first, and trim the draft "
      "afterwards."
    )
  params = jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), params)
  state = TrainState.create(apply_fn=None, params=params, tx=_transform(optimizer))
  return state.replace(step=jnp.zeros((), jnp.int32))


# Equal settings share one transformation, because steps are compiled per object.
_transform = functools.lru_cache(maxsize=8)(Optimizer.make)


@functools.lru_cache(maxsize=8)
def make_train_step(
  network: Network, objective: Objective, seed: int
) -> Callable[[TrainState, Batch, Params], tuple[TrainState, Numbers]]:
  """Returns the training step, compiled once per setting.

  The step returns the next state, the batch's mean loss and the gradient's global norm.
  The step donates the input state. Only the seed and the step's number determine
  dropout, so a resumed run repeats the same dropout.
  """

  def step(state, batch, frozen):
    key = jax.random.fold_in(jax.random.key(seed), state.step)

    def loss_of(params):
      judged = objective(network, params, batch, frozen, key)
      return weighted_mean(judged.losses, batch["decoder_loss_weights"])

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    numbers = {"loss": loss, "grad_norm": optax.global_norm(grads)}
    return state.apply_gradients(grads=grads), numbers

  return jax.jit(step, donate_argnums=0)


def finite(numbers: Numbers, step: int) -> dict[str, float]:
  """Copies a step's numbers from the device, and returns the numbers.

  Raises:
    DivergedError: if a number is not finite; callers check before each checkpoint.
  """
  values = {name: float(numbers[name]) for name in ("loss", "grad_norm")}
  if not all(map(math.isfinite, values.values())):
    raise DivergedError(
      f"Training diverged: at step {step} the loss is {values['loss']} and the "
      f"gradient's norm {values['grad_norm']}. Lower LEARNING_RATE or lengthen "
      "WARMUP_STEPS; the last checkpoint is older than the divergence."
    )
  return values


@functools.lru_cache(maxsize=8)
def make_eval_step(
  network: Network, objective: Objective
) -> Callable[[Params, Batch, Params], Numbers]:
  """Returns the compiled sums of a batch's losses, hits and tokens, without dropout."""

  def evaluate(params, batch, frozen):
    judged = objective(network, params, batch, frozen)
    weights = batch["decoder_loss_weights"]
    values = jnp.where(weights > 0, judged.losses, 0.0)
    return {
      "loss": (values * weights).sum(),
      "correct": (judged.hits * weights).sum().astype(jnp.float32),
      "tokens": weights.sum().astype(jnp.float32),
    }

  return jax.jit(evaluate)


def shardings(batch_size: int) -> tuple[NamedSharding, NamedSharding]:
  """Returns the shardings of batches, split over devices, and of arrays on all devices.

  Raises:
    ValueError: if there are several processes, or the devices can't share a batch.
  """
  devices = jax.devices()
  if jax.process_count() > 1:
    raise ValueError(
      f"Training runs in one process, got {jax.process_count()}. Start the command "
      "on one host, or train with upstream T5X (checkpoints have the same format)."
    )
  if batch_size % len(devices):
    raise ValueError(
      f"BATCH_SIZE must be divisible by the number of devices ({len(devices)}), got "
      f"{batch_size}. Change BATCH_SIZE."
    )
  mesh = Mesh(np.array(devices), ("data",))
  split = NamedSharding(mesh, PartitionSpec("data"))
  return split, NamedSharding(mesh, PartitionSpec())
