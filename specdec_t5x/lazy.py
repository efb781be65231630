"""Tables of classes by name; a module is imported when a name is first used."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Lazy(Mapping):
  """A read-only mapping from names to classes, or to objects made from classes."""

  def __init__(
    self, classes: Mapping[str, str], make: Callable[[type], Any] | None = None
  ):
    """Creates the mapping.

    Args:
      classes: "module:Class" for each name.
      make: from a class to the value of its name; None for the class as the value.
    """
    self._classes = dict(classes)
    self._make = make

  def __getitem__(self, name: str) -> Any:
    """Returns the value of a name.

    Raises:
      KeyError: if the mapping lacks the name.
    """
    module, _, attribute = self._classes[name].partition(":")
    cls = getattr(importlib.import_module(module), attribute)
    return self._make(cls) if self._make else cls

  def __contains__(self, name: object) -> bool:
    """Returns whether the mapping has a name, without an import."""
    return isinstance(name, str) and name in self._classes

  def __iter__(self) -> Iterator[str]:
    """Returns the names, in the order of their definition."""
    return iter(self._classes)

  def __len__(self) -> int:
    """Returns the number of names."""
    return len(self._classes)
