"""Decoding from Python, without gin or seqio tasks: a notebook's way in."""

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

from specdec_t5x import arguments, memory, same_bits, tuning
from specdec_t5x.build import Model as Model
from specdec_t5x.build import check_models, together
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.distributions import Sampling as Sampling
from specdec_t5x.core.ends import EndTokens
from specdec_t5x.core.tree import Tree as Tree
from specdec_t5x.core.types import Guarantee as Guarantee
from specdec_t5x.core.types import Proposal as Proposal
from specdec_t5x.core.types import Rule
from specdec_t5x.core.types import Verdict as Verdict
from specdec_t5x.decoding.checked import check_decoded
from specdec_t5x.decoding.decoders import Decoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.policy import Policy
from specdec_t5x.decoding.state import Decoded, keys_at
from specdec_t5x.decoding.step import Speculation as Speculation
from specdec_t5x.decoding.step import step as step
from specdec_t5x.groups import Group, grouped, room_of, widest
from specdec_t5x.names import python_names
from specdec_t5x.network import rounded
from specdec_t5x.network.config import NetworkConfig
from specdec_t5x.network.functional import (
  Network,
  Settings,
  is_decoder_only,
  network_for,
)
from specdec_t5x.platforms import check_platform
from specdec_t5x.promotion import usual_promotion
from specdec_t5x.vocabularies import frames
from specdec_t5x.ways import WAYS

DecodeFn = Callable[..., Decoded]

# Batches that are handed over together: a row that ends takes the next input of them.
_QUEUED = 8
# Seconds before a progress bar appears.
_SHOWN_AFTER = 3.0


@contextlib.contextmanager
def _from_python() -> Iterator[None]:
  """Runs an entry point of Python; a decorator, too."""
  with python_names(), memory.check_full(), usual_promotion():
    yield


@dataclasses.dataclass(frozen=True)
class Generation:
  """One output and what it took.

  Attributes:
    text: the decoded output.
    tokens: its ids, end of sequence included.
    score: its log-probability under the target's adjusted distribution.
    target_calls: calls of the target.
    drafted: drafted tokens that counted.
    accepted: drafted tokens in the output.
    tried: those and, of each draft, the first that was rejected: accepted / tried over
      many outputs estimates alpha.
  """

  text: str
  tokens: list[int]
  score: float
  target_calls: int
  drafted: int
  accepted: int
  tried: int


@_from_python()
def load_model(
  checkpoint: str | os.PathLike,
  dtype: str = "float32",
  config: Settings | None = None,
  weights: str = "float32",
) -> Model:
  """Loads a checkpoint, in T5X's format, Orbax's or Hugging Face's, on our devices.

  It may be an encoder-decoder's, a decoder-only network's, heads', or hold n-grams.

  Args:
    checkpoint: its folder.
    dtype: of parameters and activations.
    config: the network's; by default what the checkpoint says (`Checkpoint.settings`).
    weights: 'int8' rounds all matrices to 8 bits, which makes another model of it: what
      keeps a target's outputs then keeps the rounded one's.

  Raises:
    ValueError: where there is no checkpoint, it is damaged or does not fit `config`, or
      has no such weights.
  """
  check_platform()
  found = Checkpoint.open(checkpoint)
  if note := found.generation.note():
    warnings.warn(note, stacklevel=3)
  settings = config or found.settings(dtype)
  if weights != "float32":
    if not isinstance(settings, NetworkConfig):
      raise ValueError(
        f"weights={weights!r} need a T5 or a decoder-only network, got a "
        f"{type(settings).__name__}: {checkpoint}. Leave them out."
      )
    settings = dataclasses.replace(settings, weights=weights)
  network = network_for(settings)
  # What is rounded as the file has it: of 16 bits that is half of float32's memory, and
  # the same whole numbers.
  kept = None if rounded.of_weights(settings) else dtype
  restore = lambda: found.load(network, kept)
  params = restore()
  if rounded.of_weights(settings):
    params = tuning.in_weights(network, params)
    return Model(network, params, restore, found.generation)
  return Model(network, params, generation=found.generation)


@_from_python()
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
  draft_tokenizer: str | os.PathLike | None = None,
  same_bits: bool | None = None,
) -> list[Generation]:
  """Decodes texts from a target with the help of a draft.

  The outputs are the target's own, token for token when greedy, in distribution when
  sampled, unless `rule` gives less (`Lenient` below lenience 1, 'typical', 'top_k',
  'distance'), of which a warning reminds.

  Args:
    inputs: texts, with whatever prefix the models were trained with; the prompts that
      a decoder-only target goes on from, which may be empty; or lists of token ids,
      read as they are.
    target: the model whose distribution is kept.
    draft: the model that drafts, or a table of n-grams; the name of a drafter without
      either: 'quantized' (the target itself, its weights rounded) or 'copy'; None
      decodes one token a call.
    vocabulary: path of the SentencePiece model that both were trained with, of a
      tokenizer.json, or of a Hugging Face folder that has one. None decodes token ids
      to token ids, until the end tokens that the target's folder names.
    drafter: how tokens are drafted: an object of `specdec_t5x.drafters` or of yours,
      or a name: 'draft_model', 'ngram', 'heads', 'quantized', 'copy', 'sparse'; by
      default `draft` drafts.
    rule: which drafted tokens stand: an object or a name of `core.rules.RULES`.
    gamma: tokens that a named drafter drafts each iteration; with a policy the most.
      By default as many as pay, up to 5.
    num_candidates: independent drafts an iteration, of a named drafter.
    policy: how long drafts are: 'auto', as long as pays on this device at this batch,
      up to gamma, or none; 'fixed', or an object of `policies`. By default 'fixed'
      where gamma is given, here or to the drafter's object; 'auto' for a named draft
      model or heads, and for the target itself, rounded or without some sublayers;
      'fixed' for other drafters.
    sampling: temperature, top-k, top-p.
    max_length: the most tokens of an output.
    batch_size: inputs decoded at once, where there are as many.
    seed: of the sampling; an input's samples depend on it and the input's place in
      `inputs`, not on batch_size.
    draft_tokenizer: as `vocabulary`, of a draft model that was trained with another;
      None where it has the target's.
    same_bits: whether the target always scores blocks of one width, so that plain and
      speculative decoding compute the same bits in bfloat16; None: on GPUs and TPUs at
      batch size 1, where it costs nothing.

  Raises:
    ValueError: where a setting is bad, target and draft differ in vocabulary, or the
      logits of an input are NaN.
  """
  check_platform()
  seed = arguments.seed_of(seed)
  max_length = arguments.count(max_length, "max_length")
  batch_size = arguments.count(batch_size, "batch_size")
  arguments.check_sampling(sampling)
  check_models(target, draft)
  # Here alone, so that what reads no text does without SentencePiece and tqdm.
  from tqdm import tqdm

  target.generation.check()
  inputs = arguments.inputs(inputs, target.network.config.vocab_size)
  has_texts = any(isinstance(each, str) for each in inputs)
  if has_texts or vocabulary is not None or draft_tokenizer is not None:
    vocabulary = arguments.path_of(vocabulary, "vocabulary")
  found = opened(vocabulary, target)
  ids = encoded(inputs, target.network, found)
  eos_id = end_tokens(target, found)
  words = {"gamma": gamma, "num_candidates": num_candidates, "policy": policy}
  words["same_bits"] = same_bits
  if draft_tokenizer is not None:
    draft_tokenizer = arguments.path_of(draft_tokenizer, "draft_tokenizer")
    way = WAYS["other_vocabulary"]
    words["shared"] = way.kind.tables_of(vocabulary, draft_tokenizer)
  decoder, params = together(target, draft, drafter, rule, **words)
  decoder.check(sampling, max_length, 1)
  params = {**params, **target.derived(decoder.derived(sampling))}
  # The caller of `generate` is beyond this frame and that of its decorator.
  warn_where_lossy(decoder.guarantee, stacklevel=4)

  def compile_fn(decoder: Decoder) -> DecodeFn:
    return compiled(decoder, sampling, max_length, eos_id)

  # 32 bits, under jax_enable_x64 too: the same numbers, and so the same outputs.
  with jax.enable_x64(False):
    groups = grouped([room_of(tokens) for tokens in ids])
    for group in groups:
      queued, rows = _queued(decoder, len(group.numbers), batch_size)
      job = tuning.Job(queued, rows, group.width, sampling, max_length)
      memory.check_fits(job, params)
    decodes = _decode_groups(
      decoder, compile_fn, params, ids, groups, batch_size, seed=seed
    )
    outputs = {}
    # Seen where decoding takes longer than that.
    with tqdm(total=len(ids), unit="input", delay=_SHOWN_AFTER) as progress:
      for numbers, decoded in decodes:
        outputs |= zip(numbers, generations(decoded, found, eos_id), strict=True)
        progress.update(len(outputs) - progress.n)
    return [outputs[number] for number in range(len(ids))]


def opened(vocabulary: str | os.PathLike | None, target: Model) -> Any:
  """Returns the vocabulary at a path, whose tokens the target has rows for.

  Args:
    vocabulary: the path; None where inputs are token ids.
    target: the model that the vocabulary is for.

  Raises:
    ValueError: where there is no vocabulary, or the target has fewer rows than the
      vocabulary has tokens.
  """
  if vocabulary is None:
    return None
  # Here alone, so that decoding token ids does without SentencePiece.
  from specdec_t5x.vocabularies.opening import open_vocabulary

  rows = target.network.config.vocab_size
  found = open_vocabulary(vocabulary, vocab_size=rows)
  if found.vocab_size > rows:
    raise ValueError(
      f"The vocabulary {vocabulary} has {found.vocab_size} tokens, but the target's "
      f"vocab_size is {rows}. Give the vocabulary that the model was trained with."
    )
  return found


def end_tokens(target: Model, vocabulary: Any) -> tuple[int, ...]:
  """Returns the tokens that end an output: the folder's, else the vocabulary's.

  Raises:
    ValueError: where neither names one.
  """
  if target.generation.eos_ids:
    return target.generation.eos_ids
  if vocabulary is None:
    raise ValueError(
      "No end token is known: inputs are token ids, vocabulary is None, and the "
      "target's folder names no eos_token_id. Give a vocabulary."
    )
  return frames.end_ids_of(vocabulary)


def encoded(
  inputs: Sequence[str] | Sequence[Sequence[int]], network: Network, vocabulary: Any
) -> list[list[int]]:
  """Returns the tokens of each input, with those that the vocabulary puts around them.

  Token ids stay as they are. A prompt has no end, for the output continues it.
  """
  prefix, suffix = ((), ()) if vocabulary is None else frames.frame_of(vocabulary)
  end = () if is_decoder_only(network) else suffix
  return [
    [*prefix, *vocabulary.encode(each), *end] if isinstance(each, str) else each
    for each in inputs
  ]


def warn_where_lossy(guarantee: Guarantee, stacklevel: int = 3) -> None:
  """Warns whoever called `generate` where outputs are not the target's own."""
  if not guarantee.keeps_distribution:
    message = f"{guarantee.name}: the outputs keep {guarantee.value}."
    warnings.warn(message, stacklevel=stacklevel)


def _queued(decoder: Decoder, count: int, batch_size: int) -> tuple[Decoder, int]:
  """Returns the decoder of that batch, and how many inputs it is handed at once."""
  rows = min(batch_size, max(count, 1))
  if count <= rows:
    return decoder, rows
  batches = min(_QUEUED, -(-count // rows))
  return dataclasses.replace(decoder, slots=rows), rows * batches


def _decode_groups(
  decoder: Decoder,
  compile_fn: Callable[[Decoder], DecodeFn],
  params,
  ids: Sequence[Sequence[int]],
  groups: Sequence[Group],
  batch_size: int,
  *,
  seed: int,
) -> Iterator[tuple[list[int], Decoded]]:
  """Yields the numbers of some inputs and their decode; raises where logits were NaN.

  What the policy knows, if anything, goes from each batch to the next.
  """
  key, held = jax.random.key(seed), None
  for group in groups:
    queued, rows = _queued(decoder, len(group.numbers), batch_size)
    run = compile_fn(queued)
    known = _first_known(queued, rows, held)
    for numbers, inputs in group.batches(ids, rows):
      count = len(numbers)
      # A sample depends on its input's number, not on the batch that the input is in.
      keys = keys_at(key, np.resize(numbers, rows))
      decoded = run(params, inputs, keys, np.arange(rows) < count, **known)
      known = dict.fromkeys(known, decoded.policy_state)
      decoded = jax.tree.map(lambda array, count=count: array[:count], decoded)
      check_decoded(
        decoded.scores,
        decoded.statistics.acceptance_mass,
        lambda row, numbers=numbers: f"input {numbers[row]}",
      )
      yield numbers, decoded
    # Rows beyond those that decode at once hold nothing.
    held = jax.tree.map(lambda x, count=queued.slots or rows: x[:count], known)


def _first_known(decoder: Decoder, rows: int, held: Mapping | None) -> dict[str, Any]:
  """Returns the policy's state before a group, carried over from the group before."""
  first = {"policy_state": decoder.first_policy_state(rows)}
  if held is None:
    return first

  def carried_over(new, old):
    return jnp.concatenate([old[:rows], new[len(old) :]])

  return jax.tree.map(carried_over, first, dict(held))


def padded_batches(
  ids: Sequence[Sequence[int]], batch_size: int
) -> Iterator[tuple[int, Int[Array, "B E"], int]]:
  """Yields inputs as batches of one shape.

  Args:
    ids: the inputs' tokens.
    batch_size: rows of a batch; a last one that is not full repeats its first input.

  Yields:
    The number of the batch's first input, the batch, and how many of its rows count.
  """
  width = widest(ids)
  for numbers, rows in Group(width, tuple(range(len(ids)))).batches(ids, batch_size):
    yield numbers[0], rows, len(numbers)


@functools.lru_cache(maxsize=16)
def compiled(
  decoder: Decoder, sampling: Sampling, max_length: int, eos_id: EndTokens
) -> DecodeFn:
  """Returns the decoding program: (params, inputs [B, E], keys [R]) -> Decoded.

  A fourth argument, [B], may say which inputs are wanted; others fill the batch. More
  are those of `Decoder.decode`.
  It is compiled once for each combination of settings, whatever the parameters, and
  stays so while it is held; beside those only the last few are kept. What drafts cost,
  where the policy goes by that, is measured at the first call for a shape.
  """
  decode = jax.jit(
    lambda decoder, params, inputs, keys, is_wanted, **known: decoder.decode(
      params, inputs, keys, sampling, max_length, eos_id, is_wanted, **known
    ),
    static_argnums=0,
  )

  def run(params, inputs, keys, is_wanted=None, **known):
    job = tuning.Job(decoder, keys.shape[0], inputs.shape[1], sampling, max_length)
    same_bits.find(decoder, job.rows_at_once, params)
    return decode(tuning.tuned(job, params), params, inputs, keys, is_wanted, **known)

  return run


def generations(
  decoded: Decoded, vocabulary: Any, end_ids: Collection[int]
) -> Iterator[Generation]:
  """Yields the outputs of a decode, one per row.

  Args:
    decoded: the decode.
    vocabulary: writes the texts; None leaves them empty.
    end_ids: the tokens that end an output, which are not in its text. The vocabulary
      may know fewer of them.
  """
  info = decoded.statistics
  columns = (
    decoded.tokens,
    info.emitted,
    decoded.scores,
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
