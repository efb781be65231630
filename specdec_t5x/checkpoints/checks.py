"""Checks that a checkpoint's parameters are the network's, and are finite."""

from collections.abc import Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.core.knobs import KnobError

Shapes = Mapping[str, tuple[int, ...]]


def check_shapes(found: Shapes, expected: Shapes, what: str) -> None:
  """Raises a ValueError if a checkpoint does not match the network.

  Args:
    found: shapes of the checkpoint's parameters.
    expected: shapes of the network's parameters.
    what: the setting and the setting's value, for messages.
  """
  missing = sorted(set(expected) - set(found))
  surplus = sorted(set(found) - set(expected))
  wrong = [name for name in sorted(expected) if found.get(name) != expected[name]]
  if missing:
    problem = (
      f" lacks {len(missing)} of the network's {len(expected)} parameters; the first "
      f"is {missing[0]}."
    )
  elif wrong:
    name = next((n for n in wrong if "token_embedder" in n), wrong[0])
    problem = (
      f": {name} has shape {found[name]}, but the network's configuration expects "
      f"{expected[name]} ({len(wrong)} parameters differ). Target and draft must share "
      "a vocabulary."
    )
  elif surplus:
    problem = (
      f" holds {len(surplus)} parameters that the network lacks; the first is "
      f"{surplus[0]}. The parameters belong to another network."
    )
  else:
    return
  raise ValueError(
    f"{what}{problem} Check the sizes, the number of layers, mlp_activations and "
    "logits_via_embedding in the gin file, under target/ and draft/ as in "
    "configs/pairs/. For a folder of Hugging Face's, "
    "--gin_file=configs/pairs/hugging_face.gin takes the sizes from the folder."
  )


def check_finite(path: str, params: Any) -> None:
  """Raises a ValueError if a parameter from `path` has a NaN or an infinite number.

  Each parameter is reduced on the parameter's device, without a copy.
  """
  flat = flax.traverse_util.flatten_dict(params, sep="/")
  # A reduction over a mesh communicates between devices. Reductions of shards do not.
  finite = {
    name: all(_is_finite(shard.data) for shard in leaf.addressable_shards)
    for name, leaf in flat.items()
    if jnp.issubdtype(leaf.dtype, jnp.floating)
  }
  bad = [name for name in sorted(finite) if not finite[name]]
  if bad:
    raise KnobError(
      "Checkpoint {path}: parameter {name} is not finite as {dtype}: {count} of "
      "{total} parameters hold NaN or infinity. Take an earlier checkpoint of the "
      "training, or copy the checkpoint again. If the range of float16 is too small, "
      "set {param_dtype} = 'bfloat16' or 'float32'.",
      path=path,
      name=bad[0],
      dtype=flat[bad[0]].dtype,
      count=len(bad),
      total=len(flat),
    )


def _is_finite(x: jax.Array) -> bool:
  # On CPU, NumPy reads the array in place. JAX would compile programs for each shape.
  library = np if x.platform() == "cpu" else jnp
  return bool(library.isfinite(x).all())


def is_float(params: Any) -> bool:
  """Returns whether all parameters are floats. A table of n-grams has token ids."""
  return all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(params))


def flat_shapes(tree: Any) -> Shapes:
  """Returns the shapes of nested parameters by path, for example decoder/.../kernel."""
  flat = flax.traverse_util.flatten_dict(tree, sep="/")
  return {name: tuple(leaf.shape) for name, leaf in flat.items()}
