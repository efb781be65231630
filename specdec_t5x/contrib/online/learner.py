"""Online speculative decoding: the draft learns while requests are served.

Source: Liu et al., "Online Speculative Decoding", arXiv 2310.07177: after some
requests one step of distillation on the positions where the target rejected the draft.
There both models read these again; here verification hands out the target's
distributions.

Shapes: R requests, E input length, T output length, K kept tokens, V vocabulary.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax.core import unfreeze
from jaxtyping import Array, Float, Int

from specdec_t5x.checkpoints.parameters import T5XParameters
from specdec_t5x.core.checks import is_whole
from specdec_t5x.network.functional import Network, lacks_encoder
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge import learned
from specdec_t5x.training import losses
from specdec_t5x.training import state as state_lib
from specdec_t5x.training.checkpoints import START, Checkpoints, claim
from specdec_t5x.training.objectives import Batch, Judged, Objective, Params, forward
from specdec_t5x.training.optimizers import Optimizer, Schedule

# The least mass of all tokens that are not kept: float32's rounding at 1.
_LEAST = 2.0**-24
_OPTIMIZER = Optimizer(Schedule("constant", 1e-3, 0), "adamw")


@dataclasses.dataclass(frozen=True)
class Requests:
  """Served requests, and the target's distributions where drafts were rejected.

  Attributes:
    inputs: what the encoder read, zero-padded.
    tokens: the outputs, zeros after the end of sequence.
    kept_tokens: of `rejections.Rejections`.
    kept_probs: of the same; zeros at places without a rejection.
  """

  inputs: Int[np.ndarray, "R E"]
  tokens: Int[np.ndarray, "R T"]
  kept_tokens: Int[np.ndarray, "R T K"]
  kept_probs: Float[np.ndarray, "R T K"]

  def batches(self, size: int) -> Iterator[Batch]:
    """Yields batches of `size` requests, in order.

    A last one that is not full has rows of zeros, which weigh nothing.
    """
    for first in range(0, len(self.inputs), size):
      rows = {
        name: _filled(x[first : first + size], size) for name, x in vars(self).items()
      }
      tokens, kept_probs = rows["tokens"], rows["kept_probs"]
      yield {
        "encoder_input_tokens": rows["inputs"],
        # Behind the start token, as T5X shifts: the distribution at a place is of its
        # token.
        "decoder_input_tokens": np.pad(tokens, ((0, 0), (1, 0)))[:, :-1],
        "decoder_target_tokens": tokens,
        "decoder_loss_weights": (kept_probs.sum(axis=-1) > 0).astype(np.float32),
        "kept_tokens": rows["kept_tokens"],
        "kept_probs": kept_probs,
      }


def _filled(rows, size):
  return np.pad(rows, [(0, size - len(rows))] + [(0, 0)] * (rows.ndim - 1))


@dataclasses.dataclass(frozen=True)
class RejectionDistillation(Objective):
  """A distance between the target's probs and the draft's where drafts were rejected.

  Of p its K likeliest tokens are known; all others count as one, for both
  distributions:

    forward_kl = sum_{x in K} p(x) log p(x) / q(x) + p(rest) log p(rest) / q(rest),

  at most the distance of the whole distributions, and 0 only where q agrees with what
  is known.

  Attributes:
    loss: a name in `losses.DISTILLATION_LOSSES`.
  """

  loss: str = "forward_kl"

  def __call__(self, network, params, batch, frozen, dropout_key=None) -> Judged:
    """Judges the logits of every place; those that count are the batch's weights."""
    del frozen, dropout_key
    logits = forward(network, params, batch)
    p = known_probs(batch["kept_probs"])
    q = lumped(logits, batch["kept_tokens"])
    values = losses.get_distillation_loss(self.loss)(p, q)
    return Judged(values, logits.argmax(-1) == batch["kept_tokens"][..., 0])


def known_probs(probs: Float[Array, "*B K"]) -> Float[Array, "*B K+1"]:
  """Returns log p of the kept tokens, and of all others together."""
  rest = 1 - probs.sum(axis=-1, keepdims=True)
  return jnp.log(jnp.maximum(jnp.concatenate([probs, rest], axis=-1), _LEAST))


def lumped(
  logits: Float[Array, "*B V"], tokens: Int[Array, "*B K"]
) -> Float[Array, "*B K+1"]:
  """Returns log q of some tokens, and of all others together."""
  log_q = jax.nn.log_softmax(logits.astype(jnp.float32))
  kept = jnp.take_along_axis(log_q, tokens, axis=-1)
  is_kept = jnp.zeros(log_q.shape, bool)
  is_kept = jnp.put_along_axis(is_kept, tokens, True, axis=-1, inplace=False)
  rest = jax.nn.logsumexp(jnp.where(is_kept, -jnp.inf, log_q), axis=-1, keepdims=True)
  return jnp.concatenate([kept, rest], axis=-1)


@dataclasses.dataclass(frozen=True)
class Online:
  """How a draft learns from what it serves.

  Attributes:
    interval: requests an optimizer's step.
    kept: tokens of the target's distribution that are kept of each rejected position.
    loss: a name in `losses.DISTILLATION_LOSSES`; the paper has forward_kl.
    optimizer: of the draft.
  """

  interval: int = 16
  kept: int = 32
  loss: str = "forward_kl"
  optimizer: Optimizer = _OPTIMIZER

  def __post_init__(self):
    losses.get_distillation_loss(self.loss)
    for name in ("interval", "kept"):
      if not is_whole(getattr(self, name), 1):
        raise ValueError(
          f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}."
        )


class Learner:
  """A draft that learns: a network and its parameters, which change as it does.

  It stands for the draft's `Model` where that is asked for. What it hands out as
  `params` is a copy (the paper's shadow copy), so a decode under way is not disturbed.

  Args:
    network: the draft, an encoder-decoder.
    params: its parameters, in the type and on the devices that it serves with.
    online: how it learns.
    learned_from: what it has learned from so far, where that is on record.
  """

  def __init__(
    self,
    network: Network,
    params: Params,
    online: Online,
    learned_from: Sequence[learned.Chunk] = (),
  ):
    check_learns(network)
    self.network, self.online = network, online
    self.learned_from = tuple(learned_from)
    self._like = unfreeze(params)
    state = state_lib.initial_state(self._like, online.optimizer)
    # On one device, however the draft serves: it is small, and steps are few.
    self.state = jax.device_put(state, jax.local_devices()[0])
    self.step_fn = state_lib.make_train_step(
      network, RejectionDistillation(online.loss), 0
    )
    self._saved = 0  # Its step in the directory that it is kept in.
    # What the draft is then follows from these, and from the requests.
    self._origin = {
      "network": dataclasses.asdict(network.config),
      "online": dataclasses.asdict(online),
      "checksum_of_the_first_parameters": _crc(state.params),
    }

  @property
  def steps(self) -> int:
    """Optimizer steps so far."""
    return int(self.state.step)

  @property
  def params(self) -> Params:
    """A copy of what the draft is now, as it serves."""
    return jax.tree.map(
      lambda new, old: jax.device_put(
        jnp.array(new, old.dtype, copy=True), old.sharding
      ),
      self.state.params,
      self._like,
    )

  def learn(self, served: Requests, chunk: learned.Chunk | None = None) -> list[float]:
    """Takes a step for each `interval` requests, and for what is left of them.

    Args:
      served: the requests.
      chunk: goes on record, as what they are under T5X.

    Returns:
      Each step's loss: the mean over its rejected positions, before the step.

    Raises:
      state.DivergedError: where a loss or a gradient is not finite.
    """
    found = []
    for batch in served.batches(self.online.interval):
      self.state, numbers = self.step_fn(self.state, batch, None)
      found.append(state_lib.finite(numbers, self.steps)["loss"])
    if chunk is not None:
      self.learned_from += (chunk,)
    return found

  def save(self, directory: str) -> None:
    """Writes the draft, as a T5X checkpoint, and its optimizer's state.

    Args:
      directory: gets checkpoint_<step> and optimizer_<step>, of the last two savings.

    Raises:
      ValueError: where it holds another draft's, another job has saved its own there,
        or it can't be written to.
    """
    claim(directory, self._origin)
    checkpoints = Saved(directory, self.network, self.learned_from).checkpoints
    last = max(checkpoints.steps(), default=0)
    if last != self._saved:
      raise ValueError(
        f"Another job has saved its draft in {directory} (step {last}, where this one "
        f"left step {self._saved}). Give each a directory of its own (ONLINE_DIR), or "
        "go on from what is there: run this command again (`Learner.restore`)."
      )
    checkpoints.save(self.state, START)
    self._saved = self.steps

  def restore(
    self, directory: str, counts: Callable[[int], bool] = lambda step: True
  ) -> bool:
    """Goes on from what was last saved; returns whether there was anything.

    Args:
      directory: as for `save`.
      counts: whether the last saved step does; else it is removed, for the one before.

    Raises:
      ValueError: where the directory holds another draft's, or is damaged.
    """
    saved = Saved(directory, self.network)
    checkpoints = saved.checkpoints
    if not checkpoints.steps():
      return False
    claim(directory, self._origin)
    if not counts(checkpoints.steps()[-1]):
      checkpoints.drop_last()
    found = checkpoints.restore(self.state)
    if found is not None:
      self.state, _ = found
      self.learned_from = saved.learned_from(self.steps)
      self._saved = self.steps
    return found is not None


@dataclasses.dataclass(frozen=True)
class Saved:
  """A learning draft's parameters on disk, each with what it has learned from.

  Attributes:
    directory: as for `Learner.save`.
    network: the draft.
    known: what parameters that are saved have learned from.
  """

  directory: str
  network: Network
  known: Sequence[learned.Chunk] = ()

  @property
  def checkpoints(self) -> Checkpoints:
    """The last two checkpoints.

    Two, because a run that is killed while it writes one, or before T5X knows of its
    chunk, has the other.
    """
    return Checkpoints(self.directory, self, keep=2)

  def save(self, step: int, params: Params) -> None:
    """Writes parameters and record; a kill leaves both or nothing that counts."""
    partial = epath.Path(self.directory) / "partial"
    if partial.exists():  # A killed run's.
      partial.rmtree()
    T5XParameters(self.network, str(partial)).save(step, params)
    written = partial / f"checkpoint_{step}"
    learned.write(written, self.known)
    written.rename(partial.with_name(written.name))
    partial.rmtree()

  def restore(self, step: int) -> Params:
    """Reads the parameters back."""
    return T5XParameters(self.network, self.directory).restore(step)

  def learned_from(self, step: int) -> tuple[learned.Chunk, ...]:
    """Returns what a checkpoint has learned from.

    Raises:
      ValueError: where it does not say, or that is damaged.
    """
    checkpoint = epath.Path(self.directory) / f"checkpoint_{step}"
    found = learned.read(checkpoint)
    if found is None:
      raise ValueError(
        f"{checkpoint} does not say what it has learned from ({learned.RECORD}), so it "
        "can't go on. Set another ONLINE_DIR; to begin with what this draft is, set "
        "DRAFT_CHECKPOINT_PATH to it, and another SEED than it has learned from."
      )
    return found


def _crc(params: Params) -> int:
  """Returns a checksum of all parameters."""
  total = 0
  for leaf in jax.tree.leaves(params):
    total = zlib.crc32(np.ascontiguousarray(np.asarray(leaf, np.float32)), total)
  return total


def check_learns(network: Any) -> None:
  """Raises a ValueError where a draft can't learn from the target's distributions."""
  if not isinstance(network, Transformer) or lacks_encoder(network):
    raise ValueError(
      "Online learning needs a draft model with an encoder and a decoder, got "
      f"{type(network).__name__}: heads, tables and copies are not trained on "
      "distributions at single places, and prompts are not read. Use "
      "DRAFTER='draft_model', or leave online learning out."
    )
