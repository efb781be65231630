"""Errors name settings by Python's arguments, or by the macros of gin files."""

import ast
import dataclasses
import pickle
import re
import string

import gin
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import KnobError, Name, check_value, whole
from specdec_t5x.t5x_bridge import macros
from tests import commands
from tests.real_data import ROOT

GAMMA = dataclasses.replace(whole(1), macro="LOWER_GAMMA", fix="{knob} is a length.")


def test_an_error_has_the_names_of_its_reader():
  error = KnobError(
    "{policy}={kind!r} of {other}: {text}.",
    kind="auto",
    other=Name("top_k", "LINK_TOPK"),
    text="{gamma} and %s",
  )
  for each in (error, pickle.loads(pickle.dumps(error))):
    assert str(each) == "policy='auto' of top_k: {gamma} and %s."
    assert each.in_gin() == "GAMMA_POLICY='auto' of LINK_TOPK: {gamma} and %s."


def test_a_knob_s_check_has_the_macro_of_the_knob():
  with pytest.raises(KnobError) as caught:
    check_value(GAMMA, 0, "gamma")
  message = "{} must be a whole number of at least 1, got 0. {} is a length."
  assert str(caught.value) == message.format("gamma", "gamma")
  assert caught.value.in_gin() == message.format("LOWER_GAMMA", "LOWER_GAMMA")


def templates():
  """Yields the message and the names of the values of every error in the code."""
  for path in (ROOT / "specdec_t5x").rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
      match node:
        case ast.Call(ast.Name("KnobError"), [ast.Constant(template)]):
          yield template, {word.arg for word in node.keywords}
        case ast.Call(ast.Name("invalid"), [ast.Constant(name), *_]):
          yield f"{{{name}}}", set()


def test_every_setting_in_a_message_is_a_macro_of_gin_files():
  files = (ROOT / "configs").rglob("*.gin")
  lines = "\n".join(file.read_text() for file in files)
  macros = set(re.findall(r"^([A-Z\d_]+) =", lines, re.MULTILINE))
  settings = set()
  for template, values in templates():
    fields = {field for _, field, _, _ in string.Formatter().parse(template) if field}
    settings |= {re.split(r"[.\[]", field)[0] for field in fields} - values
  assert len(settings) > 20
  found = {KnobError(f"{{{name}}}").in_gin() for name in settings}
  assert found <= macros


# ---- Errors of objects that gin makes. ----

CONFIG = """
from __gin__ import dynamic_registration
from specdec_t5x.core import distributions
from specdec_t5x.decoding import decoder
from specdec_t5x.t5x_bridge import macros
macros.made.constructor = @decoder.Decoder
decoder.Decoder.target = @distributions.Sampling()
distributions.Sampling.top_k = -1
"""


def test_an_argument_that_gin_makes_has_the_macro():
  with commands.own_flags(lambda: None):
    gin.parse_config(CONFIG)
    with pytest.raises(ValueError, match="TOPK must be a whole number") as caught:
      gin.get_configurable(macros.made)()
  assert not isinstance(caught.value, KnobError)


def test_other_errors_are_unchanged():
  with pytest.raises(KeyError), macros.macro_names():
    raise KeyError
  with pytest.raises(KnobError, match="top_k must be"):
    Sampling(top_k=-1)
