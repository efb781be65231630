"""Online learning in `python -m t5x.infer`: what configs/contrib/online.gin binds.

T5X decodes a chunk of batches with what its train state holds, and writes it. So the
draft learns from a chunk when it is written, and the train state holds the draft as it
is when a batch asks for it: two arguments of T5X's own, under both providers.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.core
import jax
import numpy as np
from etils import epath
from jaxtyping import Int

from specdec_t5x.contrib.online import learner as online_lib
from specdec_t5x.contrib.online.learner import Learner, Online, Requests
from specdec_t5x.contrib.online.rejections import LEARNED_FROM, KeepRejections
from specdec_t5x.t5x_bridge import examples, learned, pairing, writer
from specdec_t5x.t5x_bridge.model import Decodes

_DRAFT = "draft"


@dataclasses.dataclass(frozen=True)
class Served:
  """T5X's train state, as restored, with a draft that changes: all that T5X reads."""

  restored: Any
  learner: Learner

  @property
  def params(self) -> Mapping[str, Any]:
    """The parameters, the draft's as they now are."""
    return flax.core.freeze({**self.restored.params, _DRAFT: self.learner.params})

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
    directory: of the draft's checkpoints, its folder 'draft' where None; one of several
      shards has its own, as 'draft-00000-of-00002'. A directory that holds some goes on
      from the last.

  Raises:
    ValueError: where the decoder has no draft that learns, or keeps no distributions,
      or there are several processes.
  """

  def __init__(
    self,
    model: Decodes,
    output_dir: str,
    online: Online,
    directory: str | None = None,
  ):
    decoder = model.decoder
    if decoder.observer != KeepRejections(online.kept):
      raise ValueError(
        f"DECODER must be a SpeculativeDecoder whose `observer` keeps "
        f"KEPT={online.kept} tokens, got a {type(decoder).__name__}. Add "
        "configs/contrib/online.gin to a run of configs/spec_*.gin, and no beam."
      )
    self._network = decoder.networks.get(_DRAFT)
    online_lib.check_learns(self._network)
    if jax.process_count() > 1:
      raise ValueError(
        f"Online learning runs in one process, got {jax.process_count()}: another "
        "would serve with another draft. Start it on one host."
      )
    self._model, self._online = model, online
    self._output = epath.Path(output_dir)
    place = epath.Path(directory or self._output / _DRAFT)
    shard = examples.shard_of_command()
    if shard.num_shards > 1:
      suffix = f"{shard.index:05}-of-{shard.num_shards:05}"
      place = place.with_name(f"{place.name}-{suffix}")
    self._directory = str(place)
    # The same where both have been moved together.
    self._results = os.path.relpath(output_dir, self._directory)
    self._learner: Learner | None = None

  def check(self, provider: Any) -> None:
    """Checks, before any work, that the draft knows nothing of what will be drawn.

    Args:
      provider: the task or mixture of the run.

    Raises:
      ValueError: where it has learned from what is not among the results here.
    """
    draws = learned.Draws.of_run(self._model, provider)
    if draws.seed is not None and len(set(draws.tasks)) < len(draws.tasks):
      raise ValueError(
        f"Upstream T5X draws the {len(draws.tasks)} tasks of {provider.name} by the "
        "same random numbers, and a draft that has learned from one must not serve the "
        "next. Run its tasks one by one, each with a SEED of its own."
      )
    saved = online_lib.Saved(self._directory, self._network)
    steps = saved.checkpoints.steps()
    if steps and not self._counts(steps[-1]):
      steps.pop()
    known = saved.learned_from(steps[-1]) if steps else ()
    self._refuse([x for x in draws.among(known) if not self._is_written(x)])

  def begun(self, params: Any, learned_from: Sequence[learned.Chunk]) -> Learner:
    """Returns the draft as it begins, or goes on where the run stopped.

    Args:
      params: of the draft, as restored.
      learned_from: what it had learned from before.
    """
    learner = Learner(self._network, params, self._online, learned_from)
    if learner.restore(self._directory, self._counts):
      step = learner.steps
      print(f"The draft goes on from {self._directory}, step {step}.", file=sys.stderr)
    self._learner = learner
    return learner

  def learn(self, path: str, served: Requests, numbers: Int[np.ndarray, "R 2"]) -> None:
    """Learns from a chunk, and saves the draft.

    Args:
      path: of the chunk.
      served: its requests.
      numbers: which examples they are, `examples.EXAMPLE` of each.

    Raises:
      ValueError: where the draft has learned from these very draws before.
    """
    # T5X may write to another name first: .partial-<name>-<process>-chunk<number>.
    partial = r"^\.partial-|(?<=-of-\d{5})-\d+(?=-chunk\d+$)"
    task, first = numbers[0].tolist()
    last = numbers[-1, 1].item()
    chunk = learned.Chunk(
      seed=None if self._model.sampling.greedy else self._model.seed,
      task=task,
      places=(first, last, numbers[1, 1].item() - first if len(numbers) > 1 else 1),
      name=re.sub(partial, "", os.path.basename(path)),
      results=self._results,
    )
    self._refuse(chunk.draws.among(self._learner.learned_from))
    self._learner.learn(served, chunk)
    self._learner.save(self._directory)

  def _refuse(self, known: Sequence[learned.Chunk]) -> None:
    if known:
      raise ValueError(
        f"The draft in {self._directory} has learned from {known[0].name}, drawn with "
        f"SEED={known[0].seed}, which this run would draw again: by random numbers "
        "that the draft knows, so outputs would not have the target's distribution. "
        "Set another SEED, or another ONLINE_DIR; or bring back the results that it "
        f"belongs to, in {self._output}."
      )

  def _counts(self, step: int) -> bool:
    """Returns whether a saved step does: T5X knows of the chunk that it ended with.

    It does not where this run was killed before: then the chunk is served again, by the
    draft as it was. Whether another run's chunk was written is not asked.
    """
    known = online_lib.Saved(self._directory, self._network).learned_from(step)
    is_ours = known and known[-1].results == self._results
    return not is_ours or self._is_written(known[-1])

  def _is_written(self, chunk: learned.Chunk) -> bool:
    """Returns whether T5X has put a marker to a chunk here, or to its whole task."""
    task = chunk.name.rpartition("-chunk")[0]
    markers = (f"{task}.COMPLETED", f"tmp-*/{chunk.name}.COMPLETED")
    return any(any(self._output.glob(marker)) for marker in markers)


def check_run(
  dataset_cfg, model: Decodes, *, check_fn: Callable[..., None], course: Course
) -> None:
  """Checks a run by `check_fn`, and its draft, as `infer.verify_matching_vocabs_fn`."""
  check_fn(dataset_cfg, model)
  course.check(examples.provider_of(dataset_cfg.mixture_or_task_name))


class CheckpointManager(pairing.CheckpointManager):
  """Restores each network's checkpoint, and the draft as it has learned."""

  def __init__(
    self, *args: Any, paths: Mapping[str, str | None], course: Course, **kwargs: Any
  ):
    """Creates the manager; `course` is the run's, the others are the parent's."""
    super().__init__(*args, paths=paths, **kwargs)
    self._course, self._first = course, paths[_DRAFT]

  def restore(self, *args: Any, **kwargs: Any) -> Served:
    """Returns the restored state, whose draft learns."""
    restored = super().restore(*args, **kwargs)
    learned_from = learned.read(self._first) or ()
    return Served(restored, self._course.begun(restored.params[_DRAFT], learned_from))


def write_and_learn(
  path: str,
  inferences,
  task_ds,
  mode: str,
  *args: Any,
  write_fn: Callable[..., None],
  course: Course,
) -> None:
  """Writes a chunk by T5X's `write_fn`, then has the draft learn from it.

  T5X calls it as `infer.write_fn`, with predictions and auxiliary values of each
  example as `inferences`.

  Raises:
    ValueError: where there are no distributions to learn from, or logits were NaN, or
      the draft has learned from these very draws.
  """
  predictions, aux = inferences
  names = (*LEARNED_FROM, examples.EXAMPLE)
  if missing := [name for name in names if name not in aux]:
    raise ValueError(
      f"Online learning needs mode predict_with_aux, got {mode!r}, whose outputs lack "
      f"{missing[0]!r}. Leave infer.mode as it is, or leave out online.gin."
    )
  inputs, kept_tokens, kept_probs, numbers = (np.asarray(aux[name]) for name in names)
  aux = {name: x for name, x in aux.items() if name not in names}
  writer.write_decoded(
    path, (predictions, aux), task_ds, mode, *args, write_fn=write_fn
  )
  ids = (np.asarray(x, np.int32) for x in (inputs, predictions, kept_tokens))
  course.learn(path, Requests(*ids, kept_probs.astype(np.float32)), numbers)
