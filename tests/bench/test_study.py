"""A target, drafts and inputs, as arguments of programs."""

from specdec_t5x import api
from specdec_t5x.bench.sizes import random_params
from specdec_t5x.bench.study import Job, Study, pad_inputs
from specdec_t5x.decoding.decoders import PlainDecoder
from specdec_t5x.network.transformer import Transformer
from tests.t5x_bridge import tiny


def test_a_program_stays_compiled_after_the_cache_is_cleared(monkeypatch):
  network = Transformer(tiny.TARGET)
  target = api.Model(network, random_params(network, 0))
  study = Study(Job("", "", {}, None, 4), target, (), pad_inputs([[3, 1], [4, 1]]), 1)
  run = study.program(study.decode(0.0))
  first = run(0)
  api.compiled.cache_clear()
  monkeypatch.setattr(PlainDecoder, "decode", None)  # A second trace would fail.
  assert (run(0).tokens == first.tokens).all()
  assert run(1).tokens.shape == first.tokens.shape
