"""Greedy decoding by us and by peers as programs that take the same item.

`programs` returns those that can be imported here, and why the others are missing.
"""

import dataclasses
import types
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec_t5x.api import Model
from specdec_t5x.bench.measured import COUNTED
from specdec_t5x.bench.oracle import oracle
from specdec_t5x.bench.pairs import Study
from specdec_t5x.bench.peers import CTRANSLATE2, HUGGING_FACE, importable, upstream
from specdec_t5x.bench.programs import Decode, input_keys
from specdec_t5x.bench.timed import Program
from specdec_t5x.build import together
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.drafters.oracle import forced_tokens
from specdec_t5x.drafters.quantized import Quantized

OURS, BASELINE = "our speculation", "our baseline"
HF_PLAIN = "Hugging Face generate"
HF_GAMMA = "Hugging Face assisted, our gamma"
HF_DEFAULT = "Hugging Face assisted, its default schedule"
HF_NO_MASK = "Hugging Face assisted, our gamma, no decoder mask"
HF_LOOKUP = "Hugging Face prompt lookup, our gamma"
CT2 = {"float32": "CTranslate2 float32", "int8": "CTranslate2 int8"}
UPSTREAM = "upstream T5X temperature_sample"
# The target drafts for itself, as much as pays.
SELF = {
  "our self-drafting, 8 bits": Quantized(),
  "our self-drafting, 4 bits": Quantized(4, 32),
}
PROGRAMS = (
  *(OURS, BASELINE, *SELF, HF_PLAIN, HF_GAMMA, HF_DEFAULT, HF_NO_MASK, HF_LOOKUP),
  *(*CT2.values(), UPSTREAM),
)
NOT_IMPORTABLE = "not importable"
NEEDS_TRAINED = "needs a trained draft"


@dataclasses.dataclass(frozen=True)
class Workload:
  """What is decoded, and how.

  Attributes:
    target: the model whose greedy outputs all programs compute, in float32.
    draft: the model that drafts.
    inputs: each [1, E], zero-padded to one length.
    gamma: tokens drafted a call of the target.
    max_length: the most tokens of an output.
    eos_id: the token that ends an output; a negative one never comes.
    alpha: where given, the draft does its work and then says the target's token with
      this probability (`drafters.oracle`): for weights that were not trained.
    seed: of the oracle.
  """

  target: Model
  draft: Model
  inputs: Sequence[Int[np.ndarray, "1 E"]]
  gamma: int
  max_length: int
  eos_id: int
  alpha: float | None = None
  seed: int = 0

  @classmethod
  def of(cls, study: Study, draft: Model, gamma: int) -> "Workload":
    """Returns a study's inputs, to be decoded with one of its drafts."""
    inputs = [np.asarray(row) for row in study.inputs]
    rest = gamma, study.job.max_length, study.eos_id
    return cls(study.target, draft, inputs, *rest)


@dataclasses.dataclass(frozen=True)
class Item:
  """An input in the forms that programs take, made before the clock starts.

  Attributes:
    ids: for peers.
    array: for us and upstream T5X, where JAX computes.
    forced: what an oracle drafts; None without one.
  """

  ids: Int[np.ndarray, "1 E"]
  array: Int[Array, "1 E"]
  forced: Int[Array, "1 T"] | None


def programs(work: Workload) -> tuple[dict[str, Program], dict[str, str]]:
  """Returns programs by name, each from an `Item`, and why others are missing.

  Raises:
    ValueError: where the weights have no counterpart in a peer, or torch can't use the
      device that JAX uses.
  """
  baseline, theirs, missing = _baseline(work), {}, {}
  if importable(HUGGING_FACE):
    theirs |= _hugging_face(work)
  if importable(CTRANSLATE2) and work.eos_id >= 0:
    theirs |= _ctranslate2(work)
  if upstream.available():
    model, limits = work.target, (work.max_length, work.eos_id)
    params = jax.device_put(model.params)
    run = upstream.greedy(model.network.config, params, *limits)
    theirs[UPSTREAM] = lambda item: run(item.array)
  present = {OURS: _speculation(work), BASELINE: lambda item: baseline(item.array)}
  present |= {name: _drafting(work, drafter) for name, drafter in SELF.items()}
  present |= {name: _decoding(run, work) for name, run in theirs.items()}
  for name in PROGRAMS:
    if name not in present:
      untrained = name != UPSTREAM and importable(HUGGING_FACE)
      missing[name] = NEEDS_TRAINED if untrained else NOT_IMPORTABLE
  return present, missing


def _decoding(run: Program, work: Workload) -> Program:
  """Returns what gives a peer's tokens as ours are; of its calls nothing is known."""

  def decode(item):
    row = np.asarray(run(item))[0].tolist()
    row = row[: row.index(work.eos_id) + 1] if work.eos_id in row else row
    tokens = np.zeros((1, work.max_length), np.int32)
    tokens[0, : len(row)] = row
    counts = dict.fromkeys(COUNTED, np.zeros(1, int)) | {
      "emitted": np.array([len(row)])
    }
    return types.SimpleNamespace(
      tokens=tokens, statistics=types.SimpleNamespace(**counts)
    )

  return decode


def items(work: Workload) -> list[Item]:
  """Returns what the programs take, one an input."""
  baseline, found = _baseline(work), []
  for number, ids in enumerate(work.inputs):
    array, forced = jnp.asarray(ids, jnp.int32), None
    if work.alpha is not None:
      key = jax.random.fold_in(jax.random.key(work.seed), number)
      answer, size = baseline(array).tokens, work.target.network.config.vocab_size
      forced = forced_tokens(answer, work.alpha, size, key)
    found.append(Item(ids, array, forced))
  return found


def _decode(work, draft=None, **words) -> Decode:
  made = together(work.target, draft, **words)
  return Decode(*made, GREEDY, work.max_length, work.eos_id)


def _baseline(work):
  decode, (keys,) = _decode(work), input_keys(1)
  return lambda array: decode(array, keys)


def _speculation(work) -> Program:
  """Returns ours; with an oracle, the draft says what the item has."""
  decode, (keys,) = _decode(work, work.draft, gamma=work.gamma), input_keys(1)
  if work.alpha is None:
    return lambda item: decode(item.array, keys)
  run = oracle(decode)
  return lambda item: run(item.forced, decode.params, item.array, keys)


def _drafting(work, drafter) -> Program:
  decode, (keys,) = _decode(work, drafter=drafter), input_keys(1)
  return lambda item: decode(item.array, keys)


def _hugging_face(work) -> dict[str, Program]:
  from specdec_t5x.bench.peers import export, hugging_face

  to_torch = lambda model: export.to_torch(
    model.network.config, model.params, export.torch_device()
  )
  target, limits = to_torch(work.target), (work.max_length, work.eos_id)
  run = hugging_face.plain(target, *limits)
  copies = hugging_face.plain(target, *limits, work.gamma)
  programs = {
    HF_PLAIN: lambda item: run(item.ids),
    HF_LOOKUP: lambda item: copies(item.ids),
  }
  settings = {HF_GAMMA: (work.gamma, True)}
  if work.alpha is None:
    # A bent draft is not sure of its tokens, so it would end each draft after one; and
    # it says what belongs to a place, so it needs a cache whose length is the place.
    settings |= {HF_DEFAULT: (None, True), HF_NO_MASK: (work.gamma, False)}

  def program(setting):
    """One call of the library; the draft holds its settings, so each has its own."""
    draft = to_torch(work.draft)
    run = hugging_face.assisted(target, draft, *limits, *setting)

    def bent(item):
      if item.forced is not None:
        hugging_face.bend(draft, np.asarray(item.forced[0]))
      return run(item.ids)

    return bent

  return programs | {name: program(setting) for name, setting in settings.items()}


def _ctranslate2(work) -> dict[str, Program]:
  from specdec_t5x.bench.peers import ctranslate2

  model, limits = work.target, (work.max_length, work.eos_id)
  found = ((CT2[kind], ctranslate2.greedy(model, kind, *limits)) for kind in CT2)
  return {name: lambda item, run=run: run(item.ids) for name, run in found}
