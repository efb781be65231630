"""Plants faults: a compiled program has several, and a traced integer selects one.

A check under a `Session` is compiled once. The check then runs without a fault, and
with each fault of the session in turn.
"""

import dataclasses
import functools
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest


@dataclasses.dataclass(frozen=True)
class Trap:
  """A known mistake, and the check that must notice the mistake.

  Attributes:
    place: the module or class with the attribute that the fault replaces.
    name: the attribute.
    fault: the replacement.
    check: the name of a check that passes without the fault and fails with the fault.
    alone: whether the fault has a program of its own: JAX keeps traces of a network's
      layers, and kept traces must not hold a tracer.
  """

  place: Any
  name: str
  fault: Callable
  check: str
  alone: bool = False

  def __str__(self):
    return f"{self.fault.__name__}-{self.check}"


TRAPS: list[Trap] = []


def trap(check: str, place: Any, name: str, alone: bool = False) -> Callable:
  """Returns a decorator that registers a fault; see `Trap` for the arguments."""

  def register(fault):
    TRAPS.append(Trap(place, name, fault, check, alone))
    return fault

  return register


class Session:
  """Runs one check with and without faults, by programs that are compiled once.

  Args:
    check: raises an AssertionError on failure.
    traps: the traps of this check.
  """

  _active: "Session | None" = None

  def __init__(self, check: Callable, traps: Sequence[Trap]):
    self._check = check
    self._traps = tuple(traps)
    self._programs: dict[tuple[str, int], Callable] = {}
    self._made: Counter[str] = Counter()
    self._selected: Any = 0

  def run(self, trap: Trap | None) -> None:
    """Runs the check with a fault, or without a fault if `trap` is None."""
    self._selected = 0 if trap is None else 1 + self._traps.index(trap)
    self._made = Counter()
    Session._active = self
    with pytest.MonkeyPatch.context() as patch:
      for place, name in {(trap.place, trap.name) for trap in self._traps}:
        original = getattr(place, name)
        patch.setattr(place, name, self._choosing(place, name, original))
      try:
        self._check()
      finally:
        Session._active = None

  def _choosing(self, place, name, original) -> Callable:
    """Returns a function that calls the original or the selected fault."""
    faults = {
      number: trap.fault
      for number, trap in enumerate(self._traps, 1)
      if (trap.place, trap.name) == (place, name)
    }

    def choose(*args, **kwargs):
      if isinstance(self._selected, int):  # Outside of programs.
        return faults.get(self._selected, original)(*args, **kwargs)
      selected = self._selected
      result = original(*args, **kwargs)
      for number, fault in faults.items():
        other = fault(*args, **kwargs)
        result = _where(selected == number, other, result)
      return result

    return choose

  def program(self, function: Callable) -> Callable:
    """Returns the compiled function; runs share the n-th program of a name."""
    name = getattr(function, "func", function).__qualname__
    key = name, self._made[name]
    self._made[name] += 1
    if key not in self._programs:

      def traced(selected, *args):
        before = self._selected
        self._selected = selected
        try:
          return function(*args)
        finally:
          self._selected = before

      self._programs[key] = jax.jit(traced)
    compiled = self._programs[key]
    return lambda *args: compiled(jnp.asarray(self._selected, jnp.int32), *args)


def _where(condition, new, old):
  """Returns `new` if the condition holds, else `old`; both may be functions."""
  if isinstance(old, types.FunctionType):
    return lambda *args, **kwargs: _where(
      condition, new(*args, **kwargs), old(*args, **kwargs)
    )

  def pick(one, other):
    return other if one is other else jnp.where(condition, one, other)

  return jax.tree.map(pick, new, old)


def jit(function: Callable) -> Callable:
  """Compiles a function of a check, with all faults of an active `Session`."""
  if Session._active is None:
    return _compiled(function)
  return Session._active.program(function)


# Many tests share the method of a rule.
_compiled = functools.lru_cache(maxsize=8)(jax.jit)
