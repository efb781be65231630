"""Errors of a run name settings by the macros of gin files."""

import gin
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import KnobError
from specdec_t5x.t5x_bridge import macros
from tests import commands

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
