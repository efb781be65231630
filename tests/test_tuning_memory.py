"""Measuring the costs of drafts needs little memory beside the parameters."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from specdec_t5x import tuning
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.functional import initial_variables
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.ways import POLICIES
from tests import memory, processes
from tests.t5x_bridge import tiny

# 200 MB of weights, mostly the vocabulary's: more than compilation takes.
WIDE = dataclasses.replace(
  tiny.config(1, 1024, 20_000), num_heads=8, head_dim=64, mlp_dim=1024
)
SETTINGS = GREEDY, 8


def print_peaks():
  """Prints the peak memory beside the weights, and the weights' bytes.

  A decode without measured times runs first, so JAX's start is not in the peak.
  """
  target = Transformer(WIDE)
  draft = Transformer(dataclasses.replace(WIDE, emb_dim=16, mlp_dim=16))

  def filled(network):
    shapes = jax.eval_shape(
      lambda: initial_variables(network, jax.random.key(0))["params"]
    )
    return jax.tree.map(lambda x: jnp.full(x.shape, 0.01, x.dtype), shapes)

  params = {"target": filled(target), "draft": filled(draft)}
  inputs = jnp.ones((2, 16), jnp.int32)
  keys = row_keys(jax.random.key(0), 2)
  for policy in ("fixed", "auto"):
    before = memory.resident()
    memory.forget_peak()
    decoder = Decoder(target, DraftModel(draft, 1), policy=POLICIES[policy])
    tuned = tuning.tuned(tuning.Job(decoder, 2, 16, *SETTINGS), params)
    run = jax.jit(lambda *x, decoder=tuned: decoder.decode(*x, *SETTINGS, 1).tokens)
    run(params, inputs, keys).block_until_ready()
  weights = sum(x.nbytes for x in jax.tree.leaves(params))
  print(json.dumps([memory.peak() - before, weights, bool(tuned.policy.seconds)]))


@pytest.mark.slow
def test_measuring_takes_no_second_set_of_parameters():
  program = "from tests import test_tuning_memory; test_tuning_memory.print_peaks()"
  held, weights, measured = processes.on_devices(1, "-c", program)
  assert measured
  assert weights > 200e6
  # Three more programs were compiled.
  assert held <= 0.6 * weights
