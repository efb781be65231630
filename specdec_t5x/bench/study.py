"""A target, its drafts and inputs, and their decodes as programs to be timed."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from specdec_t5x import api, tuning
from specdec_t5x.api import Model
from specdec_t5x.bench.environment import machine
from specdec_t5x.bench.iteration import NEVER, part_programs, plain_program
from specdec_t5x.bench.timed import Loop, Program
from specdec_t5x.build import together
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoders import Decoder, PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.network.ngram import NgramTable

BATCH = 16  # Inputs at once, where nothing is timed.
COPY = "copy"
# Drafters without a model, and the settings that their cells depend on.
UNTRAINED = {COPY: f"match {Copy().match}", "quantized": "8 bits"}
# The most repetitions that are timed: of an iteration, of a plain token. A loop that
# does not run at all leaves what happens once a call.
_ITERATIONS, _TOKENS = 10, 32
_PART = (2, 10)  # Repetitions of a part that are timed beside each other.
# Numbers of each parameter that its fingerprint reads.
_SAMPLE = 1024

# The tokens of each input, end of sequence included, and the end of sequence.
Tokens = tuple[list[list[int]], int]


@dataclasses.dataclass(frozen=True)
class Decode:
  """A way to decode with everything that it needs but the inputs.

  Attributes:
    decoder: networks, and how they are used.
    params: of the networks by name, on the device.
    sampling: the adjustment of all distributions.
    max_length: most tokens of an output.
    eos_id: the token that ends one.
  """

  decoder: Decoder
  params: Any
  sampling: Sampling
  max_length: int
  eos_id: int = NEVER

  @property
  def settings(self) -> tuple[Sampling, int, int]:
    """The sampling, the most tokens and the token that ends an output."""
    return self.sampling, self.max_length, self.eos_id

  def __call__(self, inputs: Int[Array, "B E"], keys: Key[Array, "B"]) -> Decoded:
    """Decodes a batch."""
    return api.compiled(self.decoder, *self.settings)(self.params, inputs, keys)

  def start(self, *arrays: Any):
    """Returns how to decode and the loop's first state, from `given`'s arrays."""
    return self.decoder.prepare(*arrays, *self.settings)

  def given(self, inputs: Int[Array, "B E"]) -> tuple[Any, ...]:
    """Returns what programs of some inputs take: parameters, inputs and keys."""
    return self.params, inputs, row_keys(jax.random.key(0), inputs.shape[0])

  def loop(self, inputs: Int[Array, "B E"], name: str = "iteration") -> Loop:
    """Returns a part that is to be timed, on some inputs.

    Args:
      inputs: of the loop; no token ends an output.
      name: as in `iteration.part_programs`; plain decoding has iterations alone.
    """
    start = dataclasses.replace(self, eos_id=NEVER).start
    if isinstance(self.decoder, PlainDecoder):
      run = plain_program(start)
      return run, self.given(inputs), (0, min(_TOKENS, self.max_length))
    counts = _PART
    if name == "iteration":
      fit = self.max_length // (self.decoder.drafter.tree.depth + 1)
      counts = 0, max(1, min(_ITERATIONS, fit))
    return part_programs(start)[name], self.given(inputs), counts


def batches(
  decode: Decode, ids: Sequence[Sequence[int]], batch: int = BATCH, seed: int = 0
) -> Iterator[tuple[Int[Array, "B E"], Decoded, int]]:
  """Yields batches of inputs, their decodes, and how many rows of each count."""
  for first, texts, count in api.padded_batches(ids, batch):
    yield texts, decode(texts, row_keys(jax.random.key(seed), batch, first)), count


def decoding_groups(
  decode: Decode, at_once: int
) -> Callable[[tuple[int, Int[Array, "B E"]]], list[Decoded]]:
  """Returns the program that decodes a group of inputs, so many of them at once.

  Each batch starts with the policy's state after the batch before.
  """

  def decode_batch(decoder, params, inputs, keys, state):
    return decoder.decode(params, inputs, keys, *decode.settings, **state)

  run = jax.jit(decode_batch, static_argnums=0)

  def decode_group(group):
    first, inputs = group
    state, found = {}, []
    job = tuning.Job(decode.decoder, at_once, inputs.shape[1], *decode.settings[:2])
    tuned = tuning.tuned(job, decode.params)
    if isinstance(tuned, SpeculativeDecoder):
      state = {"policy_state": tuned.first_policy_state(at_once)}
    for i in range(0, len(inputs), at_once):
      keys = row_keys(jax.random.key(0), at_once, first + i)
      found.append(run(tuned, decode.params, inputs[i : i + at_once], keys, state))
      state = {"policy_state": found[-1].policy_state} if state else {}
    return found

  return decode_group


@dataclasses.dataclass(frozen=True)
class Draft:
  """A way to draft.

  Attributes:
    name: in the tables.
    source: the folder it came from, or one of `UNTRAINED`.
    model: the network or table; None where nothing is learned.
    drafter: one of `build.DRAFTERS`.
    fingerprint: of its parameters.
  """

  name: str
  source: str
  model: Model | None
  drafter: str
  fingerprint: str


@dataclasses.dataclass(frozen=True)
class Job:
  """A target, drafts and inputs that are not loaded yet.

  Attributes:
    task: in the tables.
    target: the target's folder.
    drafts: folders by name, or of `UNTRAINED` drafters their own names.
    read: reads the inputs.
    max_length: most tokens of an output.
    num_tokens: output tokens a cell is measured over.
    dtype: of parameters and activations.
    runs: of each part's clock.
    vocabulary: a SentencePiece model, or a Hugging Face folder.
    also: files of inputs of other domains, by name.
    cut: most tokens of their inputs.
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
  also: Mapping[str, str] = dataclasses.field(default_factory=dict)
  cut: int | None = None

  def load(self) -> "Study":
    """Loads everything.

    Raises:
      ValueError: where something can't be read, or there are no inputs.
    """
    ids, eos_id = self.read()
    if not ids:
      raise ValueError(f"{self.task}: there is no input. Give at least one.")
    drafts = [load_draft(*draft, self.dtype) for draft in self.drafts.items()]
    target = api.load_model(self.target, self.dtype)
    return Study(self, target, tuple(drafts), pad_inputs(ids), eos_id)


@dataclasses.dataclass(frozen=True)
class Study:
  """A target, its drafts and inputs.

  Attributes:
    job: what was loaded.
    target: the target.
    drafts: the ways to draft.
    inputs: encoder tokens of each input, all of one length.
    eos_id: the token that ends an output.
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
    """The first draft model, if there is any."""
    return next((each for each in self.drafts if each.drafter == "draft_model"), None)

  def decode(self, temperature: float, draft: Any = None, *parts, **words) -> Decode:
    """Returns a way to decode: `build.together`'s, or the target alone."""
    made = together(self.target, draft, *parts, **words)
    return Decode(*made, Sampling(temperature), self.job.max_length, self.eos_id)

  def cell(self, draft: Draft, setting) -> Decode:
    """Returns the way to decode of a cell."""
    parts = draft.model, draft.drafter, setting.rule
    return self.decode(setting.temperature, *parts, gamma=setting.gamma)

  def program(self, decode: Decode) -> Program:
    """Returns what decodes the input of a given number, and stays compiled."""
    run = api.compiled(decode.decoder, *decode.settings)
    return lambda number: run(decode.params, self.inputs[number], self._keys[number])

  def key(self, draft: Draft, setting) -> dict[str, Any]:
    """Returns everything that determines a cell."""
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

  # Once: a large target takes a while to read, and there are many cells.
  @functools.cached_property
  def _fingerprints(self):
    return fingerprint(self.target.params), fingerprint(list(self.inputs))

  # An input's draws are its own.
  @functools.cached_property
  def _keys(self):
    return [row_keys(jax.random.key(n), 1) for n in range(len(self.inputs))]


def load_draft(name: str, source: str, dtype: str) -> Draft:
  """Loads a draft.

  Raises:
    ValueError: where there is nothing to load.
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
  found = (name for kind, name in kinds.items() if isinstance(model.network, kind))
  drafter = next(found, "draft_model")
  return Draft(name, source, model, drafter, fingerprint(model.params))


def pad_inputs(ids: Sequence[Sequence[int]]) -> tuple[Int[Array, "1 E"], ...]:
  """Returns inputs at batch 1, padded to one length: programs are compiled once."""
  return tuple(rows for _, rows, _ in api.padded_batches(ids, batch_size=1))


def fingerprint(tree: Any) -> str:
  """Returns a digest of some numbers of each array.

  A large target has billions of numbers; another training step changes every parameter.
  """
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    flat = leaf.reshape(-1)
    some = np.asarray(flat[:: max(1, flat.size // _SAMPLE)])
    digest.update(f"{jax.tree_util.keystr(path)}{leaf.shape}{leaf.dtype}".encode())
    digest.update(some.tobytes())
  return digest.hexdigest()[:16]
