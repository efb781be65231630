"""The state of training, and one step of it as a compiled program."""

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.core import unfreeze
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from specdec_t5x.network.functional import Network, initial_variables
from specdec_t5x.training.losses import weighted_mean
from specdec_t5x.training.objectives import Batch, Objective, Params
from specdec_t5x.training.optimizers import Optimizer


@flax.struct.dataclass
class TrainState:
  """What changes from step to step.

  Attributes:
    step: steps taken so far.
    params: of the network, float32.
    opt_state: of the optimizer.
  """

  step: Int[Array, ""]
  params: Any
  opt_state: optax.OptState


@flax.struct.dataclass
class StepInfo:
  """What a step says about itself.

  Attributes:
    loss: mean over the batch's target tokens, before the update.
    tokens: how many those were.
    grad_norm: global norm of the gradient.
  """

  loss: Float[Array, ""]
  tokens: Int[Array, ""]
  grad_norm: Float[Array, ""]


@flax.struct.dataclass
class EvalInfo:
  """Sums over one batch's target tokens: the objective, hits of argmax, tokens."""

  loss: Float[Array, ""]
  correct: Float[Array, ""]
  tokens: Float[Array, ""]


StepFn = Callable[[TrainState, Batch, Params], tuple[TrainState, StepInfo]]
EvalFn = Callable[[Params, Batch, Params], EvalInfo]


def initial_params(network: Network, seed: int) -> Params:
  """Returns seeded random parameters, as T5X initialises them."""
  init = lambda key: unfreeze(initial_variables(network, key)["params"])
  return jax.jit(init)(jax.random.key(seed))


def initial_state(params: Params, optimizer: optax.GradientTransformation):
  """Returns the state before the first step, with a copy of `params`.

  A copy, because the first step donates the state's memory.

  Raises:
    ValueError: for parameters that are no numbers to learn.
  """
  if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(params)):
    raise ValueError(
      "A draft that is trimmed to hot tokens, or a table of n-grams, does not learn: "
      "some of its parameters are whole numbers. Train the draft, then trim it."
    )
  params = jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), params)
  return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


@functools.lru_cache(maxsize=8)
def make_train_step(
  network: Network,
  objective: Objective,
  optimizer: Optimizer,
  seed: int,
) -> StepFn:
  """Returns the step, compiled once a setting; it donates the state it is given.

  Dropout follows from the seed and the step alone, so a resumed run repeats it.
  """
  transform = optimizer.make()

  def step(state, batch, frozen):
    key = jax.random.fold_in(jax.random.key(seed), state.step)

    def loss_of(params):
      judged = objective(network, params, batch, frozen, key)
      return weighted_mean(judged.losses, batch["decoder_loss_weights"])

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    updates, opt_state = transform.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    tokens = batch["decoder_loss_weights"].sum()
    info = StepInfo(loss, tokens, optax.global_norm(grads))
    return TrainState(state.step + 1, params, opt_state), info

  return jax.jit(step, donate_argnums=0)


@functools.lru_cache(maxsize=8)
def make_eval_step(network: Network, objective: Objective) -> EvalFn:
  """Returns the compiled evaluation of a batch, without dropout."""

  def evaluate(params, batch, frozen):
    judged = objective(network, params, batch, frozen)
    weights = batch["decoder_loss_weights"]
    values = jnp.where(weights > 0, judged.losses, 0.0)
    return EvalInfo(
      loss=(values * weights).sum(),
      correct=(judged.hits * weights).sum().astype(jnp.float32),
      tokens=weights.sum().astype(jnp.float32),
    )

  return jax.jit(evaluate)


class Placement:
  """Data parallelism over this machine's devices: batches split, the rest copied."""

  def __init__(self, batch_size: int):
    devices = jax.devices()
    if jax.process_count() > 1:
      raise ValueError(
        f"Training runs in one process, got {jax.process_count()}. Start it on one "
        "host, or train with upstream T5X, whose checkpoints are the same."
      )
    if batch_size % len(devices):
      raise ValueError(
        f"BATCH_SIZE={batch_size} can't be split over {len(devices)} devices. Make it "
        "a multiple of that."
      )
    mesh = Mesh(np.array(devices), ("data",))
    self._batch = NamedSharding(mesh, PartitionSpec("data"))
    self._copied = NamedSharding(mesh, PartitionSpec())

  def batch(self, batch: Batch) -> Batch:
    """Puts a batch's rows on the devices, evenly."""
    return jax.device_put(batch, self._batch)

  def copied(self, tree: Any) -> Any:
    """Puts a whole copy of each array on each device."""
    return jax.device_put(tree, self._copied)
