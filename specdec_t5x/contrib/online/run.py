"""Online learning in `python -m t5x.infer`, for configs/contrib/online.gin.

T5X decodes a chunk of batches with the parameters of the train state, and writes the
chunk. Therefore the draft learns from a chunk after the write, and the train state
returns the draft's current parameters for each batch. Both are arguments of T5X, under
upstream T5X and under `t5x_runtime`.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.core
import jax
import numpy as np
from etils import epath
from jaxtyping import Int

from specdec_t5x import console
from specdec_t5x.contrib.online import learner as online_lib
from specdec_t5x.contrib.online.learner import Learner, Online, Requests
from specdec_t5x.contrib.online.rejections import (
  LEARNED_FROM,
  KeepRejections,
  Rejections,
)
from specdec_t5x.t5x_bridge import examples, learned, restore, writer
from specdec_t5x.t5x_bridge.macros import macro_names
from specdec_t5x.t5x_bridge.model import Decodes

_DRAFT = "draft"


@dataclasses.dataclass(frozen=True)
class Served:
  """T5X's restored train state with a learning draft, for T5X's decoding."""

  restored: Any
  learner: Learner

  @property
  def params(self) -> Mapping[str, Any]:
    """The parameters, with the draft's current parameters."""
    return flax.core.freeze({**self.restored.params, _DRAFT: self.learner.params})

  def __getattr__(self, name: str) -> Any:
    """Returns any other attribute of the restored state."""
    return getattr(self.restored, name)


class Course:
  """Online learning of a run's draft, chunk by chunk, with the draft's checkpoints.

  Args:
    model: the run's model, a model of this project.
    output_dir: the run's directory.
    online: the settings of online learning.
    directory: folder of the draft's checkpoints; None means the folder 'draft' of
      `output_dir`. With several shards, the folder's name gets a suffix, as in
      'draft-00000-of-00002'. Learning resumes from the folder's last checkpoint.

  Raises:
    ValueError: if the decoder has no draft that can learn, or keeps no distributions,
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
        f"DECODER must have an `observer` of KEPT={online.kept} tokens, got "
        f"{decoder.observer}. Add configs/contrib/online.gin to a run of "
        "configs/spec_*.gin."
      )
    self._network = decoder.networks.get(_DRAFT)
    with macro_names():
      online_lib.check_learns(self._network)
    if jax.process_count() > 1:
      raise ValueError(
        f"Online learning runs in one process, got {jax.process_count()}: a second "
        "process would serve with another draft. Start the command on one host."
      )
    self.model = model
    self._online = online
    self._output = epath.Path(output_dir)
    place = epath.Path(directory or self._output / _DRAFT)
    shard = examples.shard_of_command()
    if shard.num_shards > 1:
      suffix = f"{shard.index:05}-of-{shard.num_shards:05}"
      place = place.with_name(f"{place.name}-{suffix}")
    self._directory = str(place)
    self._saved = online_lib.Saved(self._directory, self._network)
    # A relative path stays valid if both directories are moved together.
    self._results = os.path.relpath(output_dir, self._directory)
    self._learner: Learner | None = None

  def check(self, provider: Any) -> None:
    """Checks, before any work, that the draft has not learned from the run's samples.

    Chunks among the run's results may be learned: T5X does not decode these again.

    Args:
      provider: the run's task or mixture.

    Raises:
      ValueError: if the draft has learned from samples that the run would draw again.
    """
    names = examples.drawn_names(provider)
    if not self.model.sampling.greedy and len(set(names)) < len(names):
      raise ValueError(
        f"Upstream T5X draws the {len(names)} tasks of {provider.name} with "
        "equal random numbers, and a draft must not serve a task after learning from "
        "another task. Run the tasks one by one, with a different SEED for every task."
      )
    steps = self._saved.checkpoints.steps()
    if steps and not self._counts(steps[-1]):
      steps.pop()
    chunks = self._saved.learned_from(steps[-1]) if steps else ()
    for chunk in learned.repeated(chunks, self.model, provider):
      if not self._is_written(chunk):
        raise ValueError(
          f"The draft in {self._directory} has learned from {chunk.name}, drawn with "
          f"SEED={chunk.seed}. A run with equal random numbers would not have the "
          "target's distribution. Set another SEED, or another ONLINE_DIR; or restore "
          f"the matching results in {self._output}."
        )

  def begun(self, params: Any, learned_from: Sequence[learned.Chunk]) -> Learner:
    """Returns the draft at the start of the run, or resumes from the last checkpoint.

    Args:
      params: the draft's restored parameters.
      learned_from: the chunks that the restored draft has learned from.
    """
    learner = Learner(self._network, params, self._online)
    learner.learned_from = tuple(learned_from)
    steps = self._saved.checkpoints.steps()
    if steps and not self._counts(steps[-1]):
      self._saved.checkpoints.drop_last()
    if learner.restore(self._directory):
      step = learner.steps
      console.say(f"The draft continues from {self._directory}, step {step}.")
    self._learner = learner
    return learner

  def learn(self, path: str, served: Requests, numbers: Int[np.ndarray, "R 2"]) -> None:
    """Learns from a chunk, and saves the draft.

    Args:
      path: path of the chunk.
      served: the chunk's requests.
      numbers: the feature `examples.EXAMPLE` of each request.
    """
    task, first = numbers[0].tolist()
    last = numbers[-1, 1].item()
    step = numbers[1, 1].item() - first if len(numbers) > 1 else 1
    # T5X may first write to .partial-<name>-<process>-chunk<number>.
    partial = re.compile(r"\.partial-(.*-of-\d+)-\d+(-chunk\d+)")
    chunk = learned.Chunk(
      seed=None if self.model.sampling.greedy else self.model.seed,
      task=task,
      places=(first, last, step),
      name=partial.sub(r"\1\2", os.path.basename(path)),
      results=self._results,
    )
    self._learner.learn(served)
    self._learner.learned_from += (chunk,)
    self._learner.save(self._directory)

  def _counts(self, step: int) -> bool:
    """Returns whether a saved step is valid: T5X has marked the last chunk as complete.

    If this run was killed before T5X's marker, T5X decodes the chunk again, with the
    draft before the step. Chunks of other runs always count.
    """
    chunks = self._saved.learned_from(step)
    is_ours = chunks and chunks[-1].results == self._results
    return not is_ours or self._is_written(chunks[-1])

  def _is_written(self, chunk: learned.Chunk) -> bool:
    """Returns whether T5X has marked a chunk, or the chunk's task, as complete here."""
    task = chunk.name.rpartition("-chunk")[0]
    markers = (f"{task}.COMPLETED", f"tmp-*/{chunk.name}.COMPLETED")
    return any(any(self._output.glob(marker)) for marker in markers)


def check_run(
  dataset_cfg, model: Decodes, *, check_fn: Callable[..., None], course: Course
) -> None:
  """Checks a run by `check_fn`, and the draft, as `infer.verify_matching_vocabs_fn`."""
  check_fn(dataset_cfg, model)
  course.check(examples.provider_of(dataset_cfg.mixture_or_task_name))


class CheckpointManager(restore.CheckpointManager):
  """Restores each network's checkpoint, and the learned draft."""

  def __init__(
    self, *args: Any, paths: Mapping[str, str | None], course: Course, **kwargs: Any
  ):
    """Creates the manager; `course` is the run's, the other arguments the parent's."""
    super().__init__(*args, paths=paths, **kwargs)
    self._course = course
    self._draft_path = paths[_DRAFT]

  def restore(self, *args: Any, **kwargs: Any) -> Served:
    """Returns the restored state with the learning draft."""
    restored = super().restore(*args, **kwargs)
    learned_from = learned.read(self._draft_path) or ()
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
  """Writes a chunk by T5X's `write_fn`, then trains the draft on the chunk.

  T5X calls this function as `infer.write_fn`, with predictions and auxiliary values of
  each example as `inferences`.

  Raises:
    ValueError: if there are no distributions to learn from, or logits were NaN.
  """
  predictions, aux = inferences
  aux = dict(aux)
  names = (*LEARNED_FROM, examples.EXAMPLE)
  if missing := [name for name in names if name not in aux]:
    raise ValueError(
      f"Online learning needs mode predict_with_aux, got {mode!r} without the output "
      f"{missing[0]!r}. Leave infer.mode at the default, or leave out online.gin."
    )
  inputs, tokens, probs, numbers = (np.asarray(aux.pop(name)) for name in names)
  results = (predictions, aux)
  writer.write_decoded(
    path, results, task_ds, mode, *args, write_fn=write_fn, model=course.model
  )
  rejections = Rejections(tokens, probs.astype(np.float32))
  served = Requests(inputs, np.asarray(predictions, np.int32), rejections)
  course.learn(path, served, numbers)
