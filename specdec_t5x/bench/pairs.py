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
from specdec_t5x.bench.timed import Costs, Program
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoders import Decoder, SpeculativeDecoder
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.network.functional import HEADS
from specdec_t5x.network.ngram import NgramTable

COPY = "copy"  # The drafter that has no model.
# Numbers of each parameter that its fingerprint reads.
_SAMPLE = 1024

# The tokens of each input, end of sequence included, and the end of sequence.
Tokens = tuple[list[list[int]], int]


@dataclasses.dataclass(frozen=True)
class Draft:
  """A way to draft.

  Attributes:
    name: in the tables.
    source: the folder it came from, or "copy".
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
    drafts: folders by name; "copy" for the drafter without one.
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

  @property
  def first_model(self) -> Draft | None:
    """The first draft model, if there is any."""
    return next((each for each in self.drafts if each.drafter == "draft_model"), None)

  def together(self, draft: Draft, setting) -> tuple[SpeculativeDecoder, Any]:
    """Returns what decodes a cell, and its parameters."""
    parts = draft.drafter, setting.rule
    return programs.together(self.target, draft.model, *parts, gamma=setting.gamma)

  def decoding(self, decoder: Decoder, params, temperature: float) -> programs.Decoding:
    """Returns what decodes batches of inputs."""
    known = Sampling(temperature), self.job.max_length, self.eos_id
    return programs.decoding(decoder, params, *known)

  def program(self, decoder: Decoder, params: Any, temperature: float) -> Program:
    """Returns what decodes the input of a given number."""
    run = self.decoding(decoder, params, temperature)
    return lambda number: run(self.inputs[number], self._keys[number])

  def plain(self, temperature: float, model: api.Model | None = None) -> Program:
    """Returns the same with the target, or another model, alone."""
    return self.program(*programs.together(model or self.target), temperature)

  def costs(
    self, decoders: Sequence[SpeculativeDecoder], params: Any, temperature: float
  ) -> dict[int, Costs]:
    """Returns by gamma what the parts of each one's decoding take, on one input."""
    given = self.inputs[0], Sampling(temperature), self.job.max_length, self.job.runs
    return programs.pair_costs(decoders, params, *given)

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
  if source == COPY:
    # Another least match drafts other tokens: its cells are not these.
    return Draft(name, source, None, COPY, f"match {Copy().match}")
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
  kinds = {NgramTable: "ngram", HEADS: "heads"}
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
