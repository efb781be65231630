"""Runs a step over the batches of a dataset; exported as `utils.get_infer_fn`."""

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from t5x import train_state
from t5x.inference_files import plain

# The feature, and the auxiliary value, with the state from batch to batch.
KNOWN = "known"


def get_infer_fn(
  infer_step: Callable[..., Any],
  batch_size: int,
  train_state_axes: train_state.InferenceState,
  partitioner,
  keep_aux_as_numpy: bool = False,
  nothing_known: Callable[[int], Any] | None = None,
) -> Callable[..., Any]:
  """Returns a function that runs `infer_step` over a numbered dataset.

  Args:
    infer_step: maps (params, batch) or (params, batch, rng) to predictions, or to
      (predictions, dict of auxiliary values).
    batch_size: number of examples per batch, over all devices.
    train_state_axes: layout of the parameters on the devices.
    partitioner: compiles the step.
    keep_aux_as_numpy: whether auxiliary values stay arrays.
    nothing_known: maps a number of examples to the state before the first batch. The
      step gets the state as the feature `KNOWN`, and returns the new state, for the
      next batch, as the auxiliary value `KNOWN`. None means no state.

  Returns:
    (dataset, train_state, rng, report) -> [(number, prediction)] by increasing number,
    with auxiliary values, if any, as a second element. The function calls `report` for
    each finished batch, with the number of examples and the auxiliary values.
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

  def infer_fn(ds, train_state, rng=None, report=lambda count, aux: None):
    """Runs the step over all batches."""
    numbered = []
    columns = []
    placed = map(to_global, _batches(ds, layout))
    following = next(placed, None)
    count = layout.batch_size // layout.num_shards
    known = to_global(nothing_known(count)) if nothing_known else None
    while following is not None:
      step_rng, rng = (None, None) if rng is None else jax.random.split(rng)
      numbers, batch = following
      *running, known = run(train_state.params, batch, step_rng, numbers, known)
      # The next batch is prepared while the devices compute.
      following = next(placed, None)
      numbers, result = jax.device_get(running)
      predictions, aux = result if isinstance(result, tuple) else (result, {})
      real = numbers >= 0
      columns.append(jax.tree.map(lambda x, real=real: x[real], aux))
      numbered += zip(numbers[real].tolist(), predictions[real], strict=True)
      report(int(real.sum()), columns[-1])
    return _joined(numbered, columns, keep_aux_as_numpy)

  return infer_fn


def _step(infer_step):
  """Returns the function to compile: `infer_step` with numbers and state of a batch."""
  takes_rng = "rng" in inspect.signature(infer_step).parameters

  def step(params, batch, rng, numbers, known):
    """Returns numbers, the step's result, and the new state."""
    # The program returns the numbers too, because devices may return rows in another
    # order.
    batch = batch if known is None else {**batch, KNOWN: known}
    result = infer_step(params, batch, rng) if takes_rng else infer_step(params, batch)
    if known is not None:
      predictions, aux = result
      aux = dict(aux)
      known = aux.pop(KNOWN)
      result = (predictions, aux)
    return numbers, result, known

  return step


def _joined(numbered, columns, keep_aux_as_numpy):
  """Returns the predictions, and auxiliary values if any, in the examples' order."""
  order = np.argsort([number for number, _ in numbered])
  numbered = [numbered[place] for place in order]
  if not (columns and jax.tree.leaves(columns[0])):
    return numbered
  aux = jax.tree.map(lambda *parts: np.concatenate(parts)[order], *columns)
  return numbered, aux if keep_aux_as_numpy else jax.tree.map(plain, aux)


def _batches(ds, layout):
  """Yields this process's rows of each batch.

  Copies of the first example, with the number -1, fill up the last batch.
  """
  rows = ds.as_numpy_iterator()
  filler = None
  while batch := list(itertools.islice(rows, layout.batch_size)):
    filler = filler or (np.int64(-1), batch[0][1])
    batch += [filler] * (layout.batch_size - len(batch))
    process_rows = batch[layout.shard_id :: layout.num_shards]
    yield jax.tree.map(lambda *values: np.stack(values), *process_rows)
