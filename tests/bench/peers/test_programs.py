"""Programs of peers, of whichever are installed, beside our own greedy decoding."""

import numpy as np

from specdec_t5x import api
from specdec_t5x.bench.measured import PLAIN, Setting, compare
from specdec_t5x.bench.pairs import Job, Study, pad_inputs
from specdec_t5x.bench.peers import (
  CTRANSLATE2,
  HUGGING_FACE,
  UPSTREAM,
  importable,
  programs,
)
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.sizes import random_params
from specdec_t5x.network.transformer import Transformer

CONFIG = T5Config(
  vocab_size=40,
  emb_dim=16,
  num_heads=2,
  num_encoder_layers=1,
  num_decoder_layers=2,
  head_dim=8,
  mlp_dim=24,
  mlp_activations=("gelu", "linear"),
)
LENGTH, EOS = 12, 1


def test_those_that_are_here_give_our_plain_outputs():
  network = Transformer(CONFIG)
  target, draft = (api.Model(network, random_params(network, seed)) for seed in (1, 2))
  inputs = pad_inputs(np.random.default_rng(0).integers(2, 40, (3, 8)).tolist())
  study = Study(Job("task", "t", {}, None, LENGTH), target, (), inputs, EOS)
  theirs = programs.programs(study, draft, gamma=3)
  expected = {programs.UPSTREAM} if importable(UPSTREAM) else set()
  if importable(HUGGING_FACE):
    names = "PLAIN", "GAMMA", "DEFAULT", "NO_MASK", "LOOKUP"
    expected |= {getattr(programs, f"HF_{name}") for name in names}
  if importable(CTRANSLATE2):
    expected |= {*programs.CT2.values()}
  assert theirs.keys() == expected <= {*programs.PROGRAMS}
  runs = {PLAIN: study.program(study.decode(0.0)), **theirs}
  cells = compare(runs, range(3), Setting(3, 0.0))
  cells.pop(programs.CT2["int8"], None)  # Another network, nearly.
  assert {cell.equal for cell in cells.values()} == {"3/3"}
