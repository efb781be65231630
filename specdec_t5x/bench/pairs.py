"""What is measured: a target, its drafts and inputs, loaded and told apart."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from specdec_t5x import api
from specdec_t5x.bench import programs
from specdec_t5x.bench.environment import machine
from specdec_t5x.bench.programs import Decode
from specdec_t5x.bench.timed import Program
from specdec_t5x.build import together
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.network.ngram import NgramTable

COPY = "copy"
# Drafters that have no model, and what else their cells depend on.
UNTRAINED = {COPY: f"match {Copy().match}", "quantized": "8 bits"}
# Numbers of each parameter that its fingerprint reads.
_SAMPLE = 1024

# The tokens of each input, end of sequence included, and the end of sequence.
Tokens = tuple[list[list[int]], int]


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
  model: api.Model | None
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
  target: api.Model
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
    known = decode.sampling, decode.max_length, decode.eos_id
    run = api.compiled(decode.decoder, *known)
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

  @functools.cached_property
  def _keys(self):
    return programs.input_keys(len(self.inputs))


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
  """Returns what tells arrays from others: a digest of some numbers of each.

  Not of all of them, for a large target has billions; another training step changes
  every parameter.
  """
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    flat = leaf.reshape(-1)
    some = np.asarray(flat[:: max(1, flat.size // _SAMPLE)])
    digest.update(f"{jax.tree_util.keystr(path)}{leaf.shape}{leaf.dtype}".encode())
    digest.update(some.tobytes())
  return digest.hexdigest()[:16]
