"""Online learning in `python -m t5x.infer`: what configs/runs/online.gin binds.

T5X decodes a chunk of batches with what its train state holds, and writes it. So the
draft learns from a chunk when it is written, and the train state holds the draft as it
is when a batch asks for it: two arguments of T5X's own, under both providers.
"""

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import flax.core
import jax
import numpy as np
from etils import epath

from specdec_t5x.t5x_bridge import pairing, writer
from specdec_t5x.t5x_bridge.model import LEARNED_FROM, Decodes
from specdec_t5x.training.online import Learner, Online, Requests, check_learns

_DRAFT = "draft"
_RECORD = "online.json"


@dataclasses.dataclass(frozen=True)
class Served:
  """T5X's train state with a draft that changes: all that T5X reads of one.

  Attributes:
    restored: as the checkpoints have it.
    learner: the draft.
  """

  restored: Any
  learner: Learner

  @property
  def params(self) -> Mapping[str, Any]:
    """The parameters, the draft's as they now are."""
    now = {_DRAFT: self.learner.params}
    return flax.core.freeze({**self.restored.params, **now})

  @property
  def step(self) -> jax.Array:
    """The target's."""
    return self.restored.step

  @property
  def flax_mutables(self) -> Mapping[str, Any]:
    """None that we know."""
    return self.restored.flax_mutables


class Course:
  """What a run's draft learns, chunk by chunk, and where it is kept.

  Args:
    model: of the run, one of this project's.
    output_dir: of the run.
    online: how the draft learns.
    directory: of the draft's checkpoints, its folder 'draft' where None; a directory
      that holds some goes on from the last.

  Raises:
    ValueError: where the decoder has no draft that learns, or keeps no laws, or there
      are several processes.
  """

  def __init__(
    self,
    model: Decodes,
    output_dir: str,
    online: Online,
    directory: str | None = None,
  ):
    decoder = model.decoder
    if getattr(decoder, "kept", 0) != online.kept:
      raise ValueError(
        f"DECODER must be a SpeculativeDecoder whose `kept` is KEPT={online.kept}, got "
        f"a {type(decoder).__name__}. Add configs/runs/online.gin to a run of "
        "configs/spec_*.gin, and no beam."
      )
    check_learns(decoder.networks.get(_DRAFT))
    if jax.process_count() > 1:
      raise ValueError(
        f"Online learning runs in one process, got {jax.process_count()}: another "
        "would serve with another draft. Start it on one host."
      )
    self._network = decoder.networks[_DRAFT]
    self._online = online
    self._directory = epath.Path(directory or os.path.join(output_dir, _DRAFT))
    self._learner: Learner | None = None
    # Whose draws the draft has learned from; a greedy run has none.
    self._run = epath.Path(output_dir).absolute().as_posix()
    self._seed = None if model.sampling.greedy else model.seed

  def begun(self, params: Any) -> Learner:
    """Returns the draft as it begins, or goes on where the run stopped.

    Args:
      params: of the draft, as restored.

    Raises:
      ValueError: where another run's draft, or a damaged one, is there; or one that has
        learned from the very draws that this run would make.
    """
    drawn_by = self._recorded()["seeds"].get(str(self._seed), self._run)
    if drawn_by != self._run:
      raise ValueError(
        f"SEED={self._seed} was that of {drawn_by}, from which the draft in "
        f"{self._directory} has learned: it would know this run's draws, and outputs "
        "would not have the target's law. Set another SEED, or another ONLINE_DIR."
      )
    self._learner = Learner(self._network, params, self._online)
    where = str(self._directory)
    if self._learner.restore(where, self._is_written):
      step = self._learner.steps
      print(f"The draft goes on from {where}, step {step}.", file=sys.stderr)
    return self._learner

  def learn(self, path: str, served: Requests) -> None:
    """Learns from a chunk, and saves the draft.

    Args:
      path: of the chunk.
      served: its requests.
    """
    learner, before = self._learner, str(self._learner.steps)
    learner.learn(served)
    recorded = self._recorded()
    chunk = str(epath.Path(path).parent.absolute()), re.findall(r"chunk\d+", path)[-1]
    # The step before is the last one until this is saved.
    kept = {step: x for step, x in recorded["chunks"].items() if step == before}
    recorded["chunks"] = {**kept, str(learner.steps): chunk}
    if self._seed is not None:
      recorded["seeds"][str(self._seed)] = self._run
    self._directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(recorded)
    writer.write_atomically(self._directory / _RECORD, text, "online")
    learner.save(str(self._directory))

  def _recorded(self) -> dict[str, dict[str, Any]]:
    """Returns what was learned from: the last chunks by step, runs by their seeds.

    A chunk is its folder and its name.
    """
    path = self._directory / _RECORD
    return (
      json.loads(path.read_text()) if path.exists() else {"chunks": {}, "seeds": {}}
    )

  def _is_written(self, step: int) -> bool:
    """Returns whether T5X has put a marker to the chunk that a step ended with.

    It has not where the run was killed before: then the chunk is served again, by the
    draft as it was.
    """
    chunk = self._recorded()["chunks"].get(str(step))
    if chunk is None or not epath.Path(chunk[0]).exists():
      return True  # Not of T5X, or of a task that is done, whose chunks it removes.
    return any(epath.Path(chunk[0]).glob(f"*{chunk[1]}.COMPLETED"))


class CheckpointManager(pairing.CheckpointManager):
  """Restores each network's checkpoint, and the draft as it has learned."""

  def __init__(self, *args: Any, course: Course, **kwargs: Any):
    """Creates the manager; `course` is the run's, the others are the parent's."""
    super().__init__(*args, **kwargs)
    self._course = course

  def restore(self, *args: Any, **kwargs: Any) -> Served:
    """Returns the restored state, whose draft learns."""
    restored = super().restore(*args, **kwargs)
    return Served(restored, self._course.begun(restored.params[_DRAFT]))


def write_and_learn(
  path: str,
  inferences,
  task_ds,
  mode: str,
  *args: Any,
  write_fn: Callable[..., None],
  course: Course,
) -> None:
  """Writes a chunk, then has the draft learn from it; T5X calls it as `infer.write_fn`.

  Args:
    path: of the chunk.
    inferences: predictions and auxiliary values, an entry an example.
    task_ds: the examples.
    mode: predict_with_aux.
    *args: further ones of `write_fn`.
    write_fn: T5X's.
    course: the run's.

  Raises:
    ValueError: where there are no laws to learn from, or logits were NaN.
  """
  predictions, aux = inferences
  if missing := [name for name in LEARNED_FROM if name not in aux]:
    raise ValueError(
      f"Online learning needs mode predict_with_aux, got {mode!r}, whose outputs lack "
      f"{missing[0]!r}. Leave infer.mode as it is, or leave out online.gin."
    )
  inputs, law_tokens, law_probs = (aux[name] for name in LEARNED_FROM)
  aux = {name: x for name, x in aux.items() if name not in LEARNED_FROM}
  writer.write_decoded(
    path, (predictions, aux), task_ds, mode, *args, write_fn=write_fn
  )
  ids = (np.asarray(x, np.int32) for x in (inputs, predictions, law_tokens))
  course.learn(path, Requests(*ids, np.asarray(law_probs, np.float32)))
