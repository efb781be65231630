"""Online learning in `python -m t5x.infer`, for configs/contrib/online.gin.

T5X decodes a chunk of batches with the parameters of the train state, and writes the
chunk. Therefore the draft learns from a chunk after the write, and the train state
returns the draft's current parameters for each batch. Both are arguments of T5X, under
upstream T5X and under `t5x_runtime`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.core
import jax
import numpy as np
from etils import epath
from jaxtyping import Int

from specdec_t5x import console
from specdec_t5x.contrib.online.learner import Learner, Online, Requests, check_learns
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
  """Online learning of a run's draft, chunk by chunk, with the draft's checkpoint.

  A learned draft is saved after every chunk, as checkpoint_<step> in the folder 'draft'
  of `output_dir`. With several shards, the folder's name gets a suffix, as in
  'draft-00000-of-00002'. If a run was killed, learning starts anew from the restored
  draft, which knows the random numbers of no sample. The finished chunks stay.

  Args:
    model: the run's model, a model of this project.
    output_dir: the run's directory.
    draft_path: path of the checkpoint that the draft starts from.
    online: the settings of online learning.
  """

  def __init__(
    self, model: Decodes, output_dir: str, draft_path: str | None, online: Online
  ):
    self.model = model
    self._draft_path = draft_path
    self._online = online
    shard = examples.shard_of_command()
    suffix = f"-{shard.index:05}-of-{shard.num_shards:05}"
    name = _DRAFT + suffix if shard.num_shards > 1 else _DRAFT
    self._directory = epath.Path(output_dir) / name
    self._network = model.decoder.networks.get(_DRAFT)
    self._learner: Learner | None = None
    self._learned_from: tuple[learned.Chunk, ...] = ()

  def check(self, provider: Any) -> None:
    """Checks the decoder, the processes and the run's task or mixture, `provider`.

    Raises:
      ValueError: if the decoder has no draft that can learn, or keeps no distributions,
        there are several processes, or two tasks would share random numbers.
    """
    observer = self.model.decoder.observer
    if observer != KeepRejections(self._online.kept):
      raise ValueError(
        f"DECODER must have an `observer` of KEPT={self._online.kept} tokens, got "
        f"{observer}. Add configs/contrib/online.gin to a run of configs/spec_*.gin."
      )
    with macro_names():
      check_learns(self._network)
    if jax.process_count() > 1:
      raise ValueError(
        f"Online learning runs in one process, got {jax.process_count()}: a second "
        "process would serve with another draft. Start the command on one host."
      )
    names = examples.drawn_names(provider)
    if not self.model.sampling.greedy and len(set(names)) < len(names):
      raise ValueError(
        f"Upstream T5X draws the {len(names)} tasks of {provider.name} with equal "
        "random numbers, and a draft must not serve a task after learning from another "
        "task. Run the tasks one by one, with a different SEED for every task."
      )

  def begin(self, restored: Any) -> Served:
    """Returns the restored train state with the draft at the start of the run."""
    if earlier := sorted(path.name for path in self._directory.glob("checkpoint_*")):
      console.say(
        f"Learning starts anew from DRAFT_CHECKPOINT_PATH. The next chunk's draft "
        f"replaces {', '.join(earlier)} of an earlier run in {self._directory}. "
        "Finished chunks are kept."
      )
    self._learned_from = learned.read(self._draft_path) or ()
    self._learner = Learner(self._network, restored.params[_DRAFT], self._online)
    return Served(restored, self._learner)

  def learn(self, served: Requests, numbers: Int[np.ndarray, "R 2"]) -> None:
    """Learns from a chunk, and saves the draft.

    Args:
      served: the chunk's requests.
      numbers: the feature `examples.EXAMPLE` of each request.
    """
    task, first = numbers[0].tolist()
    last = numbers[-1, 1].item()
    step = numbers[1, 1].item() - first if len(numbers) > 1 else 1
    seed = None if self.model.sampling.greedy else self.model.seed
    self._learner.learn(served)
    self._learned_from += (learned.Chunk(seed, task, (first, last, step)),)
    earlier = set(self._directory.glob("checkpoint_*"))
    saved = self._learner.save(self._directory, self._learned_from)
    for checkpoint in earlier - {saved}:
      checkpoint.rmtree()


def check_run(
  dataset_cfg, model: Decodes, *, check_fn: Callable[..., None], course: Course
) -> None:
  """Checks `course`, and the run by `check_fn`; `infer.verify_matching_vocabs_fn`."""
  course.check(examples.provider_of(dataset_cfg.mixture_or_task_name))
  check_fn(dataset_cfg, model)


class CheckpointManager(restore.CheckpointManager):
  """Restores each network's checkpoint for a run whose draft learns."""

  def __init__(self, *args: Any, course: Course, **kwargs: Any):
    """Creates the manager; `course` is the run's, the other arguments the parent's."""
    super().__init__(*args, **kwargs)
    self._course = course

  def restore(self, *args: Any, **kwargs: Any) -> Served:
    """Returns the restored state with the learning draft."""
    return self._course.begin(super().restore(*args, **kwargs))


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
  course.learn(served, numbers)
