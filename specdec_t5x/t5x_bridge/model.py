"""The T5X models of this project: subclasses of T5X's models that hold a decoder."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
from etils import epy
from t5x import models

from specdec_t5x import console, tuning
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import invalid, is_whole
from specdec_t5x.decoding.contracts import Batch
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.state import Decoded, num_slots, row_keys
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import blank_variables, is_decoder_only
from specdec_t5x.t5x_bridge import sharding
from specdec_t5x.t5x_bridge.examples import EXAMPLE, PlainNumberedConverter, is_first
from specdec_t5x.t5x_bridge.macros import macro_names
from specdec_t5x.t5x_bridge.pace import Clock
from specdec_t5x.t5x_bridge.writer import COUNTS
from specdec_t5x.vocabularies.frames import end_ids_of

with epy.lazy_imports():
  import seqio

# The name of the policy's state in decoder_params and among the auxiliary values.
DECODE_STATE = "decode_state"


class Decodes:
  """A mix-in that makes a T5X model decode by a decoder of this project.

  T5X restores, partitions, feeds and scores the model like T5X's own models. The
  parameters are {network's name: parameters} for the decoder's networks.
  """

  # The time of the command's run; None outside of a run.
  clock: Clock | None = None

  def __init__(
    self,
    decoder: Decoder,
    sampling: Sampling,
    seed: int,
    default_decoder_params: models.DecoderParams | None,
    **vocabularies: seqio.Vocabulary,
  ):
    """Creates T5X's model, then checks and stores the settings of decoding.

    Args:
      decoder: the decoding loop; mode `score` scores with the decoder's target.
      sampling: temperature, top-k, top-p.
      seed: seed of the sampling.
      default_decoder_params: the number of decodes per input, and whether to return all
        decodes if the decodes are not sampled.
      **vocabularies: T5X's arguments; the end tokens end a sequence.

    Raises:
      ValueError: if a setting is out of range, or the vocabulary is larger than the
        network's.
    """
    super().__init__(
      module=decoder.target, optimizer_def=None, decode_fn=None, **vocabularies
    )
    self._default_decoder_params = default_decoder_params or models.DecoderParams()
    if not is_whole(self.num_decodes, 1):
      raise invalid("num_decodes", "a whole number of at least 1", self.num_decodes)
    if not is_whole(seed, 0) or seed >= 2**32:
      raise invalid("seed", "a whole number from 0 to 2^32 - 1", seed)
    largest = max(vocabulary.vocab_size for vocabulary in vocabularies.values())
    if largest > decoder.target.config.vocab_size:
      raise ValueError(
        f"The vocabulary has {largest} tokens, but the network's vocab_size is "
        f"{decoder.target.config.vocab_size}. Set VOCABULARY to the model's own, or "
        "vocab_size to the checkpoint's."
      )
    self.decoder = decoder
    self.sampling = sampling
    self.seed = seed
    # The decodes of this device, by rows of a call and maximal length of an output.
    self.tuned: dict[tuple[int, int], tuple[tuning.Job, Decoder]] = {}
    self.derived_bytes: dict[str, dict[str, int]] = {}
    self._end_ids: tuple[int, ...] = ()

  @property
  def optimizer_def(self) -> Any:
    """Raises an error if T5X's trainer or interactive model needs an optimizer."""
    raise ValueError(
      f"{type(self).__name__} decodes, and does not learn. To train a draft use python "
      "-m specdec_t5x.train. T5X's interactive model restores one checkpoint, but the "
      "model has a checkpoint per network: use specdec_t5x.generate."
    )

  @optimizer_def.setter
  def optimizer_def(self, value: None) -> None:
    """Accepts the assignment in T5X's constructor."""

  @abc.abstractmethod
  def read(self, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, int]:
    """Returns a batch's inputs [B, E], and the maximal number of tokens per output."""

  def check(self, lengths: Mapping[str, int], examples: int, shards: int = 1) -> None:
    """Raises a ValueError if decoder, sampling and batches are incompatible.

    Args:
      lengths: lengths of inputs and targets, in tokens.
      examples: number of examples in a batch, over all devices.
      shards: number of shards of the slots.
    """
    self.decoder.check(self.sampling, lengths["targets"], self.num_decodes)
    if (drafter := self.decoder.drafter) is None:
      return
    rows = examples * self.num_decodes
    if 0 < self.decoder.slots < rows:
      rows = self.decoder.slots // shards
    target = self.decoder.target
    input_length = lengths["inputs"]
    slots = 1 + num_slots(lengths["targets"], drafter.tree.size)
    if is_decoder_only(target):
      slots += input_length
      input_length = 0
    drafter.check(target, Batch(self.sampling, rows, input_length, slots))

  def adopt(self, target: Checkpoint) -> None:
    """Adopts the settings of the target's checkpoint, before T5X uses the model.

    Args:
      target: the target's checkpoint. Every other network has a checkpoint, too.

    Raises:
      ValueError: if neither the folder nor the vocabulary has an end token.
    """
    self._end_ids = target.generation.eos_ids or end_ids_of(self.output_vocabulary)
    if note := target.generation.note():
      console.announce(note)

  @property
  def num_decodes(self) -> int:
    """The number of decodes per input."""
    return self._default_decoder_params.num_decodes

  def returns_all(self, num_decodes: int) -> bool:
    """Returns whether a call returns all decodes of an input by default."""
    # The best of several samples is no sample of the target's distribution.
    is_sampled = num_decodes > 1 and not self.sampling.greedy
    return self._default_decoder_params.return_all_decodes or is_sampled

  def decoder_for(self, rows: int, max_length: int) -> Decoder:
    """Returns the decoder for a number of rows and a maximal length of outputs.

    Raises:
      ValueError: if the decoder decides by times that were not measured for this size.
    """
    if (rows, max_length) in self.tuned:
      return self.tuned[rows, max_length][1]
    if tuning.needs_times(self.decoder):
      raise ValueError(
        f"GAMMA_POLICY='auto' needs times of {rows} rows of {max_length} tokens, but "
        f"times are known for {sorted(self.tuned)}. Restore the model with "
        "restore.CheckpointManager, or set GAMMA_POLICY to 'fixed'."
      )
    return self.decoder

  def decode_state(self, examples: int) -> Any:
    """Returns `DECODE_STATE` of a first batch; None if no policy needs a state.

    `t5x_runtime` passes the state after each batch to the next batch. Upstream T5X
    does not.
    """
    if self.tuned and all(each.drafter is None for _, each in self.tuned.values()):
      return None
    return self.decoder.policy.start(examples * self.num_decodes)

  def get_initial_variables(self, rng, input_shapes, input_types=None):
    """Returns params and params_axes of all networks, by the networks' names.

    All parameters are NaN, because every network has a checkpoint. The parameters have
    the networks' `weights`. The result includes the arrays derived from parameters
    (`Decoder.derive`).
    """
    del rng, input_shapes, input_types
    made = {}
    for name, network in self.decoder.networks.items():
      made[name] = variables = blank_variables(network)
      for derived, make in self.decoder.derive(self.sampling, name).items():
        made[derived] = _made(make, variables)
      if rounding := rounded.of_weights(network.config):
        made[name] = {
          kind: rounded.within(variables[kind], tree)
          for kind, tree in _made(rounding, variables).items()
        }
    kinds = ("params", "params_axes")
    return flax.core.freeze(
      {kind: {name: x[kind] for name, x in made.items()} for kind in kinds}
    )

  @functools.cached_property
  def abstract_variables(self) -> Mapping[str, Any]:
    """The result of `get_initial_variables`, with abstract arrays."""
    return jax.eval_shape(lambda: self.get_initial_variables(None, None))

  def _compute_logits(self, params, *args, **kwargs):
    return super()._compute_logits(params["target"], *args, **kwargs)

  @macro_names()
  def predict_batch_with_aux(
    self,
    params,
    batch: Mapping[str, jax.Array],
    rng: jax.Array | None = None,
    decoder_params: Mapping[str, Any] | None = None,
    return_all_decodes: bool | None = None,
    num_decodes: int | None = None,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Decodes a batch, with T5X's signature and result.

    Args:
      params: parameters in the layout of `get_initial_variables`.
      batch: features for `read`; the optional feature example [B, 2] numbers the
        examples (`t5x_bridge.examples`).
      rng: key of this batch; `rng` and `seed` fix the samples of a batch without the
        feature `example`, and a batch with the feature does not use `rng`.
      decoder_params: may hold decode_state, the policy's state after the batch before.
      return_all_decodes: whether to return all decodes of an input, or only the best;
        None means `returns_all`.
      num_decodes: overrides the model's number of decodes per input.

    Returns:
      Tokens [B, T] and, per input, scores and `writer.COUNTS` (sums over an input's
      decodes); with `return_all_decodes` tokens [B, N, T] and scores [B, N], by
      increasing score; with decode_state the new state.

    Raises:
      ValueError: if these loops do not support an argument, or the batch lacks a
        feature.
    """
    settings = dict(decoder_params or {})
    state = settings.pop(DECODE_STATE, None)
    if settings:
      raise ValueError(
        f"decoder_params may hold {DECODE_STATE!r} alone, got {sorted(settings)}. Set "
        "TEMPERATURE, TOPK, TOPP and SEED instead; every setting compiles a program."
      )
    if self.clock:
      self.clock.tracing()
    inputs, max_length = self.read(batch)
    count = self.num_decodes if num_decodes is None else num_decodes
    rows = len(inputs) * count
    keys = self._keys(batch, rng, len(inputs))
    decoded = sharding.decode(
      self.decoder_for(rows, max_length),
      params,
      inputs,
      jax.vmap(lambda key: row_keys(key, count))(keys).reshape(rows),
      is_wanted=is_first(batch[EXAMPLE]) if EXAMPLE in batch else None,
      policy_state=state,
      sampling=self.sampling,
      max_length=max_length,
      eos_id=self._end_ids or end_ids_of(self.output_vocabulary),
    )
    if return_all_decodes is None:
      return_all_decodes = self.returns_all(count)
    predictions, aux = _package(decoded, len(inputs), count, return_all_decodes)
    if self.clock:
      self.clock.traced()
    if state is not None:
      aux[DECODE_STATE] = decoded.policy_state
    if decoded.observed is None:
      return predictions, aux
    # There is one decode per input: `decoder.check` raises an error otherwise.
    features = {name: batch[name] for name in (EXAMPLE,) if name in batch}
    features["encoder_inputs"] = inputs
    observed = self.decoder.observer.auxiliary(decoded.observed, features)
    return predictions, aux | observed

  def _keys(self, batch, key: jax.Array | None, rows: int) -> jax.Array:
    """Returns one key per example, from the example's place in the task.

    The key does not depend on the example's place in the batch.
    """
    if EXAMPLE not in batch:
      # The batch is not from T5X's `infer`, so keys depend on places in the batch.
      # T5X passes raw keys, uint32 [2].
      key = jax.random.key(0) if key is None else jax.random.wrap_key_data(key)
      return row_keys(jax.random.fold_in(key, self.seed), rows)
    key = jax.random.fold_in(jax.random.key(0), self.seed)

    def example_key(task, place):
      return jax.random.fold_in(jax.random.fold_in(key, task), place)

    return jax.vmap(example_key)(*batch[EXAMPLE].T)


class EncoderDecoderModel(Decodes, models.EncoderDecoderModel):
  """An encoder-decoder model with one of this project's decoding loops."""

  FEATURE_CONVERTER_CLS = PlainNumberedConverter("EncDecFeatureConverter")

  def __init__(
    self,
    decoder: Decoder,
    input_vocabulary: seqio.Vocabulary,
    output_vocabulary: seqio.Vocabulary,
    sampling: Sampling,
    seed: int = 0,
    default_decoder_params: models.DecoderParams | None = None,
  ):
    """Creates the model; the arguments are those of `Decodes`, and T5X's."""
    super().__init__(
      decoder,
      sampling,
      seed,
      default_decoder_params,
      input_vocabulary=input_vocabulary,
      output_vocabulary=output_vocabulary,
    )

  def read(self, batch):
    """Returns encoder_input_tokens [B, E], and the length of decoder_input_tokens."""
    return batch["encoder_input_tokens"], batch["decoder_input_tokens"].shape[1]


def _made(make, variables) -> dict[str, Any]:
  """Returns the arrays that `make` derives from parameters, and the logical axes."""
  made = make(variables["params"])
  axes = rounded.axes_of(made, variables["params_axes"])
  return {"params": made, "params_axes": axes}


def _package(decoded: Decoded, batch: int, num_decodes: int, return_all: bool):
  """Returns T5X's (predictions, aux), with decodes sorted by increasing score.

  Counts are sums over the decodes of an input.
  """
  tokens = decoded.tokens.reshape(batch, num_decodes, -1)
  scores = decoded.statistics.log_prob.reshape(batch, num_decodes)
  order = jnp.argsort(scores, axis=1)
  tokens = jnp.take_along_axis(tokens, order[..., None], axis=1)
  scores = jnp.take_along_axis(scores, order, axis=1)
  info = decoded.statistics
  columns = {x: info.emitted if x == "tokens" else getattr(info, x) for x in COUNTS}
  counts = {name: x.reshape(batch, -1).sum(axis=1) for name, x in columns.items()}
  if return_all:
    return tokens, {"scores": scores, **counts}
  return tokens[:, -1], {"scores": scores[:, -1], **counts}
