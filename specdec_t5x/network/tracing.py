"""Parts of networks that are traced once for all that are alike.

A program's start is mostly Python that traces layers: a stack of equal ones, at several
widths of a block, is the same few traces. JAX keeps them by the module, which is equal
where its settings are, and the shapes. So a test that patches what a layer calls has to
clear JAX's caches.
"""

import functools

import flax.linen as nn
import jax
from flax.linen.partitioning import get_axis_rules


def call(part: nn.Module, method: str, *args, **settings):
  """Returns what a method of a part of the network that is being applied gives.

  Args:
    part: makes no random choices, but for its parameters where these are made.
    method: the method's name.
    *args: arrays, and what holds them.
    **settings: hashable, known when programs are compiled.
  """
  if part.is_initializing():
    return getattr(part, method)(*args, **settings)
  alike = part.clone(parent=None, name=None)
  return apply(alike, method, part.variables, *args, **settings)


def apply(module: nn.Module, method: str, variables, *args, **settings):
  """As `call`, of a module and its variables."""
  rules = tuple(get_axis_rules())
  return _applied(module, method, tuple(settings.items()), rules, variables, *args)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _applied(module, method, settings, rules, variables, *args):
  del rules  # How parameters lie on devices goes by them.
  return module.apply(variables, *args, method=method, **dict(settings))
