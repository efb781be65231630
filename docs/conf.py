"""Configures the build of the documentation (`make docs`)."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
# Modules are imported to read their docstrings, and gin files are read, from here.
sys.path[:0] = [str(ROOT), str(ROOT / "t5x_runtime"), str(ROOT / "docs")]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import docstrings
import gin_reference
import signatures

from specdec_t5x.quiet import import_quietly

import_quietly("tensorflow")  # It would print lines of its own in the build's output.
signatures.name_types()

from specdec_t5x import __version__

project = "specdec_t5x"
author = "the specdec_t5x authors"
project_copyright = author
version = release = __version__

extensions = [
  "myst_nb",
  "sphinx.ext.autodoc",
  "sphinx.ext.autosummary",
  "sphinx.ext.napoleon",
  "sphinx.ext.mathjax",
  "sphinx.ext.viewcode",
  "sphinx_copybutton",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
# The tutorial's outputs are kept in the notebook; tests/docs executes it.
nb_execution_mode = "off"

autodoc_member_order = "bysource"
# `setup` is Flax's.
autodoc_default_options = {
  "members": True,
  "show-inheritance": True,
  "exclude-members": "setup",
}
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
# The '*' of shapes in signatures is not markup.
napoleon_use_ivar = True
napoleon_attr_annotations = False
default_role = "literal"

html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme = "furo"
html_title = f"specdec_t5x {version}"
html_theme_options = {"navigation_with_keys": True}


def setup(app):
  """Adds the parts made at build time: the gin reference, docstrings, signatures."""
  app.connect("builder-inited", lambda app: gin_reference.write(ROOT))
  # Before napoleon, which reads the sections.
  app.connect("autodoc-process-docstring", docstrings.process, priority=400)
  app.connect("autodoc-process-signature", signatures.process)
  app.connect("doctree-read", signatures.check)
