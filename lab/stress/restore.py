"""Measures the memory for restoring a large checkpoint, per process and per device.

  python -m lab.stress.restore --folder DIR --output restore.json

Makes a target with random parameters, 1.0e9 by default, and a small draft in the
formats of T5X and Orbax. Restores the pair in a fresh process for every format, number
of (virtual CPU) devices and dtype, with the checkpoint manager of the gin files. Then
removes the checkpoints. Memory is the growth of the process's resident memory
(`memory`). Results: docs/results/reliability.md. The times are no benchmark.
"""

import argparse
import collections
import dataclasses
import itertools
import json
import pathlib
import shutil
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import seqio
from flax import traverse_util
from flax.core import unfreeze
from t5x import partitioning

from lab.stress import memory
from specdec_t5x.bench.sizes import t5_1_1
from specdec_t5x.checkpoints.checkpoint import Checkpoint, flat_shapes
from specdec_t5x.checkpoints.parameters import T5XParameters
from specdec_t5x.checkpoints.readers import abstract_state
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge.model import EncoderDecoderModel
from specdec_t5x.t5x_bridge.pairing import CheckpointManager
from tests.contract import conftest
from tests.processes import on_devices

FORMATS = ("t5x", "orbax")
DTYPES = ("float32", "bfloat16")
STEP = 7


@dataclasses.dataclass(frozen=True)
class Job:
  """A pair to restore.

  Attributes:
    target: the target's checkpoint.
    draft: the draft's checkpoint.
    devices: size of the mesh's 'model' axis.
    dtype: dtype to restore to.
    draft_sharding: the draft's `T5Config.sharding`; the number of a small draft's heads
      may not be divisible by the devices.
  """

  target: str
  draft: str
  devices: int = 1
  dtype: str = "float32"
  draft_sharding: str = "no_heads"


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The memory of a restored pair, in bytes.

  Attributes:
    parameters: bytes of target and draft without copies, in the dtype of the job.
    held: bytes over the devices; a parameter counts once per device that has a copy.
    largest_device: bytes on the device with the most bytes.
    peak: peak of resident memory minus resident memory before.
    after: resident memory after restoring minus resident memory before.
    undivided: parameters that the mesh should divide but a device holds whole.
    wrong: parameters with different values than the written values.
  """

  parameters: int
  held: int
  largest_device: int
  peak: int
  after: int
  undivided: list[str]
  wrong: list[str]


def billion(layers: int = 8) -> T5Config:
  """Returns T5 1.1 XL with few layers: 1.04e9 parameters with 8 layers per stack."""
  return dataclasses.replace(
    t5_1_1("xl"), num_encoder_layers=layers, num_decoder_layers=layers
  )


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Returns values of a parameter, seeded by the parameter's name."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  return rng.random(shape, np.float32) - np.float32(0.5)


def write(folder: pathlib.Path, config: T5Config, layout: str) -> str:
  """Writes a checkpoint of a network in a format and returns the path."""
  network = Transformer(config)
  shapes = flat_shapes(abstract_state(network).params)
  flat = {name: jnp.asarray(values(name, shape)) for name, shape in shapes.items()}
  writer = T5XParameters(network, str(folder), layout)
  writer.save(STEP, traverse_util.unflatten_dict(flat, sep="/"))
  return str(folder / f"checkpoint_{STEP}")


def measure(job: Job) -> Outcome:
  """Restores a pair and measures memory; needs a fresh process."""
  partitioner = partitioning.PjitPartitioner(num_partitions=job.devices)
  shapes, axes = _state_of(job, partitioner)
  manager = CheckpointManager(
    *("", shapes, partitioner, job.dtype),
    paths={"target": job.target, "draft": job.draft},
  )
  memory.forget_peak()
  before = memory.resident()
  restored = jax.block_until_ready(manager.restore(job.target))
  peak = memory.peak() - before
  after = memory.resident() - before
  flat = traverse_util.flatten_dict(unfreeze(restored.params), sep="/")
  specs = traverse_util.flatten_dict(unfreeze(axes.params), sep="/")
  held = collections.Counter()
  for array in flat.values():
    for shard in array.addressable_shards:
      held[shard.device] += shard.data.nbytes

  def is_divided(name):
    return job.devices > 1 and any(specs[name] or ())

  return Outcome(
    parameters=sum(array.nbytes for array in flat.values()),
    held=held.total(),
    largest_device=max(held.values()),
    peak=peak,
    after=after,
    undivided=[
      name
      for name, array in flat.items()
      if is_divided(name)
      and any(shard.data.shape == array.shape for shard in array.addressable_shards)
    ],
    wrong=[name for name, array in flat.items() if not _is_right(name, array)],
  )


def _state_of(job, partitioner):
  """Returns the shapes of the pair's state, and the axes on the mesh."""
  target, draft = (Checkpoint.open(path).settings() for path in (job.target, job.draft))
  draft = dataclasses.replace(draft, sharding=job.draft_sharding)
  vocabulary = seqio.PassThroughVocabulary(size=target.vocab_size)
  decoder = SpeculativeDecoder(Transformer(target), DraftModel(Transformer(draft)))
  model = EncoderDecoderModel(decoder, vocabulary, vocabulary, GREEDY)
  initializer = conftest.initializer(model, partitioner)
  return initializer.global_train_state_shape, initializer.train_state_axes


def _is_right(name, array) -> bool:
  expected = values(name.split("/", 1)[1], array.shape).astype(array.dtype)
  return all(
    np.array_equal(np.asarray(shard.data), expected[shard.index])
    for shard in array.addressable_shards
  )


def measure_apart(*jobs: Job) -> Outcome:
  """Runs the jobs in order in a separate process and returns the last outcome."""
  arguments = json.dumps([dataclasses.asdict(job) for job in jobs])
  devices = max(job.devices for job in jobs)
  return Outcome(**on_devices(devices, "-m", "lab.stress.restore", "--jobs", arguments))


def make_pair(
  folder: pathlib.Path, target: T5Config, draft: T5Config
) -> dict[str, tuple[str, str]]:
  """Writes the pair in every format and returns (target, draft) paths by format."""
  networks = {"target": target, "draft": draft}
  return {
    layout: tuple(
      write(folder / layout / name, config, layout) for name, config in networks.items()
    )
    for layout in FORMATS
  }


def table_row(layout: str, job: Job, outcome: Outcome) -> str:
  """Returns a row of the table in docs/results/reliability.md."""

  def mib(count):
    return f"{count / memory.MIB:,.0f}"

  sizes = (outcome.parameters, outcome.held, outcome.largest_device, outcome.peak)
  cells = (layout, job.devices, job.dtype, *map(mib, sizes))
  ratio = f"{outcome.peak / outcome.held:.2f}"
  return "| " + " | ".join(map(str, (*cells, ratio))) + " |"


def main() -> None:
  """Parses the command line; makes the pair, measures, prints and writes."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--folder", type=pathlib.Path, help="an empty folder with 10 GB")
  parser.add_argument("--layers", type=int, default=8, help="8 give 1.0e9 parameters")
  parser.add_argument("--devices", type=int, nargs="+", default=[1, 8])
  parser.add_argument("--output", type=pathlib.Path, help="a JSON file")
  parser.add_argument("--keep", action="store_true", help="keep the checkpoints")
  parser.add_argument("--jobs", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.jobs:
    *_, last = [measure(Job(**job)) for job in json.loads(args.jobs)]
    print(json.dumps(dataclasses.asdict(last)))
    return
  if args.folder is None or (args.folder.is_dir() and any(args.folder.iterdir())):
    raise ValueError(
      f"--folder must be empty or new, got {args.folder}. Choose another folder."
    )
  pairs = make_pair(args.folder, billion(args.layers), t5_1_1("small"))
  results = []
  for layout, devices, dtype in itertools.product(FORMATS, args.devices, DTYPES):
    job = Job(*pairs[layout], devices, dtype)
    outcome = measure_apart(job)
    print(table_row(layout, job, outcome), outcome.undivided, outcome.wrong, flush=True)
    results.append({**dataclasses.asdict(job), **dataclasses.asdict(outcome)})
  if args.output:
    args.output.write_text(json.dumps(results, indent=1))
  if not args.keep:
    shutil.rmtree(args.folder)


if __name__ == "__main__":
  main()
