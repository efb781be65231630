"""Decoding from Python, without gin files or seqio tasks."""

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec_t5x import arguments, console, environment, prepared, programs, tuning
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.types import EndTokens, Guarantee, Rule
from specdec_t5x.decoding.checked import check_decoded
from specdec_t5x.decoding.contracts import Drafter, Policy
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.state import Decoded, keys_at
from specdec_t5x.decoding.streaming import Streamed
from specdec_t5x.groups import Group, grouped, room_of, rows_for, widest
from specdec_t5x.network import rounded
from specdec_t5x.network.config import NetworkConfig
from specdec_t5x.network.functional import (
  Network,
  Settings,
  is_decoder_only,
  network_for,
)
from specdec_t5x.platforms import check_platform
from specdec_t5x.prepared import Model
from specdec_t5x.vocabularies import frames
from specdec_t5x.ways import assembled

DecodeFn = Callable[..., Decoded]
# The number of an input, and new tokens of its output.
TokensFn = Callable[[int, list[int]], Any]

# Batches of a call: a row that ends takes the next input of these batches.
_QUEUED = 8
# Seconds before a progress bar appears.
SHOWN_AFTER = 3.0


@contextlib.contextmanager
def from_python() -> Iterator[None]:
  """Runs an entry point of Python; also a decorator.

  Our programs rely on JAX's default promotion of ranks and dtypes, so the user's
  settings of promotion do not apply.
  """
  programs.keep()
  check_platform()
  with (
    environment.check_full(),
    jax.numpy_rank_promotion("allow"),
    jax.numpy_dtype_promotion("standard"),
  ):
    yield


@dataclasses.dataclass(frozen=True)
class Generation:
  """An output and its counts.

  Attributes:
    text: the decoded text.
    tokens: the token ids, EOS included.
    score: log-probability under the target's adjusted distribution.
    target_calls: calls of the target.
    drafted: drafted tokens that counted.
    accepted: drafted tokens in the output.
    tried: accepted tokens and the first rejected token of each draft; accepted / tried
      over many outputs estimates alpha.
  """

  text: str
  tokens: list[int]
  score: float
  target_calls: int
  drafted: int
  accepted: int
  tried: int


@from_python()
def load_model(
  checkpoint: str | os.PathLike,
  dtype: str = "float32",
  config: Settings | None = None,
  weights: str = "float32",
) -> Model:
  """Loads a checkpoint in the format of T5X, Orbax or Hugging Face.

  The checkpoint holds an encoder-decoder, a decoder-only network, heads or n-grams.

  Args:
    checkpoint: the folder of the checkpoint.
    dtype: of parameters and activations.
    config: of the network; by default it is read off the checkpoint
      (`Checkpoint.settings`).
    weights: 'int8' rounds all matrices to 8 bits. The rounded model is another model:
      as a target, its own outputs are kept.

  Raises:
    ValueError: if there is no checkpoint, or the checkpoint is damaged, does not fit
      `config`, or can't have such weights.
  """
  source = Checkpoint.open(checkpoint)
  if note := source.generation.note():
    warnings.warn(note, stacklevel=3)
  settings = config or source.settings(dtype)
  if weights != "float32":
    if not isinstance(settings, NetworkConfig):
      raise ValueError(
        f"weights={weights!r} needs a T5 or a decoder-only network, got a "
        f"{type(settings).__name__}: {checkpoint}. Leave weights out."
      )
    settings = dataclasses.replace(settings, weights=weights)
  network = network_for(settings)
  if not rounded.of_weights(settings):
    params = source.load(network, dtype)
    return Model(network, params, None, source.generation, source.vocabulary_folder)
  # In the file's dtype: 16 bits take half the memory of float32, and round to the same
  # whole numbers.
  restore = functools.partial(source.load, network, None)
  params = prepared.in_weights(network, restore())
  return Model(network, params, restore, source.generation, source.vocabulary_folder)


@from_python()
def generate(
  inputs: Sequence[str] | Sequence[Sequence[int]],
  target: Model,
  draft: Model | Mapping[str, Model] | str | None,
  vocabulary: str | os.PathLike | None = None,
  *,
  drafter: Drafter | str | None = None,
  rule: Rule | str = "token",
  gamma: int | None = None,
  num_candidates: int = 1,
  policy: Policy | str | None = None,
  sampling: Sampling = GREEDY,
  max_length: int = 128,
  batch_size: int = 16,
  seed: int = 0,
  same_bits: bool | None = None,
  on_tokens: TokensFn | None = None,
) -> list[Generation]:
  """Decodes texts from a target with the help of a draft.

  Greedy outputs are the target's own, token for token; samples have the target's
  distribution. Only lossy rules (`Lenient` below lenience 1, 'typical', 'top_k',
  'distance') keep less, with a warning.

  Args:
    inputs: texts with the prefix that the models were trained with; prompts for a
      decoder-only target, which may be empty; or lists of token ids, or an array of
      token ids, padded with 0 at the end.
    target: the model with the distribution of the outputs.
    draft: the draft model, or a table of n-grams; the name of a drafter without a
      network: 'quantized' (the target with rounded weights) or 'copy'; None decodes
      plainly.
    vocabulary: path of the SentencePiece model of both models, of a tokenizer.json, or
      of a Hugging Face folder with a vocabulary. None reads texts by the vocabulary of
      the target's Hugging Face folder, and decodes token ids to token ids, up to the
      end tokens of the target's folder.
    drafter: proposes tokens: an object, or a name: 'draft_model', 'ngram', 'heads',
      'quantized', 'copy', 'sparse'. By default `draft` drafts.
    rule: accepts drafted tokens: an object, or a name in `core.rules.RULES`.
    gamma: draft length of a named drafter; with a policy the longest draft. By default
      as many tokens as pay, up to 5.
    num_candidates: independent drafts of an iteration, of a named drafter.
    policy: decides draft lengths: 'auto' (the length that pays on this device at this
      batch size, from 0 to gamma), 'fixed', or an object. The default is 'fixed' if
      gamma is given, here or in the drafter; otherwise 'auto' for a named draft model,
      for heads and for the target itself, and 'fixed' for other drafters.
    sampling: temperature, top-k, top-p.
    max_length: the most tokens of an output.
    batch_size: the most inputs that are decoded at once.
    seed: the sampling's seed. With policy 'fixed', rule 'coupled' or without a draft,
      samples of an input depend on the seed and on the input's place in `inputs`, not
      on batch_size. Under 'auto' they also depend on the measured times and on the
      batch, as the draft lengths do.
    same_bits: whether all blocks of the target have one width, so that plain and
      speculative decoding compute the same bits in bfloat16. The default is True on
      GPUs and TPUs at batch size 1, without extra cost.
    on_tokens: called while a batch decodes, with the number of an input and a list of
      new token ids of the input's output. The lists of an input are together the
      `tokens` of the input's result. The results are the same with and without.

  Raises:
    ValueError: if a setting is bad, target and draft differ in vocabulary, or the
      logits of an input are NaN.
  """
  seed = arguments.seed_of(seed)
  max_length = arguments.count(max_length, "max_length")
  batch_size = arguments.count(batch_size, "batch_size")
  if not (on_tokens is None or callable(on_tokens)):
    raise ValueError(
      "on_tokens must be a function of an input's number and a list of new token ids, "
      f"got {on_tokens!r}. Leave it out to get the outputs at the end."
    )
  arguments.check_sampling(sampling)
  arguments.check_models(target, draft)
  target.generation.check()
  vocab_size = target.network.config.vocab_size
  inputs = arguments.inputs(inputs, vocab_size, target.generation.pads)
  has_texts = any(isinstance(each, str) for each in inputs)
  if has_texts and vocabulary is None:
    vocabulary = target.folder
  if has_texts or vocabulary is not None:
    vocabulary = arguments.path_of(vocabulary, "vocabulary")
  opened_vocabulary = opened(vocabulary, target)
  ids = encoded(inputs, target.network, opened_vocabulary)
  eos_id = end_tokens(target, opened_vocabulary)
  decoder, params = assembled(
    target,
    draft,
    drafter,
    rule,
    gamma=gamma,
    num_candidates=num_candidates,
    policy=policy,
    same_bits=same_bits,
  )
  decoder.check(sampling, max_length, 1)
  params = {**params, **target.derived(decoder.derive(sampling))}
  # The frame of the caller lies beyond this frame and the decorator's.
  warn_where_lossy(decoder.rule.guarantee, stacklevel=4)
  # 32 bits, even under jax_enable_x64: outputs are the same.
  with jax.enable_x64(False):
    decodes = decode_batches(
      decoder,
      params,
      ids,
      sampling,
      max_length,
      batch_size=batch_size,
      eos_id=eos_id,
      seed=seed,
      on_tokens=on_tokens,
    )
    # Here alone: only decoding needs tqdm.
    from tqdm import tqdm

    outputs = {}
    with tqdm(
      total=len(ids),
      unit="input",
      delay=SHOWN_AFTER,
      file=console.STDERR,
      dynamic_ncols=True,
      disable=on_tokens is not None,
    ) as progress:
      for numbers, decoded in decodes:
        results = generations(decoded, opened_vocabulary, eos_id)
        outputs |= zip(numbers, results, strict=True)
        progress.update(len(numbers))
    return [outputs[number] for number in range(len(ids))]


def opened(vocabulary: str | os.PathLike | None, target: Model) -> Any:
  """Returns the vocabulary at a path, after a check against the target.

  Args:
    vocabulary: the path; None if inputs are token ids.
    target: the target.

  Raises:
    ValueError: if there is no vocabulary, or the vocabulary has more tokens than the
      target has rows.
  """
  if vocabulary is None:
    return None
  # Here alone: decoding token ids needs no SentencePiece.
  from specdec_t5x.vocabularies.opening import open_vocabulary

  rows = target.network.config.vocab_size
  result = open_vocabulary(vocabulary, vocab_size=rows)
  if result.vocab_size > rows:
    raise ValueError(
      f"The vocabulary {vocabulary} has {result.vocab_size} tokens, but the target's "
      f"vocab_size is {rows}. Give the model's own vocabulary."
    )
  return result


def end_tokens(target: Model, vocabulary: Any) -> tuple[int, ...]:
  """Returns the end tokens of the target's folder, or of the vocabulary.

  Raises:
    ValueError: if neither has an end token.
  """
  if target.generation.eos_ids:
    return target.generation.eos_ids
  if vocabulary is None:
    raise ValueError(
      "No end token is known: inputs are token ids, vocabulary is None, and the "
      "target's folder has no eos_token_id. Give a vocabulary."
    )
  return frames.end_ids_of(vocabulary)


def encoded(
  inputs: Sequence[str] | Sequence[Sequence[int]], network: Network, vocabulary: Any
) -> list[list[int]]:
  """Returns the tokens of the inputs, with the vocabulary's prefix and suffix.

  Token ids stay unchanged. A prompt has no suffix: the output continues the prompt.

  Raises:
    ValueError: if an input of an encoder has no tokens.
  """
  prefix, suffix = ((), ()) if vocabulary is None else frames.frame_of(vocabulary)
  is_prompt = is_decoder_only(network)
  end = () if is_prompt else suffix
  ids = [
    [*prefix, *vocabulary.encode(each), *end] if isinstance(each, str) else each
    for each in inputs
  ]
  if not (is_prompt or all(ids)):
    number = [len(tokens) for tokens in ids].index(0)
    raise ValueError(
      f"inputs[{number}] has no tokens, but an encoder reads at least one. Leave the "
      "input out, or end every input with EOS."
    )
  return ids


def warn_where_lossy(guarantee: Guarantee, stacklevel: int = 3) -> None:
  """Warns the caller of `generate` if outputs lose the target's distribution."""
  if not guarantee.keeps_distribution:
    message = f"{guarantee.name}: the outputs keep {guarantee.value}."
    warnings.warn(message, stacklevel=stacklevel)


def decode_batches(
  decoder: Decoder,
  params: Mapping[str, Any],
  ids: Sequence[Sequence[int]],
  sampling: Sampling,
  max_length: int,
  *,
  batch_size: int,
  eos_id: EndTokens,
  seed: int = 0,
  done: Collection[int] = (),
  on_tokens: TokensFn | None = None,
) -> Iterator[tuple[list[int], Decoded]]:
  """Yields numbers of inputs and their outputs, by batches of inputs of similar length.

  The policy's state is handed from batch to batch.

  Args:
    decoder: the decoder.
    params: the parameters of the decoder's networks and the derived arrays.
    ids: the tokens of all inputs.
    sampling: temperature, top-k, top-p.
    max_length: the most tokens of an output.
    batch_size: the most inputs that are decoded at once.
    eos_id: the EOS token, or several.
    seed: the sampling's seed.
    done: numbers of inputs with known outputs; batches of such inputs are skipped.
    on_tokens: as for `generate`.

  Raises:
    ValueError: if logits are NaN.
  """
  jobs = []
  for group in grouped([room_of(tokens) for tokens in ids]):
    queued, rows = decoder, rows_for(len(group.numbers), batch_size)
    if len(group.numbers) > rows:
      queued, rows = dataclasses.replace(decoder, slots=rows), rows * _QUEUED
    jobs.append((group, tuning.Job(queued, rows, group.width, sampling, max_length)))
    environment.check_fits(jobs[-1][1], params)
  key, state, done = jax.random.key(seed), None, frozenset(done)
  for group, job in jobs:
    run = compiled(job.decoder, job.sampling, job.max_length, eos_id)
    first = job.decoder.policy.start(job.rows)
    if state is not None:
      # Rows beyond the slots have no state.
      first = jax.tree.map(
        lambda new, old: jnp.concatenate([old[: len(new)], new[len(old) :]]),
        first,
        state,
      )
    state = first
    for numbers, inputs in group.batches(ids, job.rows):
      if done.issuperset(numbers):
        continue
      count = len(numbers)
      # A sample depends on the number of its input, not on the batch.
      keys = keys_at(key, np.resize(numbers, job.rows))
      is_wanted = np.arange(job.rows) < count
      given = [0] * count

      def watch(places, tokens, lengths, numbers=numbers, given=given):
        rows = zip(places.tolist(), tokens.tolist(), lengths.tolist(), strict=True)
        for place, output, length in rows:
          # Other places are of rows without an input.
          if place < len(given) and given[place] < length:
            new = output[given[place] : length]
            given[place] = length
            on_tokens(numbers[place], new)

      watch = watch if on_tokens else None
      decoded = run(params, inputs, keys, is_wanted, policy_state=state, watch=watch)
      state = decoded.policy_state
      decoded = jax.tree.map(lambda array, count=count: array[:count], decoded)
      check_decoded(
        decoded.statistics.log_prob,
        decoded.statistics.acceptance_mass,
        lambda row, numbers=numbers: f"input {numbers[row]}",
      )
      yield numbers, decoded
    state = jax.tree.map(lambda x, count=job.rows_at_once: x[:count], state)


def padded_batches(
  ids: Sequence[Sequence[int]], batch_size: int
) -> Iterator[tuple[int, Int[Array, "B E"], int]]:
  """Yields inputs as batches of one shape.

  Args:
    ids: the tokens of the inputs.
    batch_size: rows of a batch; a short last batch repeats its first input.

  Yields:
    The number of the batch's first input, the batch, and the number of its inputs.
  """
  width = widest(ids)
  for numbers, rows in Group(width, tuple(range(len(ids)))).batches(ids, batch_size):
    yield numbers[0], rows, len(numbers)


@functools.lru_cache(maxsize=16)
def compiled(
  decoder: Decoder, sampling: Sampling, max_length: int, eos_id: EndTokens
) -> DecodeFn:
  """Returns the decoding program: (params, inputs [B, E], keys [R]) -> Decoded.

  A fourth argument [B] marks the wanted inputs; `policy_state` is as for
  `Decoder.decode`. A program is compiled once for a combination of settings, whatever
  the parameters, and is kept while the caller holds it; otherwise the last few programs
  are kept. The first call with a shape measures the cost of drafts for the policy.

  `watch`, if given, is called while the batch decodes, as by `Streamed.decode`.
  """
  decode = jax.jit(
    lambda decoder, params, inputs, keys, is_wanted, **known: decoder.decode(
      params, inputs, keys, sampling, max_length, eos_id, is_wanted, **known
    ),
    static_argnums=0,
  )

  @functools.cache
  def streamed(decoder):
    return Streamed(decoder, sampling, max_length, eos_id)

  tuned: dict[tuple[int, int], Decoder] = {}

  def run(params, inputs, keys, is_wanted=None, policy_state=None, watch=None):
    rows, length = keys.shape[0], inputs.shape[1]
    if (rows, length) not in tuned:
      job = tuning.Job(decoder, rows, length, sampling, max_length)
      tuned[rows, length] = tuning.tuned(job, params)
    chosen = tuned[rows, length]
    if watch is None:
      return decode(chosen, params, inputs, keys, is_wanted, policy_state=policy_state)
    stream = streamed(chosen)
    is_wanted = jnp.asarray(is_wanted)
    return stream.decode(params, inputs, keys, is_wanted, policy_state, watch)

  return run


def generations(
  decoded: Decoded, vocabulary: Any, end_ids: Collection[int]
) -> Iterator[Generation]:
  """Yields the outputs of a decode, by row.

  Args:
    decoded: the outputs.
    vocabulary: decodes texts; None leaves texts empty.
    end_ids: the end tokens, which are left out of texts. The vocabulary may know fewer
      end tokens.
  """
  info = decoded.statistics
  columns = (
    decoded.tokens,
    info.emitted,
    decoded.statistics.log_prob,
    info.target_calls,
    info.drafted,
    info.accepted,
    info.acceptance_positions,
  )
  for tokens, length, score, *counts in zip(*map(np.asarray, columns), strict=True):
    tokens = tokens[:length].tolist()
    kept = tokens[:-1] if tokens and tokens[-1] in end_ids else tokens
    text = "" if vocabulary is None else vocabulary.decode(kept)
    yield Generation(text, tokens, float(score), *map(int, counts))
