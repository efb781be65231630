"""Decodes for an hour with changing settings; checks outputs, compilation and memory.

  python -m lab.stress.load --minutes 60 --demo runs/demo/ende --output load.json

A single process restores a pair and then serves requests. A request runs the function
of `t5x.infer` for a chunk of examples (`utils.get_infer_fn`), compiled for every gamma,
temperature and batch size. A request decodes a random number of random inputs of the
test set with a random setting. Greedy outputs must equal plain decoding. Sampled
outputs must agree with their counts, and a repeated key must give the same outputs.
Results: docs/results/reliability.md. The times are no benchmark.
"""

import argparse
import collections
import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import seqio
import tensorflow as tf
from t5x import checkpoints, partitioning, utils

from lab.stress import memory
from lab.stress.promises import Setting, broken_promises
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.data import tasks, vocabularies
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.demo import embedded
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.t5x_bridge.model import EncoderDecoderModel
from specdec_t5x.t5x_bridge.pairing import CheckpointManager
from tests.contract import conftest

# Features of the examples by name, [examples, length].
Features = Mapping[str, np.ndarray]

_COMPILED = "/jax/core/compile/backend_compile_duration"
_TRACED = "/jax/core/compile/jaxpr_trace_duration"
_PLAIN_BATCH = 16
_LENGTHS = {"inputs": 80, "targets": 80}
# Memory is flat if the growth is at most 2% or 20 MiB, the larger of the two.
_SLACK = 0.02
_SLACK_BYTES = 20 * memory.MIB


SETTINGS = tuple(
  Setting(*values) for values in itertools.product((1, 3, 5, 7), (0.0, 1.0), (1, 4, 16))
)


@dataclasses.dataclass(frozen=True)
class Request:
  """Examples to decode, the setting, and the number that seeds the random key."""

  setting: Setting
  examples: tuple[int, ...]
  number: int


@dataclasses.dataclass(frozen=True)
class Sample:
  """The resources of the process after some seconds."""

  seconds: float
  resident: int
  arrays: int
  files: int


@dataclasses.dataclass
class Report:
  """The results of the load.

  Attributes:
    requests: number of requests after the warm-up.
    greedy: number of outputs compared with plain decoding.
    sampled: number of sampled outputs with checked counts.
    replays: number of repeated and compared requests.
    compilations: XLA programs compiled after the warm-up.
    traces: functions traced after the warm-up.
    mistakes: descriptions of mistakes.
    samples: resources over time, the first sample right after the warm-up.
  """

  requests: int = 0
  greedy: int = 0
  sampled: int = 0
  replays: int = 0
  compilations: int = 0
  traces: int = 0
  mistakes: list[str] = dataclasses.field(default_factory=list)
  samples: list[Sample] = dataclasses.field(default_factory=list)

  def quarters(self) -> tuple[float, ...]:
    """Returns the median of resident memory by quarter of the samples."""
    held = np.array_split([sample.resident for sample in self.samples], 4)
    return tuple(statistics.median(quarter.tolist()) for quarter in held)

  @property
  def is_flat(self) -> bool:
    """Whether memory grew by no more than the slack between first and last quarter."""
    first, *_, last = self.quarters()
    return last - first <= max(_SLACK * first, _SLACK_BYTES)


class Service:
  """A restored pair with `t5x.infer`'s function for each setting."""

  def __init__(
    self,
    target: str,
    draft: str,
    vocabulary: seqio.Vocabulary,
    features: Features,
    settings: Sequence[Setting] = SETTINGS,
  ):
    """Restores the pair without compiling.

    Args:
      target: the target's checkpoint.
      draft: the draft's checkpoint.
      vocabulary: the vocabulary of inputs and outputs.
      features: the test set, converted by `EncDecFeatureConverter`.
      settings: the possible settings of requests.
    """
    self.features = features
    self.settings = tuple(settings)
    networks = [Checkpoint.open(path).network() for path in (target, draft)]
    network, draft_network = networks

    def build(decoder, temperature=0.0):
      return EncoderDecoderModel(decoder, vocabulary, vocabulary, Sampling(temperature))

    models = {
      setting: build(
        SpeculativeDecoder(network, DraftModel(draft_network, setting.gamma)),
        setting.temperature,
      )
      for setting in self.settings
    }
    self.vocab_size = network.config.vocab_size
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    initializer = conftest.initializer(models[self.settings[0]], partitioner)
    manager = CheckpointManager(
      *("", initializer.global_train_state_shape, partitioner),
      paths={"target": target, "draft": draft},
    )
    self.state = manager.restore(target)
    axes = initializer.train_state_axes
    self._infer = {
      setting: utils.get_infer_fn(
        model.predict_batch_with_aux, setting.batch_size, axes, partitioner
      )
      for setting, model in models.items()
    }
    plain = build(PlainDecoder(network))
    self._plain = utils.get_infer_fn(
      plain.predict_batch_with_aux,
      _PLAIN_BATCH,
      axes,
      partitioner,
    )

  @property
  def size(self) -> int:
    """The number of examples."""
    return len(next(iter(self.features.values())))

  def plain_outputs(self) -> np.ndarray:
    """Returns the greedy outputs of plain decoding [examples, T]."""
    return _run(self._plain, self.state, self.features, 0)[0]

  def serve(self, request: Request) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the tokens [n, T] and the statistics [n] of a request's examples."""
    rows = list(request.examples)
    features = {name: column[rows] for name, column in self.features.items()}
    return _run(self._infer[request.setting], self.state, features, request.number)


class Load:
  """A load of random requests with checked outputs."""

  def __init__(self, service: Service, seed: int = 0, replays: float = 0.03):
    """Seeds the requests.

    Args:
      service: the service of the requests.
      seed: seed of the requests.
      replays: probability that a setting's first request is repeated.
    """
    self._service = service
    self._replays = replays
    self._random = np.random.default_rng(seed)
    self._number = 0
    self._expected = None
    self._first: dict[Setting, tuple[Request, np.ndarray]] = {}

  def warm_up(self) -> None:
    """Compiles every setting, and decodes the test set with the target alone."""
    self._expected = self._service.plain_outputs()
    for setting in self._service.settings:
      request = self._draw(setting)
      self._first[setting] = request, self._service.serve(request)[0]
      self._service.serve(self._draw(setting))

  def run(self, seconds: float = 0.0, requests: int = 0, every: float = 60.0) -> Report:
    """Serves requests until both minima are reached; call `warm_up` first.

    Args:
      seconds: minimum time.
      requests: minimum number of requests.
      every: seconds between two printed samples of memory.
    """
    report = Report()
    before = _compiled()
    begin = time.monotonic()
    report.samples.append(_sample(0.0))
    while (passed := time.monotonic() - begin) < seconds or (
      report.requests < requests
    ):
      if passed - report.samples[-1].seconds >= every:
        report.samples.append(_sample(passed))
        _say(report)
      self._serve_one(report)
      report.compilations, report.traces = (_compiled() - before).tolist()
    report.samples.append(_sample(time.monotonic() - begin))
    return report

  def _serve_one(self, report: Report) -> None:
    setting = self._service.settings[self._random.integers(len(self._service.settings))]
    report.requests += 1
    if self._random.random() < self._replays:
      request, before = self._first[setting]
      report.replays += 1
      if not np.array_equal(self._service.serve(request)[0], before):
        report.mistakes.append(f"{request} gave different tokens when repeated")
      return
    request = self._draw(setting)
    tokens, aux = self._service.serve(request)
    report.mistakes += broken_promises(setting, tokens, aux, self._service.vocab_size)
    if setting.temperature:
      report.sampled += len(tokens)
      return
    report.greedy += len(tokens)
    wrong = (tokens != self._expected[list(request.examples)]).any(axis=1)
    report.mistakes += [
      f"{setting}, example {request.examples[row]}: {tokens[row].tolist()} is not the "
      "plain output"
      for row in np.flatnonzero(wrong)
    ]

  def _draw(self, setting: Setting) -> Request:
    # Up to two batches; the last batch may be partial.
    count = self._random.integers(1, 2 * setting.batch_size + 1)
    examples = self._random.choice(self._service.size, count)
    self._number += 1
    return Request(setting, tuple(examples.tolist()), self._number)


_seen = collections.Counter()  # JAX's events by name.
jax.monitoring.register_event_duration_secs_listener(
  lambda event, *_, **kwargs: _seen.update([event])
)


def _compiled() -> np.ndarray:
  """Returns the number of compilations and traces so far."""
  return np.array([_seen[_COMPILED], _seen[_TRACED]])


def _run(infer, state, features: Features, number: int):
  """Runs T5X's function like `t5x.infer` on a chunk; keeps the order of examples."""
  examples = tf.data.Dataset.from_tensor_slices(dict(features))
  key = jax.random.fold_in(jax.random.PRNGKey(0), number)
  numbered, aux = infer(examples.enumerate(), state, rng=key)
  tokens = np.stack([tokens for _, tokens in numbered])
  return tokens, {name: np.asarray(column) for name, column in aux.items()}


def _sample(seconds: float) -> Sample:
  files = len(os.listdir("/proc/self/fd"))
  return Sample(seconds, memory.resident(), len(jax.live_arrays()), files)


def _say(report: Report) -> None:
  last = report.samples[-1]
  print(
    f"{last.seconds / 60:6.1f} min: {report.requests} requests ({report.replays} "
    f"replays), {report.greedy} greedy and {report.sampled} sampled outputs, "
    f"{len(report.mistakes)} mistakes, {report.compilations} compilations, "
    f"{report.traces} traces, "
    f"{last.resident / memory.MIB:.1f} MiB, {last.arrays} arrays, {last.files} files",
    flush=True,
  )


def demo_service(folder: pathlib.Path) -> Service:
  """Returns the service of the pair that `make demo-train` wrote to `folder`.

  Raises:
    ValueError: if the folder lacks a part of the pair.
  """
  from t5x.inference_data import ChunkedExamples  # Only t5x_runtime has the module.

  vocabulary = vocabularies.sentencepiece_vocabulary(
    str(folder / "vocabulary.model"), extra_ids=0
  )
  name = tasks.translation_from_files(
    "demo_synthetic_ende", embedded.files(), vocabulary=vocabulary
  )
  cfg = utils.DatasetConfig(name, _LENGTHS, "test", 1, shuffle=False, seed=0)
  converter = seqio.EncDecFeatureConverter(pack=False)
  ((_, features),) = ChunkedExamples(cfg, converter, seqio.ShardInfo(0, 1)).chunks(
    seqio.get_mixture_or_task(name), len(embedded.examples()[0])
  )
  rows = list(features.as_numpy_iterator())
  columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
  return Service(
    _latest(folder / "target"), _latest(folder / "draft_small"), vocabulary, columns
  )


def _latest(folder: pathlib.Path) -> str:
  return str(checkpoints.find_checkpoint(str(folder)).parent)


def main() -> None:
  """Parses the command line, runs the load, prints and writes the report."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--minutes", type=float, default=60.0)
  parser.add_argument("--demo", type=pathlib.Path, default="runs/demo/ende")
  parser.add_argument("--output", type=pathlib.Path, required=True, help="a JSON file")
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args()
  service = demo_service(args.demo)
  load = Load(service, args.seed)
  print(f"{service.size} examples, {len(service.settings)} settings", flush=True)
  load.warm_up()
  print(f"warm: {memory.resident() / memory.MIB:.1f} MiB", flush=True)
  report = load.run(60 * args.minutes, every=args.minutes)
  _say(report)
  quarters = ", ".join(f"{held / memory.MIB:.1f}" for held in report.quarters())
  print(f"MiB, median of each quarter: {quarters}: {report.is_flat=}")
  print("\n".join(report.mistakes[:20]))
  result = {**dataclasses.asdict(report), "is_flat": report.is_flat}
  args.output.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
  main()
