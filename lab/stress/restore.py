"""Measures the memory for restoring a large checkpoint, per process and per device.

  python -m lab.stress.restore --folder DIR

Makes a target with 1.0e9 random parameters and a small draft in the formats of T5X and
Orbax. Restores the pair in a fresh process for every format, number of (virtual CPU)
devices and dtype, and prints a JSON object per job (docs/results/reliability.md).
"""

import argparse
import collections
import dataclasses
import itertools
import json
import pathlib
import zlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import seqio
from flax import traverse_util
from flax.core import unfreeze
from t5x import partitioning

from benchmarks.sizes import t5_1_1
from lab.stress import memory
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.checkpoints.checks import flat_shapes
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.config import DTYPES, T5Config
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge.model import EncoderDecoderModel
from specdec_t5x.t5x_bridge.restore import CheckpointManager, abstract_state
from tests.contract import conftest
from tests.processes import on_devices
from tests.t5x_bridge import tiny


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Returns values of a parameter, seeded by the parameter's name."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  return rng.random(shape, np.float32) - np.float32(0.5)


def make_pair(
  folder: pathlib.Path, target: T5Config, draft: T5Config
) -> dict[str, dict[str, str]]:
  """Writes the pair in every format; returns format -> network -> checkpoint."""
  pairs = {layout: {} for layout in ("t5x", "orbax")}
  for layout, pair in pairs.items():
    for name, config in (("target", target), ("draft", draft)):
      network = Transformer(config)
      shapes = flat_shapes(abstract_state(network).params)
      flat = {path: jnp.asarray(values(path, shape)) for path, shape in shapes.items()}
      params = traverse_util.unflatten_dict(flat, sep="/")
      pair[name] = tiny.save(folder / layout / name, config, params, layout, step=1)
  return pairs


def restoring(model, pair: Mapping[str, str], partitioner, dtype=None):
  """Returns a pair's checkpoint manager, and the axes of the state on the mesh."""
  initializer = conftest.initializer(model, partitioner)
  shapes = initializer.global_train_state_shape
  manager = CheckpointManager(
    "",
    shapes,
    partitioner,
    dtype,
    paths=dict(pair),
    model=model,
    examples=1,
    lengths=tiny.LENGTHS,
  )
  return manager, initializer.train_state_axes


def measure(target: str, draft: str, devices: int = 1, dtype: str = "float32") -> dict:
  """Restores a pair and measures bytes; needs a fresh process.

  Returns the bytes of the parameters without copies, over the devices ('held'), on the
  fullest device, and of the growth of resident memory at the peak; the parameters that
  a device holds whole although the mesh divides them, and those with wrong values.
  """
  partitioner = partitioning.PjitPartitioner(num_partitions=devices)
  ours, theirs = (Checkpoint.open(path).settings() for path in (target, draft))
  # The number of a small draft's heads may not be divisible by the devices.
  small = Transformer(dataclasses.replace(theirs, sharding="no_heads"))
  decoder = Decoder(Transformer(ours), DraftModel(small))
  vocabulary = seqio.PassThroughVocabulary(size=ours.vocab_size)
  # Greedy decoding may derive arrays, which no checkpoint has.
  model = EncoderDecoderModel(decoder, vocabulary, vocabulary, Sampling(1.0))
  pair = {"target": target, "draft": draft}
  manager, axes = restoring(model, pair, partitioner, dtype)
  specs = traverse_util.flatten_dict(unfreeze(axes.params), sep="/")
  memory.forget_peak()
  before = memory.resident()
  restored = jax.block_until_ready(manager.restore(target))
  peak = memory.peak() - before
  flat = traverse_util.flatten_dict(unfreeze(restored.params), sep="/")
  held = collections.Counter()
  found = {"parameters": 0, "peak": peak, "undivided": [], "wrong": []}
  for name, array in flat.items():
    expected = values(name.split("/", 1)[1], array.shape).astype(array.dtype)
    shards = array.addressable_shards
    held.update({shard.device: shard.data.nbytes for shard in shards})
    found["parameters"] += array.nbytes
    is_divided = devices > 1 and any(specs[name] or ())
    if is_divided and any(shard.data.shape == array.shape for shard in shards):
      found["undivided"].append(name)
    if not all(np.array_equal(x.data, expected[x.index]) for x in shards):
      found["wrong"].append(name)
  return {**found, "held": held.total(), "largest_device": max(held.values())}


def print_measured(jobs: Sequence[dict]) -> None:
  """Measures jobs, the arguments of `measure`, in order; prints the results."""
  print(json.dumps([measure(**job) for job in jobs]))


def main() -> None:
  """Makes the pair, measures and prints."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--folder", type=pathlib.Path, help="a new folder with 10 GB")
  args = parser.parse_args()
  args.folder.mkdir(parents=True)
  target = dataclasses.replace(t5_1_1("xl"), num_encoder_layers=8, num_decoder_layers=8)
  pairs = make_pair(args.folder, target, t5_1_1("small")).values()
  for pair, devices, dtype in itertools.product(pairs, (1, 8), DTYPES):
    job = {**pair, "devices": devices, "dtype": dtype}
    program = f"from lab.stress import restore; restore.print_measured([{job}])"
    print(job, on_devices(devices, "-c", program), flush=True)


if __name__ == "__main__":
  main()
