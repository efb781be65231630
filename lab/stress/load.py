"""Decodes for an hour with changing settings; checks outputs, compilation and memory.

  python -m lab.stress.load --minutes 60 --texts FILE

One process restores the embedded pair and decodes requests: random lines of FILE, with
a random setting, by the function of `t5x.infer` (`utils.get_infer_fn`). Greedy outputs
must equal plain decoding. Sampled outputs must agree with their counts, and a repeated
key must give the same outputs. Results: docs/results/reliability.md.
"""

import argparse
import collections
import itertools
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import seqio
import tensorflow as tf
from t5x import partitioning, utils

from lab.stress import memory
from lab.stress.restore import restoring
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.data.vocabularies import sentencepiece_vocabulary
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.demo import embedded
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.functional import network_for
from specdec_t5x.t5x_bridge.model import EncoderDecoderModel

# A setting: gamma (0 decodes plainly), temperature, batch size.
PLAIN = (0, 0.0, 16)
SETTINGS = tuple(itertools.product((1, 3, 5, 7), (0.0, 1.0), (1, 4, 16)))
LENGTH = 80

_seen = collections.Counter()  # JAX's compilations and traces.
jax.monitoring.register_event_duration_secs_listener(
  lambda event, *_, **kwargs: _seen.update(
    [event] * event.endswith(("backend_compile_duration", "jaxpr_trace_duration"))
  )
)


def broken_promises(
  gamma: int, tokens: np.ndarray, aux: Mapping[str, np.ndarray], vocab_size: int
) -> list[str]:
  """Returns the broken invariants of outputs [n, T] with statistics [n]."""
  room = tokens.shape[1]
  ends = tokens == 1
  lengths = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, room)
  count, calls, drafted = aux["tokens"], aux["target_calls"], aux["drafted"]
  accepted, tried = aux["accepted"], aux["acceptance_positions"]
  mass, scores = aux["acceptance_mass"], aux["scores"]
  promises = {
    "tokens are in the vocabulary": (tokens >= 0) & (tokens < vocab_size),
    "nothing follows EOS": (tokens == 0) | (np.arange(room) < lengths[:, None]),
    "tokens are counted": count == lengths,
    "scores are log-probabilities": np.isfinite(scores) & (scores <= 1e-5),
    "each call emits": (calls >= 1) & (calls <= count),
    "a call emits accepted tokens and one more": count <= accepted + calls,
    "accepted tokens are emitted": accepted <= count,
    "accepted tokens are tried": accepted <= tried,
    "a call rejects at most one token": tried <= accepted + calls,
    "tried tokens are drafted": tried <= drafted,
    "drafts have at most gamma tokens": drafted <= gamma * calls,
    "mass is a probability": (mass >= 0) & (mass <= tried + 1e-3),
  }
  return [promise for promise, kept in promises.items() if not np.all(kept)]


class Load:
  """A restored pair, decoding random requests with checks.

  Args:
    pair: the checkpoints of 'target' and 'draft'.
    vocabulary: the vocabulary of inputs and outputs.
    inputs: encoder tokens [N, E].
    settings: the settings of requests.
    replays: probability that a setting's first request is repeated.
  """

  def __init__(
    self,
    pair: Mapping[str, str],
    vocabulary: seqio.Vocabulary,
    inputs: np.ndarray,
    settings: Sequence[tuple[int, float, int]] = SETTINGS,
    replays: float = 0.03,
  ):
    paths = pair["target"], pair["draft"]
    target, draft = (network_for(Checkpoint.open(x).settings()) for x in paths)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    self.inputs, self._settings, self._replays = inputs, settings, replays
    self._random = np.random.default_rng(0)
    self._vocab_size = target.config.vocab_size
    self._infer = {}
    for setting in (*settings, PLAIN):
      gamma, temperature, batch_size = setting
      decoder = Decoder(target)
      if gamma:
        decoder = Decoder(target, DraftModel(draft, gamma))
      sampling = Sampling(temperature)
      model = EncoderDecoderModel(decoder, vocabulary, vocabulary, sampling)
      if not self._infer:
        manager, axes = restoring(model, pair, partitioner)
        self._state = manager.restore(pair["target"])
      self._infer[setting] = utils.get_infer_fn(
        model.predict_batch_with_aux, batch_size, axes, partitioner
      )
    self.counts = collections.Counter()
    self.mistakes: list[str] = []
    self.resources: list[tuple[int, int, int]] = []  # Bytes, JAX arrays, open files.
    self.expected = self._decode(PLAIN, np.arange(len(inputs)), 0)[0]
    self._first = {}
    for setting in settings:
      rows = self._drawn(setting)
      self._first[setting] = rows, self._decode(setting, rows, 0)[0]

  def run(self, seconds: float, requests: int = 0) -> None:
    """Serves requests for a time, and at least `requests`; measures resources."""
    before = _seen.total()
    begin = time.monotonic()
    while time.monotonic() < begin + seconds or self.counts["requests"] < requests:
      if time.monotonic() >= begin + seconds / 60 * len(self.resources):
        files = len(os.listdir("/proc/self/fd"))
        self.resources.append((memory.resident(), len(jax.live_arrays()), files))
        print(dict(self.counts), len(self.mistakes), self.resources[-1], flush=True)
      self._serve(self._settings[self._random.integers(len(self._settings))])
      self.counts["compilations and traces"] = _seen.total() - before

  def is_flat(self) -> bool:
    """Returns whether memory grew little from the first to the last quarter."""
    quarters = np.array_split([resident for resident, *_ in self.resources], 4)
    first, last = np.median(quarters[0]), np.median(quarters[-1])
    return bool(last - first <= max(0.02 * first, 20 * memory.MIB))

  def _serve(self, setting) -> None:
    self.counts["requests"] += 1
    if self._random.random() < self._replays:
      rows, before = self._first[setting]
      self.counts["replays"] += 1
      if not np.array_equal(self._decode(setting, rows, 0)[0], before):
        self.mistakes.append(f"{setting}: a repeated request gave other tokens")
      return
    rows = self._drawn(setting)
    tokens, aux = self._decode(setting, rows, self.counts["requests"])
    broken = broken_promises(setting[0], tokens, aux, self._vocab_size)
    if setting[1]:
      self.counts["sampled"] += len(tokens)
    else:
      self.counts["greedy"] += len(tokens)
      wrong = rows[(tokens != self.expected[rows]).any(axis=1)]
      broken += [f"the output of input {row} is not the plain output" for row in wrong]
    self.mistakes += [f"{setting}: {text}" for text in broken]

  def _drawn(self, setting) -> np.ndarray:
    # Up to two batches; the last batch may be partial.
    count = self._random.integers(1, 2 * setting[2] + 1)
    return self._random.choice(len(self.inputs), count)

  def _decode(self, setting, rows, number):
    """Returns tokens [n, T] and statistics [n], by T5X's function for a chunk."""
    inputs = self.inputs[rows]
    blank = np.zeros((len(rows), LENGTH), np.int32)
    features = {"encoder_input_tokens": inputs, "decoder_input_tokens": blank}
    examples = tf.data.Dataset.from_tensor_slices(features).enumerate()
    key = jax.random.fold_in(jax.random.PRNGKey(0), number)
    numbered, aux = self._infer[setting](examples, self._state, rng=key)
    tokens = np.stack([tokens for _, tokens in numbered])
    return tokens, {name: np.asarray(column) for name, column in aux.items()}


def main() -> None:
  """Runs the load on the embedded pair and prints the results."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--minutes", type=float, default=60.0)
  parser.add_argument("--texts", type=pathlib.Path, required=True)
  args = parser.parse_args()
  vocabulary = sentencepiece_vocabulary(embedded.vocabulary(), extra_ids=0)
  lines = args.texts.read_text().splitlines()
  ids = [[*vocabulary.encode(line)[: LENGTH - 1], vocabulary.eos_id] for line in lines]
  inputs = np.array([row + [0] * (LENGTH - len(row)) for row in ids], np.int32)
  pair = {"target": embedded.target(), "draft": embedded.draft()}
  load = Load(pair, vocabulary, inputs)
  load.run(60 * args.minutes)
  print(json.dumps([load.counts, load.resources, load.mistakes], indent=1))
  print(f"Memory is flat: {load.is_flat()}")


if __name__ == "__main__":
  main()
