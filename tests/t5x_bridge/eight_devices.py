"""Decodes on eight virtual devices and on a single device; prints results as JSON.

`test_devices` runs `python -m tests.t5x_bridge.eight_devices` in a separate process,
because JAX counts devices only once, and checks the results.
"""

import dataclasses
import json
import re

import flax
import jax
import jax.numpy as jnp
import numpy as np
import seqio
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from t5x import partitioning
from t5x.train_state import InferenceState

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.drafters.of_target import Quantized
from tests import table
from tests.t5x_bridge import tiny

ROWS = 16
ENCODED = 24
ROOM = 32
GAMMA = 3
MESHES = {"data 8": 1, "data 2, model 4": 4}
# Meshes by temperature. With slots every shard of the data refills rows separately.
RUNS = {0: (*MESHES,), 1: ("data 2, model 4, slots=4",)}
# The mesh can divide the target's eight heads, but not the draft's two heads.
TARGET = dataclasses.replace(tiny.config(1, 64, 264), num_heads=8)
DRAFT = tiny.config(1, 16, 264)


def _model(draft_sharding, temperature, slots=0):
  draft = dataclasses.replace(DRAFT, sharding=draft_sharding)
  model = tiny.speculative(
    seqio.ByteVocabulary(), Sampling(temperature), target=TARGET, draft=draft
  )
  model.decoder = dataclasses.replace(model.decoder, slots=slots)
  return model


def _rounded():
  """Returns a model that drafts with the rounded target, and the variables."""
  settings = {"target": TARGET, "draft": None, "drafter": Quantized(4, 8, gamma=GAMMA)}
  model = tiny.speculative(seqio.ByteVocabulary(), gamma=GAMMA, **settings)
  variables = _variables(model)
  params = variables["params"]
  wanted = model.decoder.derive(model.sampling).items()
  derived = {name: make(params["target"]) for name, make in wanted}
  return model, {**variables, "params": {**params, **derived}}


def _variables(model):
  """Returns parameters drawn by NumPy, so without compiling, and their axes."""
  shapes = {"encoder_input_tokens": (1, 8), "decoder_input_tokens": (1, 8)}

  def make(key):
    return model.get_initial_variables(key, shapes)

  found = jax.eval_shape(make, jax.random.PRNGKey(0))
  networks = flax.core.unfreeze(found["params"]).items()
  return {**found, "params": {name: table.drawn_like(x) for name, x in networks}}


def _batch():
  rng = np.random.default_rng(0)
  tokens = rng.integers(3, 264, (ROWS, ENCODED)).astype(np.int32)
  return {
    "encoder_input_tokens": tokens,
    "decoder_input_tokens": np.zeros((ROWS, ROOM), np.int32),
  }


def _decode(model, variables, partitioner):
  """Returns the results, and bytes of parameters and temporaries per device."""
  state = InferenceState.create(variables)
  axes = partitioner.get_mesh_axes(state)

  def place(x, spec):
    return jax.device_put(x, NamedSharding(partitioner.mesh, spec))

  params = jax.tree.map(place, state.params, axes.params)
  run = partitioner.partition(
    model.predict_batch_with_aux,
    in_axis_resources=(axes.params, P("data"), None),
    out_axis_resources=(None, None),
  )
  args = params, _batch(), jax.random.PRNGKey(3)
  program = partitioner.compile(run, *args)
  tokens, aux = program(*args)

  def held(x):
    return x.addressable_shards[0].data.nbytes

  return {
    "tokens": np.asarray(tokens).tolist(),
    "accepted": np.asarray(aux["accepted"]).tolist(),
    "params": sum(map(held, jax.tree.leaves(params))),
    "temporary": program.memory_analysis().temp_size_in_bytes,
    "vocabularies": _vocabularies(program.as_text()),
  }


def _vocabularies(text):
  """Returns the vocabulary sizes of a block's distributions or logits on a device."""
  shapes = re.findall(rf"f32\[\d+,{GAMMA + 1},(\d+)\]", text)
  return sorted({int(size) for size in shapes} & {264 // n for n in (1, 2, 4)})


def _on_one_device(model, variables):
  device = jax.devices()[0]
  args = jax.device_put((variables["params"], _batch(), jax.random.PRNGKey(3)), device)
  program = jax.jit(model.predict_batch_with_aux).lower(*args).compile()
  tokens, aux = program(*args)
  return {
    "tokens": np.asarray(tokens).tolist(),
    "accepted": np.asarray(aux["accepted"]).tolist(),
    "params": sum(x.nbytes for x in jax.tree.leaves(variables["params"])),
    "temporary": program.memory_analysis().temp_size_in_bytes,
  }


def main():
  out = {}
  for temperature, meshes in RUNS.items():
    alone = _model("full", temperature)
    variables = _variables(alone)
    out[f"one, T={temperature}"] = _on_one_device(alone, variables)
    for name in meshes:
      mesh, _, slots = name.partition(", slots=")
      model_axis = MESHES[mesh]
      sharding = "replicated" if slots else "no_heads"
      model = _model(sharding, temperature, int(slots or 0))
      partitioner = partitioning.PjitPartitioner(
        model_parallel_submesh=(1, 1, 1, model_axis)
      )
      # The axes depend on the model; the parameters are shared.
      named = {**variables, "params_axes": _variables(model)["params_axes"]}
      out[f"{name}, T={temperature}"] = _decode(model, named, partitioner)
  partitioner = partitioning.PjitPartitioner(model_parallel_submesh=(1, 1, 1, 4))
  out["one, rounded"] = _on_one_device(*_rounded())
  out["data 2, model 4, rounded"] = _decode(*_rounded(), partitioner)
  print(json.dumps(out))


if __name__ == "__main__":
  jnp.zeros(())  # Starts the backend, so a lack of devices is an early error.
  main()
