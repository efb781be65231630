"""A target with drafts and inputs, and decodes as programs to be timed."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from benchmarks import timed
from benchmarks.environment import machine
from benchmarks.timed import Costs, Loop
from specdec_t5x import api, tuning
from specdec_t5x.api import Model
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.policies import Fixed
from specdec_t5x.decoding.state import Decoded, keys_at, row_keys
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.network.ngram import NgramTable
from specdec_t5x.ways import assembled

BATCH = 16  # The batch size if nothing is timed.
NEVER = -1  # An EOS id that no token has.
COPY = "copy"
# Drafters without a model, and the settings that identify their cells.
UNTRAINED = {COPY: f"match {Copy().match}", "quantized": "8 bits"}
# The most timed repetitions of an iteration and of a plain token; the fewest are 0,
# which gives the time of the work once per call.
_ITERATIONS, _TOKENS = 10, 32
# The number of elements of each parameter in the fingerprint, about.
_SAMPLE = 1024

# The tokens of each input, EOS included, and the EOS token.
Tokens = tuple[list[list[int]], int]


class Group(NamedTuple):
  """Inputs that are decoded together."""

  first: int  # The number of the first input.
  inputs: Int[Array, "B E"]  # A short last group repeats its first input.
  rows: int  # The number of inputs without repetitions.


@dataclasses.dataclass(frozen=True)
class Decode:
  """A way to decode, complete except for the inputs."""

  decoder: Decoder  # The decoder, with the networks.
  params: Any  # The networks' parameters by name, on the device.
  sampling: Sampling  # The adjustment of all distributions.
  max_length: int  # The most tokens of an output.
  eos_id: int = NEVER  # The EOS token.

  def __call__(self, inputs: Int[Array, "B E"], keys: Key[Array, "B"]) -> Decoded:
    """Decodes a batch."""
    run = api.compiled(self.decoder, self.sampling, self.max_length, self.eos_id)
    return run(self.params, inputs, keys)

  def start(self, params: Any, inputs: Int[Array, "B E"], keys: Key[Array, "R"]):
    """Returns how to decode and the first state, from the arrays of `given`."""
    ctx = self.decoder.context(
      params, keys.shape[0], self.sampling, self.max_length, self.eos_id
    )
    return ctx, ctx.first_state(inputs, keys)

  def given(self, inputs: Int[Array, "B E"]) -> tuple[Any, ...]:
    """Returns the arguments of a program: parameters, inputs and keys."""
    return self.params, inputs, row_keys(jax.random.key(0), inputs.shape[0])

  def loop(self, inputs: Int[Array, "B E"], redrafts: bool = False) -> Loop:
    """Returns the loop of iterations or plain tokens; see `timed.iterated`.

    No token ends an output, and every draft has the longest length.
    """
    decoder = self.decoder
    if decoder.drafter is None:
      most = min(_TOKENS, self.max_length)
    else:
      fit = self.max_length // (decoder.drafter.tree.depth + 1)
      most = max(1, min(_ITERATIONS, fit))
      decoder = dataclasses.replace(decoder, policy=Fixed())
    start = dataclasses.replace(self, decoder=decoder, eos_id=NEVER).start
    return timed.iterated(start, redrafts), self.given(inputs), (0, most)


@dataclasses.dataclass(frozen=True)
class Draft:
  """A way to draft."""

  name: str  # The name in tables.
  source: str  # The model's folder, or a name in `UNTRAINED`.
  model: Model | None  # The network or table; None without learned parameters.
  drafter: str  # A name in `ways.NAMED`.
  fingerprint: str  # The fingerprint of the parameters.


@dataclasses.dataclass(frozen=True)
class Job:
  """The paths and settings of a study, before loading."""

  task: str  # The task's name in tables.
  target: str  # The target's folder.
  drafts: Mapping[str, str]  # Folders, or names in `UNTRAINED`, by the draft's name.
  read: Callable[[], Tokens]  # A function that reads the inputs.
  max_length: int  # The most tokens of an output.
  num_tokens: int = 2000  # The number of output tokens per cell.
  dtype: str = "float32"  # The dtype of parameters and activations.
  runs: int = 15  # The number of timed runs of each part.
  vocabulary: str = ""  # A SentencePiece model, or a Hugging Face folder.

  def load(self) -> "Study":
    """Loads the inputs and models."""
    ids, eos_id = self.read()
    drafts = [load_draft(name, path, self.dtype) for name, path in self.drafts.items()]
    target = api.load_model(self.target, self.dtype)
    return Study(self, target, tuple(drafts), pad_inputs(ids), eos_id)


@dataclasses.dataclass(frozen=True)
class Study:
  """A target with drafts and inputs."""

  job: Job  # The job that was loaded.
  target: Model  # The target.
  drafts: tuple[Draft, ...]  # The ways to draft.
  # The encoder tokens of each input, padded to a common length.
  inputs: tuple[Int[Array, "1 E"], ...]
  eos_id: int  # The EOS token.

  @property
  def ids(self) -> list[list[int]]:
    """The inputs' tokens, without padding."""
    return [[token for token in row[0].tolist() if token] for row in self.inputs]

  def groups(self, rows: int) -> list[Group]:
    """Returns the inputs in groups of `rows`."""
    return [Group(*group) for group in api.padded_batches(self.ids, rows)]

  def grouped(self, decode: Decode, rows: int) -> Callable[[Group], list[Decoded]]:
    """Returns a program that decodes a group of `groups`, in batches of `rows`.

    Each batch starts with the policy's state after the previous batch.
    """
    sampling, most, eos_id = decode.sampling, decode.max_length, decode.eos_id

    @functools.partial(jax.jit, static_argnums=0)
    def run(decoder, params, inputs, keys, state):
      return decoder.decode(params, inputs, keys, sampling, most, eos_id, **state)

    @functools.cache
    def tuned(length):
      job = tuning.Job(decode.decoder, rows, length, sampling, most)
      return tuning.tuned(job, decode.params)

    def decode_group(group):
      first, inputs, _ = group
      decoder = tuned(inputs.shape[1])
      state = {}
      if decoder.drafter is not None:
        state = {"policy_state": decoder.policy.start(rows)}
      outputs = []
      for i in range(0, len(inputs), rows):
        keys = keys_at(jax.random.key(0), first + i + np.arange(rows))
        outputs.append(run(decoder, decode.params, inputs[i : i + rows], keys, state))
        state = {"policy_state": outputs[-1].policy_state} if state else {}
      return outputs

    return decode_group

  @property
  def first_model(self) -> Draft | None:
    """The first draft model, or None."""
    return next((x for x in self.drafts if x.drafter == "draft_model"), None)

  def decode(
    self, sampling: float | Sampling, draft: Any = None, *parts, **words
  ) -> Decode:
    """Returns a way to decode with the other arguments of `ways.assembled`."""
    decoder, params = assembled(self.target, draft, *parts, **words)
    sampling = sampling if isinstance(sampling, Sampling) else Sampling(sampling)
    return Decode(decoder, params, sampling, self.job.max_length, self.eos_id)

  def cell(self, draft: Draft, setting) -> Decode:
    """Returns a cell's way to decode."""
    return self.decode(
      setting.temperature, draft.model, draft.drafter, setting.rule, gamma=setting.gamma
    )

  def costs(self, decodes: Mapping[Any, Decode], runs: int) -> dict[Any, Costs]:
    """Times the parts of decodes in turn with the plain loop, on the first input."""
    text = self.inputs[0]
    loops = {"plain": self.decode(next(iter(decodes.values())).sampling).loop(text)}
    for key, decode in decodes.items():
      loops[key, 0] = decode.loop(text)
      loops[key, 1] = decode.loop(text, redrafts=True)
    calls = timed.alternate(timed.repeated(loops), range(runs))
    seconds = timed.slopes(calls)
    middle = timed.medians(seconds)
    return {
      key: Costs(
        gamma=decode.decoder.drafter.depth,
        plain=middle["plain"],
        plain_start=float(np.median(calls["plain", 0].seconds)),
        iteration=middle[key, 0],
        start=float(np.median(calls[(key, 0), 0].seconds)),
        # The time of drafting by lookups may be lost in noise.
        draft=max(float(np.median(seconds[key, 1] - seconds[key, 0])), 0.0),
      )
      for key, decode in decodes.items()
    }

  def key(self, draft: Draft, setting) -> dict[str, Any]:
    """Returns the key of a cell: all settings that determine the measurement."""
    return {
      "task": self.job.task,
      "target": [self.job.target, self._fingerprints[0]],
      "draft": [draft.name, draft.source, draft.fingerprint, draft.drafter],
      "inputs": self._fingerprints[1],
      "eos_id": self.eos_id,
      **{n: getattr(self.job, n) for n in ("max_length", "num_tokens", "dtype")},
      "runs": self.job.runs if setting.timed else None,
      **dataclasses.asdict(setting),
      **machine(),
    }

  # Cached, as reading a large target takes a while, and there are many cells.
  @functools.cached_property
  def _fingerprints(self):
    return fingerprint(self.target.params), fingerprint(list(self.inputs))


def load_draft(name: str, source: str, dtype: str) -> Draft:
  """Loads a draft."""
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
