"""Invariants of every output of a speculative decode, greedy or sampled."""

import dataclasses
from collections.abc import Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Setting:
  """The settings of a compiled program: draft length, temperature, batch size."""

  gamma: int
  temperature: float
  batch_size: int


def broken_promises(
  setting: Setting, tokens: np.ndarray, aux: Mapping[str, np.ndarray], vocab_size: int
) -> list[str]:
  """Returns descriptions of the broken invariants of a request's outputs.

  Args:
    setting: setting of the request.
    tokens: outputs [n, T].
    aux: statistics of the outputs [n].
    vocab_size: rows of the network's output layer.
  """
  room = tokens.shape[1]
  ends = tokens == 1
  lengths = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, room)
  emitted, calls, drafted, accepted, tried = (
    aux[name]
    for name in (
      "tokens",
      "target_calls",
      "drafted",
      "accepted",
      "acceptance_positions",
    )
  )
  mass = aux["acceptance_mass"]
  promises = {
    "tokens are in the vocabulary": ((tokens >= 0) & (tokens < vocab_size)).all(),
    "nothing follows EOS": not tokens[np.arange(room) >= lengths[:, None]].any(),
    "tokens are counted": (emitted == lengths).all(),
    "scores are log-probabilities": (np.isfinite(aux["scores"])).all()
    and (aux["scores"] <= 1e-5).all(),
    "each call emits": (calls >= 1).all() and (calls <= emitted).all(),
    "a call emits accepted tokens and one more": (emitted <= accepted + calls).all(),
    "accepted tokens are emitted": (accepted <= emitted).all(),
    "accepted tokens are tried": (accepted <= tried).all(),
    "a call rejects at most one token": (tried <= accepted + calls).all(),
    "tried tokens are drafted": (tried <= drafted).all(),
    "drafts have at most gamma tokens": (drafted <= setting.gamma * calls).all(),
    "mass is a probability": (mass >= 0).all() and (mass <= tried + 1e-3).all(),
  }
  return [
    f"{setting}: broken: {promise}" for promise, kept in promises.items() if not kept
  ]
