"""Cleans signatures in the reference: only public names, as in the code."""

import re

import jax
import numpy.typing

# Arguments that no caller passes: Flax's own module arguments, and private arguments.
_NOT_GIVEN = re.compile(
  r", (parent: .*?_Sentinel object>, name: str \| None *= *None|_\w+: [^,)]*)"
)


def name_types() -> None:
  """Gives private types of libraries their public names.

  Call the function before importing the package, since annotations hold the types.
  """
  jax.Array.__name__ = jax.Array.__qualname__ = "Array"
  numpy.typing.ArrayLike = type("ArrayLike", (), {"__module__": "numpy.typing"})


def process(app, what, name, obj, options, signature, returns):
  """Sphinx's `autodoc-process-signature`: removes arguments that no caller passes."""
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
  """Returns the private names of a signature, except for names in shapes.

  >>> private_names("f(x: module._Kept, y: Float[Array, '*batch _']) -> public_")
  ['_Kept']
  """
  return re.findall(r"(?<!\w)_[A-Za-z]\w*", re.sub("'[^']*'|\"[^\"]*\"", "", signature))
