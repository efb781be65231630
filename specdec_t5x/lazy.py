"""Tables of classes by name whose modules are imported when a name is first used."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Lazy(Mapping):
  """A read-only mapping from names to classes, or to what is made of them."""

  def __init__(
    self, classes: Mapping[str, str], make: Callable[[type], Any] | None = None
  ):
    """Creates the mapping.

    Args:
      classes: "module:Class" of each name.
      make: returns a name's value, given its class; None is the class itself.
    """
    self._classes = dict(classes)
    self._make = make
    self._values: dict[str, Any] = {}

  def __getitem__(self, name: str) -> Any:
    """Returns the value of a name.

    Raises:
      KeyError: where the mapping has no such name.
    """
    if name not in self._values:
      module, _, attribute = self._classes[name].partition(":")
      found = getattr(importlib.import_module(module), attribute)
      self._values[name] = self._make(found) if self._make else found
    return self._values[name]

  def __contains__(self, name: object) -> bool:
    """Returns whether there is such a name, and imports nothing."""
    return isinstance(name, str) and name in self._classes

  def __iter__(self) -> Iterator[str]:
    """Returns the names, in the order of their definition."""
    return iter(self._classes)

  def __len__(self) -> int:
    """Returns the number of names."""
    return len(self._classes)
