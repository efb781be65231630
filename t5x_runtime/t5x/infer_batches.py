"""Running a step over the batches of a dataset; reached as `utils.get_infer_fn`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x import train_state

# The feature, and the auxiliary value, that goes from each batch to the next.
KNOWN = "known"


def get_infer_fn(
  infer_step: Callable[..., Any],
  batch_size: int,
  train_state_axes: train_state.InferenceState,
  partitioner,
  keep_aux_as_numpy: bool = False,
  nothing_known: Callable[[int], Any] = lambda count: None,
) -> Callable[..., Any]:
  """Returns a function that runs `infer_step` over a numbered dataset.

  Args:
    infer_step: (params, batch) or (params, batch, rng) -> predictions, or those and a
      dict of auxiliary values.
    batch_size: over all devices.
    train_state_axes: how the parameters lie on them.
    partitioner: compiles the step.
    keep_aux_as_numpy: whether auxiliary values stay arrays.
    nothing_known: from a number of examples to arrays that the step knows of batches
      before the first; it is given them as the feature `KNOWN`, and has what it knows
      then among the auxiliary values, for the next batch of the dataset.

  Returns:
    (dataset, train_state, rng, report) -> [(number, prediction)], with auxiliary
    values, if any, as a second element. `report` is called with the number of examples
    of each finished batch.
  """
  spec = partitioner.data_partition_spec
  run = partitioner.partition(
    _step(infer_step),
    in_axis_resources=(train_state_axes.params, spec, None, spec, spec),
    out_axis_resources=(None, None, spec),
  )
  layout = partitioner.get_data_layout(batch_size)
  sharding = jax.sharding.NamedSharding(partitioner.mesh, spec)
  place = functools.partial(jax.make_array_from_process_local_data, sharding)
  to_global = functools.partial(jax.tree.map, place)

  def infer_fn(ds, train_state, rng=None, report=lambda count: None):
    """Runs the step over all batches."""
    numbered, columns = [], []
    per_process = layout.batch_size // layout.num_shards
    batches = _pad(ds, batch_size).shard(layout.num_shards, layout.shard_id)
    placed = map(to_global, batches.batch(per_process).as_numpy_iterator())
    following = next(placed, None)
    known = to_global(nothing_known(per_process))
    while following is not None:
      step_rng, rng = (None, None) if rng is None else jax.random.split(rng)
      numbers, batch = following
      *running, known = run(train_state.params, batch, step_rng, numbers, known)
      # While the devices are busy the next batch is made ready.
      following = next(placed, None)
      numbers, result = jax.device_get(running)
      predictions, aux = result if isinstance(result, tuple) else (result, {})
      real = numbers >= 0
      columns.append(jax.tree.map(lambda x, real=real: x[real], aux))
      numbered += zip(numbers[real].tolist(), predictions[real], strict=True)
      report(int(real.sum()))
    return _joined(numbered, columns, keep_aux_as_numpy)

  return infer_fn


def _step(infer_step):
  """Returns what is compiled: the step, with what goes along with each batch."""
  takes_rng = "rng" in inspect.signature(infer_step).parameters

  def step(params, batch, rng, numbers, known):
    """Returns numbers, the step's result, and what it knows then."""
    # The numbers go along, so that they come back in whatever order devices give.
    batch = batch if known is None else {**batch, KNOWN: known}
    args = (params, batch, rng) if takes_rng else (params, batch)
    result = infer_step(*args)
    if known is None:
      return numbers, result, None
    predictions, aux = result
    rest = {name: value for name, value in aux.items() if name != KNOWN}
    return numbers, (predictions, rest), aux[KNOWN]

  return step


def _joined(numbered, columns, keep_aux_as_numpy):
  """Returns the predictions, and the auxiliary values of all batches if any."""
  if not (columns and jax.tree.leaves(columns[0])):
    return numbered
  aux = jax.tree.map(lambda *parts: np.concatenate(parts), *columns)
  return numbered, aux if keep_aux_as_numpy else jax.tree.map(_to_list, aux)


def _pad(ds, batch_size):
  """Fills the last batch with copies of the first example, numbered -1."""
  count = int(ds.cardinality())
  if count < 0:  # Unknown before it is read.
    count = int(ds.reduce(np.int64(0), lambda total, _: total + 1))
  lacking = -count % batch_size
  if not lacking:
    return ds
  filler = ds.take(1).map(lambda number, example: (np.int64(-1), example))
  return ds.concatenate(filler.repeat(lacking))


def _to_list(column):
  # ml_dtypes' scalars are no Python numbers.
  if column.dtype == jnp.bfloat16:
    column = column.astype(np.float32)
  return column.tolist()
