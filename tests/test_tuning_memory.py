"""Measuring what drafts cost needs little memory beside the parameters'."""

import dataclasses
import json

import jax
import jax.numpy as jnp

from lab.stress import memory
from specdec_t5x import tuning
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.functional import initial_variables
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.policies import get_policy
from tests import processes

# 300 MB of weights, most of them the vocabulary's: more than what compiling takes.
WIDE = T5Config(
  vocab_size=32_000,
  emb_dim=1024,
  num_heads=8,
  head_dim=64,
  mlp_dim=1024,
  num_encoder_layers=1,
  num_decoder_layers=1,
)
PEAK = (
  "import sys; from tests import test_tuning_memory as t; t.print_peak(sys.argv[1])"
)


def print_peak(policy):
  """Prints the most memory of a decode, and what of it are weights, in bytes."""
  target = Transformer(WIDE)
  draft = Transformer(dataclasses.replace(WIDE, emb_dim=16, mlp_dim=16))
  decoder = SpeculativeDecoder(target, DraftModel(draft, 3), policy=get_policy(policy))

  def filled(network):
    shapes = jax.eval_shape(
      lambda: initial_variables(network, jax.random.key(0))["params"]
    )
    return jax.tree.map(lambda x: jnp.full(x.shape, 0.01, x.dtype), shapes)

  params = {name: filled(network) for name, network in decoder.networks.items()}
  of_run = GREEDY, 32
  decoder = tuning.tuned(tuning.Job(decoder, 2, 16, *of_run), params)
  given = params, jnp.ones((2, 16), jnp.int32), row_keys(jax.random.key(0), 2)
  run = jax.jit(lambda *given: decoder.decode(*given, *of_run, 1).tokens)
  run(*given).block_until_ready()
  weights = sum(x.nbytes for x in jax.tree.leaves(params))
  print(json.dumps([memory.peak(), weights, len(tuning.asked_for())]))


def test_measuring_takes_no_second_set_of_parameters(tmp_path, monkeypatch):
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path))
  (auto, weights, measured), (fixed, *_) = (
    processes.on_devices(1, "-c", PEAK, policy) for policy in ("auto", "fixed")
  )
  assert measured
  assert weights > 300e6
  # Two more programs were compiled.
  assert auto <= fixed + 0.6 * weights
