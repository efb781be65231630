"""Online speculative decoding: the draft learns while requests are served.

Source: Liu et al., "Online Speculative Decoding", arXiv 2310.07177. After a number of
requests, the draft takes a distillation step on the positions where the target rejected
the draft. In the paper, both models process these positions again. Here, verification
returns the target's distributions.

Shapes: R requests, E input length, T output length, K kept tokens, V vocabulary.
"""

import dataclasses
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
from specdec_t5x.training.objectives import Batch, Judged, Objective, Params, forward
from specdec_t5x.training.optimizers import Optimizer, Schedule

# The minimal probability of dropped tokens: float32's rounding at 1.
_LEAST = 2.0**-24
_OPTIMIZER = Optimizer(Schedule("constant", 1e-3, 0), "adam")


@dataclasses.dataclass(frozen=True)
class Requests:
  """Served requests, and the target's distributions at rejected positions."""

  inputs: Int[np.ndarray, "R E"]  # The encoder's inputs, zero-padded.
  tokens: Int[np.ndarray, "R T"]  # The outputs, zero-padded after EOS.
  rejections: Rejections

  def batches(self, size: int) -> Iterator[Batch]:
    """Yields batches of `size` requests; zero rows without weight fill up the last."""
    kept = self.rejections
    fields = self.inputs, self.tokens, kept.tokens, kept.probs
    arrays = [np.asarray(field) for field in fields]
    for first in range(0, len(self.inputs), size):
      parts = [array[first : first + size] for array in arrays]
      missing = size - len(parts[0])
      inputs, tokens, kept_tokens, kept_probs = (
        np.pad(part, [(0, missing), *[(0, 0)] * (part.ndim - 1)]) for part in parts
      )
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

  distance: losses.DistillationLoss = losses.forward_kl

  def __call__(self, network, params, batch, frozen, dropout_key=None) -> Judged:
    """Computes the loss at every place; the batch's weights select rejected places."""
    logits = forward(network, params, batch)
    p = known_probs(batch["kept_probs"])
    q = lumped(logits, batch["kept_tokens"])
    values = self.distance(p, q)
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

  # Requests per optimizer step.
  interval: int = knob(16, whole(1), macro="INTERVAL")
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
    self._like = unfreeze(params)
    state = state_lib.initial_state(self._like, online.optimizer)
    # One device is enough for training: the draft is small, and steps are rare.
    self.state = jax.device_put(state, jax.local_devices()[0])
    objective = RejectionDistillation(losses.get_distillation_loss(online.loss))
    self.step_fn = state_lib.make_train_step(network, objective, 0)

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

    Returns the loss before each step, the mean over the rejected positions.
    """
    step_losses = []
    for batch in served.batches(self.online.interval):
      self.state, numbers = self.step_fn(self.state, batch, None)
      step_losses.append(state_lib.finite(numbers, self.steps)["loss"])
    return step_losses

  def save(
    self, directory: epath.PathLike, learned_from: Sequence[learned.Chunk] = ()
  ) -> epath.Path:
    """Writes the draft as a T5X checkpoint, and returns the checkpoint's path.

    A kill leaves the whole checkpoint or none. The checkpoint drafts like any other. To
    sample with the checkpoint, set another seed: with an equal seed, the draft would
    know the random numbers of the samples.

    Args:
      directory: folder for checkpoint_<step>, which replaces the step's checkpoint.
      learned_from: the chunks of T5X that the draft has learned from, for the record.
    """
    partial = epath.Path(directory) / "partial"
    final = partial.with_name(f"checkpoint_{self.steps}")
    for path in (partial, final):  # From an earlier run.
      path.rmtree(missing_ok=True)
    T5XParameters(self.network, str(partial)).save(self.steps, self.state.params)
    learned.write(partial / final.name, learned_from)
    (partial / final.name).rename(final)
    partial.rmtree()
    return final


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
