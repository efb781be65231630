"""What is measured: a target, its drafts and the inputs, loaded and told apart."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from specdec_t5x import api, assemble
from specdec_t5x.bench.environment import machine
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.drafters.copy import DEFAULT_MATCH
from specdec_t5x.network.ngram import NgramTable

COPY = "copy"  # The drafter that has no model.
# Numbers of each parameter that its fingerprint reads.
_SAMPLE = 1024


@dataclasses.dataclass(frozen=True)
class Draft:
  """A way to draft.

  Attributes:
    name: in the tables.
    source: the folder it came from, or "copy".
    model: the network or table; None where nothing is learned.
    drafter: one of `assemble.DRAFTERS`.
    fingerprint: of its parameters.
  """

  name: str
  source: str
  model: api.Model | None
  drafter: str
  fingerprint: str


@dataclasses.dataclass(frozen=True)
class Setting:
  """How a cell is decoded; timed beside the plain loop, or only counted."""

  gamma: int
  temperature: float
  lenience: float = 1.0
  timed: bool = True


@dataclasses.dataclass(frozen=True)
class Study:
  """A target, its drafts and inputs.

  Attributes:
    task: in the tables.
    target_source: the target's folder.
    target: the target.
    drafts: the ways to draft.
    inputs: encoder tokens of each input, all of one length.
    eos_id: the token that ends an output.
    max_length: room for an output, in tokens.
    num_tokens: decoding stops after the input that completes so many.
    dtype: of parameters and activations.
    runs: of each part that is timed.
  """

  task: str
  target_source: str
  target: api.Model
  drafts: tuple[Draft, ...]
  inputs: tuple[Int[Array, "1 E"], ...]
  eos_id: int
  max_length: int
  num_tokens: int
  dtype: str
  runs: int

  def together(self, draft: Draft, setting: Setting) -> tuple[assemble.Pair, Any]:
    """Returns the pair that decodes a cell, and its parameters."""
    settings = {} if draft.drafter == "draft_model" else {"drafter": draft.drafter}
    if setting.lenience != 1.0:
      settings |= {"verification": "lenient", "lenience": setting.lenience}
    return api.together(self.target, draft.model, setting.gamma, **settings)

  def sampling(self, setting: Setting) -> Sampling:
    """Returns how both laws are adjusted."""
    return Sampling(temperature=setting.temperature)

  def key(self, draft: Draft, setting: Setting) -> dict[str, Any]:
    """Returns everything that determines a cell."""
    return {
      "task": self.task,
      "target": [self.target_source, self._target_fingerprint],
      "draft": [draft.name, draft.source, draft.fingerprint, draft.drafter],
      "inputs": self._inputs_fingerprint,
      "eos_id": self.eos_id,
      "max_length": self.max_length,
      "num_tokens": self.num_tokens,
      "dtype": self.dtype,
      "runs": self.runs if setting.timed else None,
      **dataclasses.asdict(setting),
      **machine(),
    }

  def __post_init__(self):
    # Once: a large target takes a while to read, and there are many cells.
    object.__setattr__(self, "_target_fingerprint", fingerprint(self.target.params))
    object.__setattr__(self, "_inputs_fingerprint", fingerprint(list(self.inputs)))


def load_draft(name: str, source: str, dtype: str) -> Draft:
  """Loads a draft.

  Args:
    name: in the tables.
    source: the folder of a checkpoint or of an n-gram table, or "copy"; DIR@2 is a
      table's bigrams, and so on.
    dtype: of parameters and activations.

  Raises:
    ValueError: where there is nothing to load.
  """
  if source == COPY:
    # Another least match drafts other tokens: its cells are not these.
    return Draft(name, source, None, COPY, f"match {DEFAULT_MATCH}")
  path, _, order = source.partition("@")
  model = api.load_model(path, dtype)
  if order:
    model = dataclasses.replace(model, network=_of_order(model.network, order))
  drafter = "ngram" if isinstance(model.network, NgramTable) else "draft_model"
  return Draft(name, source, model, drafter, fingerprint(model.params))


def _of_order(network, order):
  if not isinstance(network, NgramTable) or not order.isdigit():
    raise ValueError(
      f"--draft: expected a table of n-grams and a number after @, got a "
      f"{type(network).__name__} and {order!r}."
    )
  return NgramTable(dataclasses.replace(network.config, order=int(order)))


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
