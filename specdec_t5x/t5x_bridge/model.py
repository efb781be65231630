"""The T5X models of this project: speculative decoding, and plain beside it."""

import abc
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import seqio
from t5x import models

from specdec_t5x import assemble
from specdec_t5x.assemble import PAIR, Pair
from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import get_rule
from specdec_t5x.core.types import Guarantee
from specdec_t5x.decoding.state import Decoded, StepInfo, row_keys
from specdec_t5x.drafters.copy import DEFAULT_MATCH
from specdec_t5x.drafters.policies import DEFAULT_CONFIDENCE
from specdec_t5x.network.functional import Network
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge.examples import ALONE, EXAMPLE, numbered


class LoopModel(abc.ABC):
  """Mixed into one of T5X's models: its decoding is one of this project's loops.

  T5X restores, partitions, feeds and scores it like its own; `predict_batch_with_aux`
  alone is ours. Subclasses say how a batch is decoded.
  """

  guarantee = Guarantee.EXACT

  def _set_up(
    self,
    sampling: Sampling,
    seed: int,
    default_decoder_params: models.DecoderParams | None,
  ) -> None:
    """Checks and keeps what all loops need; called once T5X's model is there."""
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
    if largest > self.module.config.vocab_size:
      raise ValueError(
        f"The vocabulary has {largest} tokens, but the network's vocab_size is "
        f"{self.module.config.vocab_size}. Set VOCABULARY to the model's own, or "
        "vocab_size to the checkpoint's."
      )
    self.sampling, self.seed = sampling, seed
    self._converter = self.FEATURE_CONVERTER_CLS
    self.number_examples()

  def number_examples(self, task: str = "", shard: seqio.ShardInfo = ALONE) -> None:
    """Says which examples it will be given; `t5x_runtime` says so itself.

    Args:
      task: its name.
      shard: which part of the task.
    """
    self.FEATURE_CONVERTER_CLS = numbered(self._converter, task, shard)

  def _predict(
    self,
    params,
    batch: Mapping[str, jax.Array],
    inputs: jax.Array,
    max_length: int,
    rng: jax.Array | None,
    decoder_params: Mapping[str, Any] | None,
    return_all_decodes: bool | None,
    num_decodes: int | None,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns T5X's result of `predict_batch_with_aux` for these inputs.

    Raises:
      ValueError: where there are `decoder_params`.
    """
    if decoder_params:
      raise ValueError(
        f"decoder_params must be empty, got {sorted(decoder_params)}. Set TEMPERATURE, "
        "TOPK, TOPP and SEED instead; each setting compiles its own program."
      )
    defaults = self._default_decoder_params
    count = defaults.num_decodes if num_decodes is None else num_decodes
    if return_all_decodes is None:
      # The best of several samples is no sample of the target's law.
      sampled = count > 1 and not self.sampling.greedy
      return_all_decodes = defaults.return_all_decodes or sampled
    rows = inputs.shape[0]
    keys = jax.vmap(lambda key: row_keys(key, count))(self._keys(batch, rng, rows))
    decoded = self._decode(params, inputs, keys.reshape(rows * count), max_length)
    return _package(decoded, rows, count, return_all_decodes)

  def _keys(self, batch, rng, rows: int) -> jax.Array:
    """Returns one key an example, which depends on its place, not on the batch's."""
    if EXAMPLE not in batch:  # Not from T5X's `infer`: rows go by their places in it.
      key = jax.random.key(0) if rng is None else _typed_key(rng)
      return row_keys(jax.random.fold_in(key, self.seed), rows)
    key = jax.random.fold_in(jax.random.key(0), self.seed)
    fold = lambda task, place: jax.random.fold_in(jax.random.fold_in(key, task), place)
    return jax.vmap(fold)(*batch[EXAMPLE].T)

  @abc.abstractmethod
  def _decode(self, params, inputs, keys, max_length: int) -> Decoded:
    """Returns the decodes of a batch, one a key; those of an input side by side."""

  @property
  def _eos_id(self) -> int:
    return self.output_vocabulary.eos_id or 1


class CachedEncoderDecoderModel(LoopModel, models.EncoderDecoderModel):
  """An encoder-decoder whose decoding is one of this project's loops."""

  def __init__(
    self,
    module: Transformer,
    input_vocabulary: seqio.Vocabulary,
    output_vocabulary: seqio.Vocabulary,
    sampling: Sampling,
    seed: int = 0,
    default_decoder_params: models.DecoderParams | None = None,
    feature_converter_cls: type[seqio.FeatureConverter] | None = None,
  ):
    """Creates the model.

    Args:
      module: the network that is decoded from.
      input_vocabulary: of the inputs.
      output_vocabulary: of the outputs; its eos_id ends a sequence.
      sampling: temperature, top-k, top-p.
      seed: of the sampling.
      default_decoder_params: how many decodes an input, and whether to return all of
        them where they are not sampled.
      feature_converter_cls: another converter than `seqio.EncDecFeatureConverter`.

    Raises:
      ValueError: where num_decodes is below 1 or a vocabulary outgrows the network.
    """
    super().__init__(
      module=module,
      input_vocabulary=input_vocabulary,
      output_vocabulary=output_vocabulary,
      optimizer_def=None,
      decode_fn=None,
      feature_converter_cls=feature_converter_cls,
    )
    self._set_up(sampling, seed, default_decoder_params)

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
      batch: encoder_input_tokens [B, E]; decoder_input_tokens [B, T] gives the room;
        example [B, 2], if there, tells whose samples they are (`t5x_bridge.examples`).
      rng: key of this batch: with `seed` it fixes the samples of a batch without
        `example`, and is not used elsewhere.
      decoder_params: must be empty: sampling is fixed when the model is built.
      return_all_decodes: whether to return all decodes of an input or the best alone;
        where None, all if they are sampled, else as `default_decoder_params` says.
      num_decodes: overrides the model's own.
      prompt_with_targets: not supported.

    Returns:
      Tokens [B, T] and, per input, scores, tokens, target_calls, drafted, accepted,
      acceptance_mass and acceptance_positions (counts are sums over its decodes); with
      `return_all_decodes` tokens [B, N, T] and scores [B, N], by increasing score.

    Raises:
      ValueError: where a setting is asked for that these loops do not have.
    """
    if prompt_with_targets:
      raise ValueError(
        "prompt_with_targets=True is not supported: decoding starts at the start token."
      )
    return self._predict(
      params,
      batch,
      batch["encoder_input_tokens"],
      batch["decoder_input_tokens"].shape[1],
      rng,
      decoder_params,
      return_all_decodes,
      num_decodes,
    )


class PlainLoop(LoopModel):
  """Decodes one token a target call: the baseline that shares the network."""

  def __init__(self, *args, block: int = 1, **kwargs):
    """Creates the model.

    Args:
      *args: as those of the model that this is mixed into.
      block: tokens a call scores, of which the first counts: gamma + 1 for the strict
        baseline of a speculative run (`decoding.baseline`).
      **kwargs: as `args`.

    Raises:
      ValueError: where a setting is out of its range.
    """
    assemble.check_block(block)
    super().__init__(*args, **kwargs)
    self.block = block

  def _decode(self, params, inputs, keys, max_length):
    settings = (self.sampling, max_length, self._eos_id, self.block)
    return assemble.decode_plain(self.module, params, inputs, keys, *settings)


class SpeculativeLoop(LoopModel):
  """Decodes from a target with the help of a draft; params = {target, draft}.

  The output has the law that the verification rule guarantees, whatever the draft.
  """

  def __init__(
    self,
    target: Network,
    draft: Network | None,
    *args,
    sampling: Sampling,
    gamma: int,
    drafter: str = "draft_model",
    verification: str = "token",
    lenience: float = 1.0,
    num_candidates: int = 1,
    gamma_policy: str = "fixed",
    confidence: float = DEFAULT_CONFIDENCE,
    draft_cost: float | None = None,
    block_costs: Sequence[float] = (),
    copy_match: int = DEFAULT_MATCH,
    **kwargs,
  ):
    """Creates the model.

    Args:
      target: the network whose law is kept; also what `score` mode scores with.
      draft: the network that drafts, over the same vocabulary: of 'ngram' a table of
        n-grams; None of 'copy'.
      *args: of the model that this is mixed into, after its network: vocabularies.
      sampling: temperature, top-k, top-p, for both.
      gamma: length of a draft, in tokens.
      drafter: how tokens are drafted; one of `assemble.DRAFTERS`.
      verification: name of a rule in `core.rules.RULES`.
      lenience: of the rule 'lenient'.
      num_candidates: drafts an iteration, for the rules that take several.
      gamma_policy: how long drafts are; one of `drafters.policies.GAMMA_POLICIES`.
      confidence: of 'confidence': how sure of the next token the draft must be.
      draft_cost: of 'online': time of a draft step / of a target step.
      block_costs: of 'online': time of a target step at each block width (1, 2, 4,
        ..., gamma + 1), over that of one token; none is 1.
      copy_match: of 'copy': how many of the last tokens must stand where it copies.
      **kwargs: seed, default_decoder_params, feature_converter_cls.

    Raises:
      ValueError: where a setting is out of its range, a name is unknown, settings do
        not go together or vocabularies differ.
    """
    self.pair = Pair(
      target,
      draft,
      gamma,
      drafter=drafter,
      verification=verification,
      lenience=lenience,
      num_candidates=num_candidates,
      gamma_policy=gamma_policy,
      confidence=confidence,
      draft_cost=draft_cost,
      block_costs=tuple(block_costs),
      copy_match=copy_match,
    )
    self.pair.rule(sampling)
    super().__init__(target, *args, sampling=sampling, **kwargs)

  @property
  def guarantee(self) -> Guarantee:
    """What the verification rule promises."""
    return get_rule(self.pair.verification).guarantee

  def get_initial_variables(self, rng, input_shapes, input_types=None):
    """Returns params and params_axes of target and draft, each under its name."""
    initialised = {}
    for name, key in zip(PAIR, jax.random.split(rng), strict=True):
      if getattr(self.pair, name) is None:
        continue
      alone = copy.copy(self)
      alone.module = getattr(self.pair, name)
      initialised[name] = super(SpeculativeLoop, alone).get_initial_variables(
        key, input_shapes, input_types
      )
    collections = ("params", "params_axes")
    return flax.core.freeze(
      {c: {name: initialised[name][c] for name in initialised} for c in collections}
    )

  def _compute_logits(self, params, *args, **kwargs):
    return super()._compute_logits(params["target"], *args, **kwargs)

  def _decode(self, params, inputs, keys, max_length):
    return assemble.decode(
      self.pair, params, inputs, keys, self.sampling, max_length, self._eos_id
    )


class PlainEncoderDecoderModel(PlainLoop, CachedEncoderDecoderModel):
  """An encoder-decoder that decodes one token a target call."""


class SpeculativeEncoderDecoderModel(SpeculativeLoop, CachedEncoderDecoderModel):
  """An encoder-decoder that decodes with the help of a draft."""


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
