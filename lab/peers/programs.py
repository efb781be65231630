"""Greedy decoding of peers with our weights, as programs of an input's index."""

import types
from typing import Any

import jax
import numpy as np

from benchmarks.measure import COUNTED
from benchmarks.study import Study
from benchmarks.timed import Program
from lab import peers
from lab.peers import importable, upstream
from specdec_t5x.api import Model
from specdec_t5x.network.inputs import without_padding

HF_PLAIN = "Hugging Face generate"
HF_GAMMA = "Hugging Face assisted, our gamma"
HF_DEFAULT = "Hugging Face assisted, its default schedule"
HF_NO_MASK = "Hugging Face assisted, our gamma, no decoder mask"
HF_LOOKUP = "Hugging Face prompt lookup, our gamma"
CT2 = {"float32": "CTranslate2 float32", "int8": "CTranslate2 int8"}
UPSTREAM = "upstream T5X temperature_sample"
PROGRAMS = (
  *(HF_PLAIN, HF_GAMMA, HF_DEFAULT, HF_NO_MASK, HF_LOOKUP),
  *(*CT2.values(), UPSTREAM),
)


def programs(study: Study, draft: Model, gamma: int) -> dict[str, Program]:
  """Returns the programs of the installed peers by name.

  Args:
    study: the target and the inputs.
    draft: the draft of Hugging Face's assisted generation.
    gamma: drafted tokens per call of the target.

  Raises:
    ValueError: if a peer has no counterpart of the network, or torch can't use JAX's
      device.
  """
  max_length = study.job.max_length
  eos_id = study.eos_id
  decoders = {}
  if importable(peers.HUGGING_FACE):
    decoders |= _hugging_face(study.target, draft, gamma, (max_length, eos_id))
  if importable(peers.CTRANSLATE2):
    decoders |= _ctranslate2(study.target, (max_length, eos_id))
  # Convert before the clock starts, as for JAX. Peers pad with 0.
  inputs = [without_padding(row) for row in study.inputs]
  ids = [np.asarray(row) for row in inputs]
  runs = {name: lambda n, run=run: run(ids[n]) for name, run in decoders.items()}
  if importable(peers.UPSTREAM):
    params = jax.device_put(study.target.params)
    decode = upstream.greedy(study.target.network.config, params, max_length, eos_id)

    def run(number):
      return decode(inputs[number])

    runs[UPSTREAM] = run
  return {
    name: lambda number, run=run: _as_ours(run(number), max_length, eos_id)
    for name, run in runs.items()
  }


def _as_ours(output: Any, max_length: int, eos_id: int) -> Any:
  """Returns a peer's output in our form; counts of calls are 0."""
  row = np.asarray(output)[0].tolist()
  row = row[: row.index(eos_id) + 1] if eos_id in row else row
  tokens = np.zeros((1, max_length), np.int32)
  tokens[0, : len(row)] = row
  counts = dict.fromkeys(COUNTED, np.zeros(1, int)) | {"emitted": np.array([len(row)])}
  statistics = types.SimpleNamespace(**counts)
  return types.SimpleNamespace(tokens=tokens, statistics=statistics)


def _hugging_face(target, draft, gamma, limits) -> dict[str, Program]:
  from lab.peers import export, hugging_face

  def to_torch(model):
    return export.to_torch(model, export.torch_device())

  settings = {HF_GAMMA: (gamma, True), HF_DEFAULT: (None, True)}
  settings[HF_NO_MASK] = gamma, False
  network = to_torch(target)
  # The draft stores the settings of a program, so every program has its own draft.
  assisted = {
    name: hugging_face.assisted(network, to_torch(draft), *limits, *each)
    for name, each in settings.items()
  }

  def plain(*copied):
    return hugging_face.plain(network, *limits, *copied)

  return {HF_PLAIN: plain(), HF_LOOKUP: plain(gamma), **assisted}


def _ctranslate2(target, limits) -> dict[str, Program]:
  from lab.peers import ctranslate2

  return {name: ctranslate2.greedy(target, kind, *limits) for kind, name in CT2.items()}
