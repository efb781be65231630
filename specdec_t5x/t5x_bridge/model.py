"""The T5X models of this project: one for each of T5X's, holding a decoder."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
from etils import epy
from jaxtyping import Array, Int, Key
from t5x import models

from specdec_t5x import tuning
from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoders import Decoder
from specdec_t5x.decoding.state import Decoded, StepInfo, num_slots, row_keys
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import initial_variables, is_decoder_only
from specdec_t5x.t5x_bridge import pace
from specdec_t5x.t5x_bridge.examples import (
  ALONE,
  EXAMPLE,
  Shard,
  is_first,
  number_of,
  numbered,
)
from specdec_t5x.vocabularies.frames import end_ids_of

with epy.lazy_imports():
  import seqio

# The feature, and the auxiliary value, of what drafts know of earlier batches.
KNOWN = "known"
DECODE_RNG = "decode_rng"  # The one of T5X's decoder_params that is not built in.


class Decodes:
  """Mixed into one of T5X's models: it decodes as its decoder does.

  T5X restores, partitions, feeds and scores it like its own; parameters are those of
  the decoder's networks, each under its name.
  """

  _converter = None  # Another one than T5X's class has.
  _source = ("", ALONE)

  def __init__(
    self,
    decoder: Decoder,
    sampling: Sampling,
    seed: int,
    default_decoder_params: models.DecoderParams | None,
    **of_t5x: Any,
  ):
    """Creates T5X's model, then checks and keeps what decoding needs."""
    super().__init__(
      module=decoder.target, optimizer_def=None, decode_fn=None, **of_t5x
    )
    self._default_decoder_params = default_decoder_params or models.DecoderParams()
    count = self._default_decoder_params.num_decodes
    if not is_whole(count, 1):
      raise ValueError(
        f"NUM_DECODES must be a whole number of at least 1, got {count!r}."
      )
    if not is_whole(seed, 0) or seed >= 2**32:
      raise ValueError(f"SEED must be a whole number from 0 to 2^32 - 1, got {seed!r}.")
    vocabularies = self.input_vocabulary, self.output_vocabulary
    largest = max(vocabulary.vocab_size for vocabulary in vocabularies)
    if largest > decoder.target.config.vocab_size:
      raise ValueError(
        f"The vocabulary has {largest} tokens, but the network's vocab_size is "
        f"{decoder.target.config.vocab_size}. Set VOCABULARY to the model's own, or "
        "vocab_size to the checkpoint's."
      )
    self.decoder, self.sampling, self.seed = decoder, sampling, seed
    self._end_ids = None

  @property
  def optimizer_def(self) -> Any:
    """What T5X's trainer and interactive model ask for, and nothing that decodes.

    Raises:
      ValueError: always; `training.distillation` has a model that learns.
    """
    raise ValueError(
      f"{type(self).__name__} decodes, and does not learn. T5X's trainer takes "
      "configs/train/t5x_distill.gin; T5X's interactive model restores one checkpoint, "
      "where this one has one a network: use specdec_t5x.generate."
    )

  @optimizer_def.setter
  def optimizer_def(self, value: None) -> None:
    """T5X's constructor sets it."""

  @abc.abstractmethod
  def read(self, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, int]:
    """Returns the inputs [B, E] of a batch, and the most tokens of an output."""

  def check_max_length(self, max_length: int) -> None:
    """Raises a ValueError where decoder, sampling and max_length do not go together."""
    count = self._default_decoder_params.num_decodes
    self.decoder.check(self.sampling, max_length, count)

  def check_batch(
    self, examples: int, lengths: Mapping[str, int], shards: int = 1
  ) -> None:
    """Raises a ValueError where the drafter can't draft for batches of this size.

    Args:
      examples: of a batch, over all devices.
      lengths: of inputs and targets.
      shards: of the rows that take turns.
    """
    drafter = self.decoder.drafter
    if drafter is None:
      return
    rows = examples * self._default_decoder_params.num_decodes
    if 0 < self.decoder.slots < rows:
      rows = self.decoder.slots // shards
    target, inputs = self.decoder.target, lengths["inputs"]
    slots = 1 + num_slots(lengths["targets"], drafter.tree.size)
    if is_decoder_only(target):
      inputs, slots = 0, slots + inputs
    vocab_size = target.config.vocab_size
    drafter.check_batch(self.sampling, vocab_size, rows, inputs, slots)

  def number_examples(self, task: str = "", shard: Shard = ALONE) -> None:
    """Says which examples it will be given; `t5x_runtime` says so itself.

    Args:
      task: its name.
      shard: which part of the task.
    """
    self._source = task, shard

  @property
  def FEATURE_CONVERTER_CLS(self) -> type[seqio.FeatureConverter]:
    """T5X's name for what makes the features, which are numbered here."""
    return numbered(self._converter or super().FEATURE_CONVERTER_CLS, *self._source)

  @FEATURE_CONVERTER_CLS.setter
  def FEATURE_CONVERTER_CLS(self, converter: type[seqio.FeatureConverter]) -> None:
    """T5X's constructor sets another converter than the class's."""
    self._converter = converter

  def takes_plain_features(self) -> bool:
    """Returns whether `plain_features` makes its features; `t5x_runtime` asks."""
    return self._converter is None and hasattr(self, "plain_features")

  @property
  def end_ids(self) -> tuple[int, ...]:
    """The tokens that end an output: the target's folder's, else the vocabulary's."""
    return self._end_ids or end_ids_of(self.output_vocabulary)

  def follow(self, generation: Generation) -> None:
    """Ends outputs as the target's folder says.

    Raises:
      ValueError: where the folder asks for another distribution than the target's, or
        where neither the folder nor the vocabulary has an end token.
    """
    generation.check()
    self._end_ids = generation.eos_ids or end_ids_of(self.output_vocabulary)

  @property
  def returns_all(self) -> bool:
    """Whether it returns all decodes of an input, unless it is told."""
    return self._returns_all(self._default_decoder_params.num_decodes)

  def _returns_all(self, num_decodes: int) -> bool:
    # The best of several samples is no sample of the target's distribution.
    is_sampled = num_decodes > 1 and not self.sampling.greedy
    return self._default_decoder_params.return_all_decodes or is_sampled

  def nothing_known(self, examples: int) -> Any:
    """Returns the feature `KNOWN` of a first batch; None where there is none.

    `t5x_runtime` gives each batch what the one before left; upstream does not.
    """
    rows = examples * self._default_decoder_params.num_decodes
    return self.decoder.first_policy_state(rows)

  def get_initial_variables(self, rng, input_shapes, input_types=None):
    """Returns params and params_axes of all networks, each under its name.

    In the networks' weights; and the arrays derived of these (`Decoder.derived`).
    """
    del input_shapes, input_types  # No parameter depends on them.
    networks = self.decoder.networks
    # Of the new style, as elsewhere: so each network is traced once.
    keys = jax.random.split(_typed_key(rng), len(networks))
    initialised = {
      name: initial_variables(network, key)
      for (name, network), key in zip(networks.items(), keys, strict=True)
    }
    for network in networks:
      for name, make in self.decoder.derived(self.sampling, network).items():
        initialised[name] = _made(make, initialised[network])
    for name, network in networks.items():
      if rounding := rounded.of_weights(network.config):
        made, whole = _made(rounding, initialised[name]), initialised[name]
        initialised[name] = {
          kind: rounded.within(whole[kind], made[kind]) for kind in made
        }
    return flax.core.freeze(
      {
        kind: {name: variables[kind] for name, variables in initialised.items()}
        for kind in ("params", "params_axes")
      }
    )

  def _compute_logits(self, params, *args, **kwargs):
    return super()._compute_logits(params["target"], *args, **kwargs)

  def predict_batch_with_aux(
    self,
    params,
    batch: Mapping[str, jax.Array],
    rng: jax.Array | None = None,
    decoder_params: Mapping[str, Any] | None = None,
    return_all_decodes: bool | None = None,
    num_decodes: int | None = None,
    prompt_with_targets: bool = False,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Decodes a batch; T5X's signature and result.

    Args:
      params: as `get_initial_variables` lays them out.
      batch: what `read` takes; example [B, 2], if there, tells whose samples they are
        (`t5x_bridge.examples`).
      rng: key of this batch: with `seed` it fixes the samples of a batch without
        `example`, and is not used elsewhere.
      decoder_params: may hold decode_rng, as key data: one key [2] in place of `rng`,
        or one an example [B, 2], of which its samples are made alone. All else is fixed
        when the model is built.
      return_all_decodes: whether to return all decodes of an input or the best alone;
        where None, all if they are sampled, else as `default_decoder_params` says.
      num_decodes: overrides the model's own.
      prompt_with_targets: not supported.

    Returns:
      Tokens [B, T] and, per input, scores, tokens, target_calls, drafted, accepted,
      acceptance_mass and acceptance_positions (counts are sums over its decodes); with
      `return_all_decodes` tokens [B, N, T] and scores [B, N], by increasing score.

    Raises:
      ValueError: where a setting is asked for that these loops do not have, or the
        batch lacks a feature.
    """
    _refuse(prompt_with_targets, decoder_params)
    pace.tracing()
    inputs, max_length = self.read(batch)
    keys = self._keys(batch, _one_key(rng, decoder_params), len(inputs))
    request = {"policy_state": batch.get(KNOWN)}
    if EXAMPLE in batch:
      request["is_wanted"] = is_first(batch[EXAMPLE])
    (predictions, aux), decoded = self.decode(
      params, inputs, keys, max_length, num_decodes, return_all_decodes, **request
    )
    pace.traced()
    if KNOWN in batch:
      aux[KNOWN] = decoded.policy_state
    if decoded.observed is None:
      return predictions, aux
    # Of one decode an input: `decoder.check` saw to it.
    given = {"encoder_inputs": inputs}
    given |= {EXAMPLE: batch[EXAMPLE]} if EXAMPLE in batch else {}
    kept = self.decoder.observer.auxiliary(decoded.observed, given)
    return predictions, aux | kept

  def decode(
    self,
    params,
    inputs: Int[Array, "B E"],
    keys: Key[Array, "B"],
    max_length: int,
    num_decodes: int | None = None,
    return_all_decodes: bool | None = None,
    **request: Any,
  ) -> tuple[tuple[jax.Array, dict[str, jax.Array]], Decoded]:
    """Returns what `predict_batch_with_aux` does, and the decode that it was made of.

    Args:
      params: as for `predict_batch_with_aux`, and so are the numbers of decodes.
      inputs: encoder tokens, or prompts, zero-padded.
      keys: one an input.
      max_length: the most tokens of an output.
      num_decodes: overrides the model's own.
      return_all_decodes: whether to return all decodes of an input.
      **request: further arguments of `Decoder.decode`.
    """
    defaults, rows = self._default_decoder_params, len(inputs)
    count = defaults.num_decodes if num_decodes is None else num_decodes
    if return_all_decodes is None:
      return_all_decodes = self._returns_all(count)
    keys = jax.vmap(lambda key: row_keys(key, count))(keys).reshape(rows * count)
    tuned = tuning.of_rows(self.decoder, rows * count, self.sampling, max_length)
    decoded = tuned.decode(
      params, inputs, keys, self.sampling, max_length, self.end_ids, **request
    )
    return _package(decoded, rows, count, return_all_decodes), decoded

  def _keys(self, batch, key: jax.Array | None, rows: int) -> jax.Array:
    """Returns one key an example, which depends on its place, not on the batch's."""
    if key is not None and key.ndim:
      return key
    if EXAMPLE not in batch:  # Not from T5X's `infer`: rows go by their places in it.
      key = jax.random.key(0) if key is None else key
      return row_keys(jax.random.fold_in(key, self.seed), rows)
    key = jax.random.fold_in(jax.random.key(0), self.seed)
    fold = lambda task, place: jax.random.fold_in(jax.random.fold_in(key, task), place)
    return jax.vmap(fold)(*batch[EXAMPLE].T)


class EncoderDecoderModel(Decodes, models.EncoderDecoderModel):
  """An encoder-decoder whose decoding is one of this project's loops."""

  def __init__(
    self,
    decoder: Decoder,
    input_vocabulary: seqio.Vocabulary,
    output_vocabulary: seqio.Vocabulary,
    sampling: Sampling,
    seed: int = 0,
    default_decoder_params: models.DecoderParams | None = None,
    feature_converter_cls: type[seqio.FeatureConverter] | None = None,
  ):
    """Creates the model.

    Args:
      decoder: how it decodes; its target is also what `score` mode scores with.
      input_vocabulary: of the inputs.
      output_vocabulary: of the outputs; its end tokens end a sequence.
      sampling: temperature, top-k, top-p.
      seed: of the sampling.
      default_decoder_params: how many decodes an input, and whether to return all of
        them where they are not sampled.
      feature_converter_cls: another converter than `seqio.EncDecFeatureConverter`.

    Raises:
      ValueError: where a setting is out of its range, or settings do not go together.
    """
    super().__init__(
      decoder,
      sampling,
      seed,
      default_decoder_params,
      input_vocabulary=input_vocabulary,
      output_vocabulary=output_vocabulary,
      feature_converter_cls=feature_converter_cls,
    )

  def plain_features(self, example, lengths, task, place):
    """Returns `t5x_runtime`'s features of an example, and its number."""
    number = np.array([number_of(task), place], np.int32)
    return super().plain_features(example, lengths, task, place) | {EXAMPLE: number}

  def read(self, batch):
    """Returns encoder_input_tokens [B, E], and the length of decoder_input_tokens."""
    return batch["encoder_input_tokens"], batch["decoder_input_tokens"].shape[1]


def _made(make, variables) -> dict[str, Any]:
  """Returns what is made of a network's parameters, and its logical axes."""
  made = make(variables["params"])
  axes = rounded.axes_of(made, variables["params_axes"])
  return {"params": made, "params_axes": axes}


def _refuse(prompt_with_targets: bool, decoder_params: Any) -> None:
  """Raises a ValueError where T5X's arguments ask for what these loops do not have."""
  if prompt_with_targets:
    raise ValueError(
      "prompt_with_targets=True is not supported: decoding starts at the start token."
    )
  if surplus := set(decoder_params or ()) - {DECODE_RNG}:
    raise ValueError(
      f"decoder_params may hold {DECODE_RNG!r} alone, got {sorted(surplus)}. Set "
      "TEMPERATURE, TOPK, TOPP and SEED instead; each setting compiles its own program."
    )


def _one_key(rng, decoder_params) -> jax.Array | None:
  """Returns the batch's key, or its rows' keys, whichever T5X gives."""
  given = [rng, (decoder_params or {}).get(DECODE_RNG)]
  keys = [_typed_key(jnp.asarray(key)) for key in given if key is not None]
  if len(keys) > 1:
    raise ValueError(
      f"Expected one key, got rng and {DECODE_RNG!r} of decoder_params. Leave one out."
    )
  return keys[0] if keys else None


def _typed_key(rng: jax.Array) -> jax.Array:
  # T5X hands out keys of the old style, plain uint32 pairs.
  is_typed = jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
  return rng if is_typed else jax.random.wrap_key_data(rng)


def _package(decoded: Decoded, batch: int, num_decodes: int, return_all: bool):
  """Returns T5X's (predictions, aux), decodes sorted by increasing score."""
  tokens = decoded.tokens.reshape(batch, num_decodes, -1)
  scores = decoded.scores.reshape(batch, num_decodes)
  order = jnp.argsort(scores, axis=1)
  tokens = jnp.take_along_axis(tokens, order[..., None], axis=1)
  scores = jnp.take_along_axis(scores, order, axis=1)
  counts = _per_input(decoded.statistics, batch)
  if return_all:
    return tokens, {"scores": scores, **counts}
  return tokens[:, -1], {"scores": scores[:, -1], **counts}


def _per_input(info: StepInfo, batch: int) -> dict[str, jax.Array]:
  total = lambda x: x.reshape(batch, -1).sum(axis=1)
  return {
    "tokens": total(info.emitted),
    "target_calls": total(info.target_calls),
    "drafted": total(info.drafted),
    "accepted": total(info.accepted),
    "acceptance_mass": total(info.acceptance_mass),
    "acceptance_positions": total(info.acceptance_positions),
  }
