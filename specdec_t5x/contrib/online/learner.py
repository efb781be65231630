"""Online speculative decoding: the draft learns while requests are served.

Source: Liu et al., "Online Speculative Decoding", arXiv 2310.07177. After a number of
requests, the draft takes a distillation step on the positions where the target rejected
the draft. In the paper, both models process these positions again. Here, verification
returns the target's distributions.

Shapes: R requests, E input length, T output length, K kept tokens, V vocabulary.
"""

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax.core import unfreeze
from jaxtyping import Array, Float, Int

from specdec_t5x.contrib.online.rejections import Rejections
from specdec_t5x.core.knobs import KnobError, check_knobs, knob, whole
from specdec_t5x.network.functional import Network, lacks_encoder
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge import learned
from specdec_t5x.t5x_bridge.restore import T5XParameters
from specdec_t5x.training import losses
from specdec_t5x.training import state as state_lib
from specdec_t5x.training.checkpoints import START, Checkpoints, claim
from specdec_t5x.training.objectives import Batch, Judged, Objective, Params, forward
from specdec_t5x.training.optimizers import Optimizer, Schedule

# The minimal probability of dropped tokens: float32's rounding at 1.
_LEAST = 2.0**-24
_OPTIMIZER = Optimizer(Schedule("constant", 1e-3, 0), "adamw")


@dataclasses.dataclass(frozen=True)
class Requests:
  """Served requests, and the target's distributions at rejected positions."""

  inputs: Int[np.ndarray, "R E"]  # The encoder's inputs, zero-padded.
  tokens: Int[np.ndarray, "R T"]  # The outputs, zero-padded after EOS.
  rejections: Rejections

  def batches(self, size: int) -> Iterator[Batch]:
    """Yields batches of `size` requests, in order.

    Zero rows without weight fill up the last batch.
    """
    kept = self.rejections
    arrays = [self.inputs, self.tokens, kept.tokens, kept.probs]
    arrays = [np.asarray(array) for array in arrays]
    for first in range(0, len(self.inputs), size):
      rows = [np.zeros((size, *array.shape[1:]), array.dtype) for array in arrays]
      for row, array in zip(rows, arrays, strict=True):
        part = array[first : first + size]
        row[: len(part)] = part
      inputs, tokens, kept_tokens, kept_probs = rows
      yield {
        "encoder_input_tokens": inputs,
        # Shifted by the start token, as in T5X: the distribution at a place predicts
        # the token at the place.
        "decoder_input_tokens": np.pad(tokens, ((0, 0), (1, 0)))[:, :-1],
        "decoder_target_tokens": tokens,
        "decoder_loss_weights": (kept_probs.sum(axis=-1) > 0).astype(np.float32),
        "kept_tokens": kept_tokens,
        "kept_probs": kept_probs,
      }


@dataclasses.dataclass(frozen=True)
class RejectionDistillation(Objective):
  """A distance between target's and draft's distributions at rejected positions.

  The K most likely tokens of p are known. The other tokens count as one token, for both
  distributions:

    forward_kl = sum_{x in K} p(x) log p(x) / q(x) + p(rest) log p(rest) / q(rest).

  This distance is at most the distance between the full distributions, and 0 only if q
  agrees with p on the K tokens.
  """

  loss: str = "forward_kl"  # A name in `losses.DISTILLATION_LOSSES`.

  def __call__(self, network, params, batch, frozen, dropout_key=None) -> Judged:
    """Computes the loss at every place; the batch's weights select rejected places."""
    del frozen, dropout_key
    logits = forward(network, params, batch)
    p = known_probs(batch["kept_probs"])
    q = lumped(logits, batch["kept_tokens"])
    values = losses.get_distillation_loss(self.loss)(p, q)
    return Judged(values, logits.argmax(-1) == batch["kept_tokens"][..., 0])


def known_probs(probs: Float[Array, "*B K"]) -> Float[Array, "*B K+1"]:
  """Returns log p of the kept tokens, and of the other tokens together."""
  prob_of_others = 1 - probs.sum(axis=-1, keepdims=True)
  lumped_probs = jnp.concatenate([probs, prob_of_others], axis=-1)
  return jnp.log(jnp.maximum(lumped_probs, _LEAST))


def lumped(
  logits: Float[Array, "*B V"], tokens: Int[Array, "*B K"]
) -> Float[Array, "*B K+1"]:
  """Returns log q of the given tokens, and of the other tokens together."""
  log_q = jax.nn.log_softmax(logits.astype(jnp.float32))
  log_q_of_tokens = jnp.take_along_axis(log_q, tokens, axis=-1)
  is_kept = jnp.zeros(log_q.shape, bool)
  is_kept = jnp.put_along_axis(is_kept, tokens, True, axis=-1, inplace=False)
  others = jnp.where(is_kept, -jnp.inf, log_q)
  log_q_of_others = jax.nn.logsumexp(others, axis=-1, keepdims=True)
  return jnp.concatenate([log_q_of_tokens, log_q_of_others], axis=-1)


@dataclasses.dataclass(frozen=True)
class Online:
  """The settings of online learning."""

  interval: int = knob(16, whole(1), "requests per optimizer step", "INTERVAL")
  kept: int = 32  # K of `rejections.KeepRejections`.
  # A name in `losses.DISTILLATION_LOSSES`; the paper uses forward_kl.
  loss: str = "forward_kl"
  optimizer: Optimizer = _OPTIMIZER

  def __post_init__(self):
    losses.get_distillation_loss(self.loss)
    check_knobs(self)


class Learner:
  """A draft that learns online: a network with changing parameters.

  A `Learner` takes the place of the draft's `Model`. The property `params` is a copy
  (the paper's shadow copy), so learning does not disturb a running decode.

  Args:
    network: the draft, an encoder-decoder.
    params: the draft's parameters, with the dtype and the devices of decoding.
    online: the settings of online learning.
  """

  def __init__(self, network: Network, params: Params, online: Online):
    check_learns(network)
    self.network = network
    self.online = online
    # The chunks of T5X that the draft has learned from, for the record.
    self.learned_from: tuple[learned.Chunk, ...] = ()
    self._like = unfreeze(params)
    state = state_lib.initial_state(self._like, online.optimizer)
    # One device is enough for training: the draft is small, and steps are rare.
    self.state = jax.device_put(state, jax.local_devices()[0])
    objective = RejectionDistillation(online.loss)
    self.step_fn = state_lib.make_train_step(network, objective, 0)
    self._saved = 0  # The last saved or restored step.
    checksum = 0
    for leaf in jax.tree.leaves(state.params):
      contents = np.ascontiguousarray(np.asarray(leaf, np.float32))
      checksum = zlib.crc32(contents, checksum)
    # These settings and the requests determine the draft after each step.
    self._origin = {
      "network": dataclasses.asdict(network.config),
      "online": dataclasses.asdict(online),
      "checksum_of_the_first_parameters": checksum,
    }

  @property
  def steps(self) -> int:
    """The number of optimizer steps so far."""
    return int(self.state.step)

  @property
  def params(self) -> Params:
    """A copy of the draft's current parameters, with decoding's dtype and devices."""
    return jax.tree.map(
      lambda new, old: jax.device_put(jnp.array(new, old.dtype), old.sharding),
      self.state.params,
      self._like,
    )

  def learn(self, served: Requests) -> list[float]:
    """Takes a step per `interval` requests, and a step for the remaining requests.

    Returns:
      The loss of each step: the mean over the rejected positions, before the step.

    Raises:
      state.DivergedError: if a loss or a gradient is not finite.
    """
    step_losses = []
    for batch in served.batches(self.online.interval):
      self.state, numbers = self.step_fn(self.state, batch, None)
      step_losses.append(state_lib.finite(numbers, self.steps)["loss"])
    return step_losses

  def save(self, directory: str) -> None:
    """Writes the draft as a T5X checkpoint, and the optimizer's state.

    Args:
      directory: folder for checkpoint_<step> and optimizer_<step>; the last two steps
        are kept.

    Raises:
      ValueError: if the folder holds another draft, another job has saved a draft in
        the folder, or the folder is not writable.
    """
    claim(directory, self._origin)
    checkpoints = Saved(directory, self.network, self.learned_from).checkpoints
    last = max(checkpoints.steps(), default=0)
    if last != self._saved:
      raise ValueError(
        f"Another job has saved a draft in {directory}: expected step {self._saved}, "
        f"got step {last}. Give every job a separate directory (ONLINE_DIR), or run "
        "the command again to continue from the saved draft (`Learner.restore`)."
      )
    checkpoints.save(self.state, START)
    self._saved = self.steps

  def restore(self, directory: str) -> bool:
    """Restores the last saved step, and returns whether there was a saved step.

    Args:
      directory: as for `save`.

    Raises:
      ValueError: if the folder holds another draft, or is damaged.
    """
    saved = Saved(directory, self.network)
    if not saved.checkpoints.steps():
      return False
    claim(directory, self._origin)
    self.state, _ = saved.checkpoints.restore(self.state)
    self.learned_from = saved.learned_from(self.steps)
    self._saved = self.steps
    return True


@dataclasses.dataclass(frozen=True)
class Saved:
  """A learning draft's saved parameters, with the record of learned chunks."""

  directory: str  # As for `Learner.save`.
  network: Network  # The draft.
  chunks: Sequence[learned.Chunk] = ()  # The chunks behind the next saved parameters.

  @property
  def checkpoints(self) -> Checkpoints:
    """The last two checkpoints.

    A run that is killed while writing a checkpoint, or before T5X marks the chunk as
    complete, resumes from the earlier checkpoint.
    """
    return Checkpoints(self.directory, self, keep=2)

  def save(self, step: int, params: Params) -> None:
    """Writes parameters and record; a kill leaves both, or no checkpoint."""
    partial = epath.Path(self.directory) / "partial"
    if partial.exists():  # The folder is from a killed run.
      partial.rmtree()
    T5XParameters(self.network, str(partial)).save(step, params)
    checkpoint = partial / f"checkpoint_{step}"
    learned.write(checkpoint, self.chunks)
    checkpoint.rename(partial.with_name(checkpoint.name))
    partial.rmtree()

  def restore(self, step: int) -> Params:
    """Returns the parameters of a saved step."""
    return T5XParameters(self.network, self.directory).restore(step)

  def learned_from(self, step: int) -> tuple[learned.Chunk, ...]:
    """Returns the chunks that a checkpoint has learned from.

    Raises:
      ValueError: if the checkpoint has no record, or the record is damaged.
    """
    checkpoint = epath.Path(self.directory) / f"checkpoint_{step}"
    chunks = learned.read(checkpoint)
    if chunks is None:
      raise ValueError(
        f"{checkpoint} has no record of the learned samples ({learned.RECORD}), so "
        "learning can't continue. Set another ONLINE_DIR. To start from the "
        "checkpoint's draft, set DRAFT_CHECKPOINT_PATH to the checkpoint and SEED to a "
        "value that the draft has not learned from."
      )
    return chunks


def check_learns(network: Any) -> None:
  """Raises a ValueError if a draft can't learn from the target's distributions."""
  if not isinstance(network, Transformer) or lacks_encoder(network):
    raise KnobError(
      "Online learning needs a draft model with an encoder and a decoder, got {kind}: "
      "online learning can't train heads, tables and copies on distributions at single "
      "places, and does not read prompts. Use {drafter}='draft_model', or leave online "
      "learning out.",
      kind=type(network).__name__,
    )
