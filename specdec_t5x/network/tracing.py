"""Calls of network parts, with one trace for all equal parts.

The start of a program is mostly Python that traces layers. A stack of equal layers, at
several block widths, needs only a few traces. JAX caches a trace by shapes and module,
and modules with equal settings are equal. So a test that patches a function inside a
layer has to clear JAX's caches.
"""

import functools

import flax.linen as nn
import jax
from flax.linen.partitioning import get_axis_rules


def call(part: nn.Module, method: str, *args, **settings):
  """Calls a method of a submodule of the network that is being applied.

  Args:
    part: submodule, which draws no random numbers except to initialise parameters.
    method: name of the method.
    *args: arrays and containers of arrays.
    **settings: hashable settings, static when a program is compiled.
  """
  if part.is_initializing():
    return getattr(part, method)(*args, **settings)
  module = part.clone(parent=None, name=None)
  return apply(module, method, part.variables, *args, **settings)


def apply(module: nn.Module, method: str, variables, *args, **settings):
  """Like `call`, for a module and the module's variables."""
  rules = tuple(get_axis_rules())
  return _applied(module, method, tuple(settings.items()), rules, variables, *args)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _applied(module, method, settings, rules, variables, *args):
  del rules  # Only part of the cache's key: rules divide parameters over devices.
  return module.apply(variables, *args, method=method, **dict(settings))
