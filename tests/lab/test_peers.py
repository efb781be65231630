"""Installed peers give the same outputs as our greedy decoding."""

import dataclasses
import importlib

import jax
import numpy as np
import pytest

from benchmarks.measure import PLAIN, Run, Way, measure, tokens
from benchmarks.sizes import random_params
from benchmarks.study import Job, Study, pad_inputs
from lab.peers import (
  CTRANSLATE2,
  HUGGING_FACE,
  UPSTREAM,
  importable,
  programs,
)
from specdec_t5x import api
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.transformer import Transformer

SHAPE = {
  "vocab_size": 40,
  "emb_dim": 16,
  "num_heads": 2,
  "num_encoder_layers": 1,
  # More layers than the encoder: by default generate() makes too few caches.
  "num_decoder_layers": 3,
  "head_dim": 8,
  "mlp_dim": 24,
}
KINDS = {
  "t5_1_1": T5Config(**SHAPE, mlp_activations=("gelu", "linear")),
  "t5_1_0": T5Config(**SHAPE, mlp_activations=("relu",), logits_via_embedding=True),
}
LENGTH = 24
GAMMA = 3


@pytest.fixture(params=KINDS)
def study(request):
  """Returns a target and inputs; the first output ends as late as possible."""
  network = Transformer(KINDS[request.param])
  target = api.Model(network, random_params(network, 2))
  # Beyond a distance of 128, every distance shares a bucket.
  inputs = pad_inputs(np.random.default_rng(0).integers(2, 40, (3, 150)).tolist())
  endless = Study(Job("task", "t", {}, None, LENGTH), target, (), inputs, -1)
  decoded = endless.grouped(endless.decode(0.0), 1)(endless.groups(1)[0])
  output = decoded[0].tokens[0].tolist()
  return dataclasses.replace(endless, eos_id=max({*output}, key=output.index))


def test_installed_peers_give_our_plain_outputs(study):
  rng = np.random.default_rng(1)
  params = study.target.params

  def noisy(x):
    return x * (1 + 0.1 * rng.normal(size=x.shape).astype(np.float32))

  draft = api.Model(study.target.network, jax.tree.map(noisy, params))
  theirs = programs.programs(study, draft, GAMMA)
  expected = {programs.UPSTREAM} if importable(UPSTREAM) else set()
  if importable(HUGGING_FACE):
    names = "PLAIN", "GAMMA", "DEFAULT", "NO_MASK", "LOOKUP"
    expected |= {getattr(programs, f"HF_{name}") for name in names}
  if importable(CTRANSLATE2):
    expected |= {*programs.CT2.values()}
  assert theirs.keys() == expected <= {*programs.PROGRAMS}
  # The int8 network is a slightly different one.
  theirs.pop(programs.CT2["int8"], None)
  plain = study.grouped(study.decode(0.0), 1)
  assert 2 < (tokens(plain(study.groups(1)[0])) > 0).sum() < LENGTH
  ways = {n: Way(lambda group, run=run: run(group.first)) for n, run in theirs.items()}
  rows = list(measure(Run(lambda *_: {PLAIN: Way(plain), **ways}, study.groups)))
  assert {row.key: row.values["identical"] for row in rows} == dict.fromkeys(
    [PLAIN, *theirs], "3/3"
  )


@pytest.mark.skipif(not importable(HUGGING_FACE), reason="needs the extra `peers`")
def test_an_assistant_drafts_gamma_tokens(study):
  export, hugging_face = (
    importlib.import_module(f"lab.peers.{name}") for name in ("export", "hugging_face")
  )
  target = export.to_torch(study.target)
  assistant = export.to_torch(study.target)
  calls = []
  drafted = []
  target.register_forward_hook(lambda *_: calls.append(1))
  assistant.register_forward_hook(lambda *_: drafted.append(1))
  program = hugging_face.assisted(target, assistant, LENGTH, 41, GAMMA)
  inputs = np.maximum(study.inputs[0], 0)  # Peers pad with 0.
  assert program(inputs).shape == (1, LENGTH)
  # The draft is the target, so a call accepts the whole draft and adds a token.
  assert len(calls) == LENGTH / (GAMMA + 1)
  assert len(drafted) == GAMMA * len(calls)
  low = dataclasses.replace(study.target.network.config, dtype="bfloat16")
  with pytest.raises(ValueError, match="float32, got a network in 'bfloat16'"):
    export.to_torch(api.Model(Transformer(low), {}))
