"""A target with drafts and inputs, and decodes as programs to be timed."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from benchmarks.environment import machine
from benchmarks.iteration import NEVER, part_programs
from benchmarks.timed import Loop, Program
from specdec_t5x import api, tuning
from specdec_t5x.api import Model
from specdec_t5x.build import together
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.network.ngram import NgramTable

BATCH = 16  # The batch size if nothing is timed.
COPY = "copy"
# Drafters without a model, and the settings that identify their cells.
UNTRAINED = {COPY: f"match {Copy().match}", "quantized": "8 bits"}
# The most timed repetitions of an iteration and of a plain token; the fewest are 0,
# which gives the time of the work once per call.
_ITERATIONS, _TOKENS = 10, 32
_PART = (2, 10)  # The two counts of repetitions of a part.
# The number of elements of each parameter in the fingerprint, about.
_SAMPLE = 1024

# The tokens of each input, EOS included, and the EOS token.
Tokens = tuple[list[list[int]], int]


@dataclasses.dataclass(frozen=True)
class Decode:
  """A way to decode, complete except for the inputs.

  Attributes:
    decoder: the decoder, with the networks.
    params: the networks' parameters by name, on the device.
    sampling: the adjustment of all distributions.
    max_length: the most tokens of an output.
    eos_id: the EOS token.
  """

  decoder: Decoder
  params: Any
  sampling: Sampling
  max_length: int
  eos_id: int = NEVER

  @property
  def settings(self) -> tuple[Sampling, int, int]:
    """The sampling, the most tokens of an output and the EOS token."""
    return self.sampling, self.max_length, self.eos_id

  def __call__(self, inputs: Int[Array, "B E"], keys: Key[Array, "B"]) -> Decoded:
    """Decodes a batch."""
    return api.compiled(self.decoder, *self.settings)(self.params, inputs, keys)

  def start(self, params: Any, inputs: Int[Array, "B E"], keys: Key[Array, "R"]):
    """Returns how to decode and the first state, from the arrays of `given`."""
    ctx = self.decoder.context(params, keys.shape[0], *self.settings)
    return ctx, self.decoder.encode(ctx, inputs, keys)

  def given(self, inputs: Int[Array, "B E"]) -> tuple[Any, ...]:
    """Returns the arguments of a program: parameters, inputs and keys."""
    return self.params, inputs, row_keys(jax.random.key(0), inputs.shape[0])

  def loop(self, inputs: Int[Array, "B E"], name: str = "iteration") -> Loop:
    """Returns a loop of a part, to be timed.

    Args:
      inputs: the loop's inputs. No token ends an output.
      name: a name of `iteration.part_programs`; plain decoding has only iterations.
    """
    start = dataclasses.replace(self, eos_id=NEVER).start
    counts = _PART
    if self.decoder.drafter is None:
      counts = 0, min(_TOKENS, self.max_length)
    elif name == "iteration":
      fit = self.max_length // (self.decoder.drafter.tree.depth + 1)
      counts = 0, max(1, min(_ITERATIONS, fit))
    return part_programs(start)[name], self.given(inputs), counts


def batches(
  decode: Decode, ids: Sequence[Sequence[int]], batch: int = BATCH, seed: int = 0
) -> Iterator[tuple[Int[Array, "B E"], Decoded, int]]:
  """Yields each batch of inputs, the decode, and the number of rows that count."""
  for first, texts, count in api.padded_batches(ids, batch):
    yield texts, decode(texts, row_keys(jax.random.key(seed), batch, first)), count


def decoding_groups(
  decode: Decode, at_once: int
) -> Callable[[tuple[int, Int[Array, "B E"]]], list[Decoded]]:
  """Returns a program that decodes a group of inputs in batches of `at_once`.

  Each batch starts with the policy's state after the previous batch.
  """

  def decode_batch(decoder, params, inputs, keys, state):
    return decoder.decode(params, inputs, keys, *decode.settings, **state)

  run = jax.jit(decode_batch, static_argnums=0)

  def decode_group(group):
    first, inputs = group
    state = {}
    outputs = []
    job = tuning.Job(
      decode.decoder, at_once, inputs.shape[1], decode.sampling, decode.max_length
    )
    tuned = tuning.tuned(job, decode.params)
    if tuned.drafter is not None:
      state = {"policy_state": tuned.policy.start(at_once)}
    for i in range(0, len(inputs), at_once):
      keys = row_keys(jax.random.key(0), at_once, first + i)
      outputs.append(run(tuned, decode.params, inputs[i : i + at_once], keys, state))
      state = {"policy_state": outputs[-1].policy_state} if state else {}
    return outputs

  return decode_group


@dataclasses.dataclass(frozen=True)
class Draft:
  """A way to draft.

  Attributes:
    name: the name in tables.
    source: the model's folder, or a name in `UNTRAINED`.
    model: the network or table; None without learned parameters.
    drafter: a name in `build.DRAFTERS`.
    fingerprint: the fingerprint of the parameters.
  """

  name: str
  source: str
  model: Model | None
  drafter: str
  fingerprint: str


@dataclasses.dataclass(frozen=True)
class Job:
  """The paths and settings of a study, before loading.

  Attributes:
    task: the task's name in tables.
    target: the target's folder.
    drafts: folders, or names in `UNTRAINED`, by the draft's name.
    read: a function that reads the inputs.
    max_length: the most tokens of an output.
    num_tokens: the number of output tokens per cell.
    dtype: the dtype of parameters and activations.
    runs: the number of timed runs of each part.
    vocabulary: a SentencePiece model, or a Hugging Face folder.
  """

  task: str
  target: str
  drafts: Mapping[str, str]
  read: Callable[[], Tokens]
  max_length: int
  num_tokens: int = 2000
  dtype: str = "float32"
  runs: int = 15
  vocabulary: str = ""

  def load(self) -> "Study":
    """Loads the inputs and models.

    Raises:
      ValueError: if a file can't be read, or if there are no inputs.
    """
    ids, eos_id = self.read()
    if not ids:
      raise ValueError(f"{self.task}: expected at least 1 input, got no input.")
    drafts = [load_draft(name, path, self.dtype) for name, path in self.drafts.items()]
    target = api.load_model(self.target, self.dtype)
    return Study(self, target, tuple(drafts), pad_inputs(ids), eos_id)


@dataclasses.dataclass(frozen=True)
class Study:
  """A target with drafts and inputs.

  Attributes:
    job: the job that was loaded.
    target: the target.
    drafts: the ways to draft.
    inputs: the encoder tokens of each input, padded to a common length.
    eos_id: the EOS token.
  """

  job: Job
  target: Model
  drafts: tuple[Draft, ...]
  inputs: tuple[Int[Array, "1 E"], ...]
  eos_id: int

  @property
  def ids(self) -> list[list[int]]:
    """The inputs' tokens, without padding."""
    return [[token for token in row[0].tolist() if token] for row in self.inputs]

  def batch(self, size: int) -> Int[Array, "B E"]:
    """Returns the first inputs as one batch."""
    return next(iter(api.padded_batches(self.ids[:size], size)))[1]

  @property
  def first_model(self) -> Draft | None:
    """The first draft model, or None."""
    models = (draft for draft in self.drafts if draft.drafter == "draft_model")
    return next(models, None)

  def decode(self, temperature: float, draft: Any = None, *parts, **words) -> Decode:
    """Returns a way to decode; see `build.together`. Without a draft it is plain."""
    decoder, params = together(self.target, draft, *parts, **words)
    sampling = Sampling(temperature)
    return Decode(decoder, params, sampling, self.job.max_length, self.eos_id)

  def cell(self, draft: Draft, setting) -> Decode:
    """Returns a cell's way to decode."""
    return self.decode(
      setting.temperature, draft.model, draft.drafter, setting.rule, gamma=setting.gamma
    )

  def program(self, decode: Decode) -> Program:
    """Returns a compiled program that decodes the input with a given number."""
    run = api.compiled(decode.decoder, *decode.settings)
    return lambda number: run(decode.params, self.inputs[number], self._keys[number])

  def key(self, draft: Draft, setting) -> dict[str, Any]:
    """Returns the key of a cell: all settings that determine the measurement."""
    job = {n: getattr(self.job, n) for n in ("max_length", "num_tokens", "dtype")}
    return {
      "task": self.job.task,
      "target": [self.job.target, self._fingerprints[0]],
      "draft": [draft.name, draft.source, draft.fingerprint, draft.drafter],
      "inputs": self._fingerprints[1],
      "eos_id": self.eos_id,
      **job,
      "runs": self.job.runs if setting.timed else None,
      **dataclasses.asdict(setting),
      **machine(),
    }

  # Cached, as reading a large target takes a while, and there are many cells.
  @functools.cached_property
  def _fingerprints(self):
    return fingerprint(self.target.params), fingerprint(list(self.inputs))

  # Each input has a key, so an input's random draws don't depend on other inputs.
  @functools.cached_property
  def _keys(self):
    return [row_keys(jax.random.key(n), 1) for n in range(len(self.inputs))]


def load_draft(name: str, source: str, dtype: str) -> Draft:
  """Loads a draft.

  Raises:
    ValueError: if the source can't be loaded.
  """
  if source in UNTRAINED:
    return Draft(name, source, None, source, UNTRAINED[source])
  path, _, order = source.partition("@")
  model = api.load_model(path, dtype)
  if order:
    network = model.network
    if not isinstance(network, NgramTable) or not order.isdigit():
      raise ValueError(
        f"--draft: expected a table of n-grams and a number after @, got a "
        f"{type(network).__name__} and {order!r}."
      )
    config = dataclasses.replace(network.config, order=int(order))
    model = dataclasses.replace(model, network=NgramTable(config))
  kinds = {NgramTable: "ngram", FeatureDrafter: "heads"}
  drafters = (name for kind, name in kinds.items() if isinstance(model.network, kind))
  drafter = next(drafters, "draft_model")
  return Draft(name, source, model, drafter, fingerprint(model.params))


def pad_inputs(ids: Sequence[Sequence[int]]) -> tuple[Int[Array, "1 E"], ...]:
  """Returns inputs at batch 1, padded to a common length, so programs compile once."""
  return tuple(rows for _, rows, _ in api.padded_batches(ids, batch_size=1))


def fingerprint(tree: Any) -> str:
  """Returns a digest of a sample of each array's elements.

  A sample suffices for billions of elements: a training step changes every parameter.
  """
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    flat = leaf.reshape(-1)
    sample = np.asarray(flat[:: max(1, flat.size // _SAMPLE)])
    digest.update(f"{jax.tree_util.keystr(path)}{leaf.shape}{leaf.dtype}".encode())
    digest.update(sample.tobytes())
  return digest.hexdigest()[:16]
