"""Signatures of the reference: public names alone, as code writes them."""

import re

import jax
import numpy.typing

# What no caller gives: Flax's own arguments of a module, and private ones.
_NOT_GIVEN = re.compile(
  r", (parent: .*?_Sentinel object>, name: str \| None *= *None|_\w+: [^,)]*)"
)


def name_types() -> None:
  """Gives types that are private in their libraries the names that they go by.

  Call it before the package is imported, whose annotations have them.
  """
  jax.Array.__name__ = jax.Array.__qualname__ = "Array"
  numpy.typing.ArrayLike = type("ArrayLike", (), {"__module__": "numpy.typing"})


def process(app, what, name, obj, options, signature, returns):
  """Sphinx's `autodoc-process-signature`: leaves out what no caller gives."""
  del app, what, name, obj, options
  return signature and _NOT_GIVEN.sub("", signature), returns


def check(app, doctree) -> None:
  """Sphinx's `doctree-read`: a private name in a signature is a warning."""
  from docutils import nodes
  from sphinx import addnodes
  from sphinx.util import logging

  del app
  shown = [*doctree.findall(addnodes.desc_signature)]
  shown += [n for n in doctree.findall(nodes.paragraph) if "Bases:" in n.astext()]
  for node in shown:
    if private := private_names(node.astext()):
      logging.getLogger(__name__).warning("private: %s", private, location=node)


def private_names(signature: str) -> list[str]:
  """Returns the private names of a signature; those in shapes are none.

  >>> private_names("f(x: module._Kept, y: Float[Array, '*batch _']) -> public_")
  ['_Kept']
  """
  return re.findall(r"(?<!\w)_[A-Za-z]\w*", re.sub("'[^']*'|\"[^\"]*\"", "", signature))
