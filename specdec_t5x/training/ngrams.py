"""Counts the n-grams of a task's targets into a table that drafts.

Contexts are counted by hash (`network.ngram.context_hash`), in chunks of sequences.
The memory therefore depends on the number of distinct n-grams, not on the size of the
corpus.

Shapes: K tokens of a chunk.
"""

import itertools
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from specdec_t5x.network.ngram import NgramConfig, NgramTable, context_hash

_CHUNK = 50_000  # sequences
_DISCOUNT = 0.5
_START = 0  # The start token of decoding.


def estimate(
  sequences: Iterable[Sequence[int]],
  vocab_size: int,
  order: int = 3,
  width: int = 32,
  max_contexts: int = 100_000,
) -> tuple[NgramTable, dict]:
  """Returns a table of the sequences' n-grams, and the table's parameters.

  Args:
    sequences: tokens of each target, including EOS.
    vocab_size: vocabulary size of the target model, including padding rows.
    order: length of the longest n-grams: 1 for unigrams, 2 for bigrams, and so on.
    width: number of the most frequent successors to keep per context.
    max_contexts: number of the most frequent contexts to keep per length.

  Raises:
    ValueError: if a number is out of range, there are no tokens, or a token is not in
      the vocabulary.
  """
  for name, value in (("ORDER", order), ("WIDTH", width), ("CONTEXTS", max_contexts)):
    if value < 1 or value != int(value):
      raise ValueError(f"{name} must be a whole number of at least 1, got {value}.")
  unigrams = np.zeros(vocab_size, np.int64)
  no_grams = (np.zeros(0, np.uint64), np.zeros(0, np.int64))
  counted = [no_grams] * (order - 1)  # By the length of the context, from 1.
  source = iter(sequences)
  while chunk := list(itertools.islice(source, _CHUNK)):
    # The start token has place 0. Contexts may contain the start token, but no n-gram
    # predicts the start token.
    tokens = np.concatenate([[_START, *sequence] for sequence in chunk], dtype=np.int64)
    places = np.concatenate([np.arange(len(sequence) + 1) for sequence in chunk])
    wrong = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if wrong.size:
      raise ValueError(
        f"VOCAB_SIZE is {vocab_size}, but the targets have a token {wrong.max()}. Set "
        "VOCAB_SIZE to the target's vocab_size, and VOCABULARY_PATH to the target's "
        "vocabulary."
      )
    unigrams += np.bincount(tokens[places > 0], minlength=vocab_size)
    for i, (grams, counts) in enumerate(counted):
      last = np.flatnonzero(places > i)  # The indices of successors.
      context = tokens[last[:, None] + np.arange(-i - 1, 0)]
      hashes = context_hash(context).astype(np.uint64)
      # (context hash, successor) as one integer.
      new = (hashes << np.uint64(32)) | tokens[last].astype(np.uint64)
      grams, owners = np.unique(np.concatenate([grams, new]), return_inverse=True)
      weights = np.concatenate([counts, np.ones(new.size)])
      counted[i] = grams, np.bincount(owners, weights, grams.size).astype(np.int64)
  if not unigrams.sum():
    raise ValueError(
      "Expected sequences with tokens, got empty sequences. Check the targets."
    )
  params = {"unigram": (unigrams / unigrams.sum()).astype(np.float32)}
  for i, (grams, counts) in enumerate(counted):
    params[f"contexts_{i}"] = _contexts(grams, counts, width, max_contexts)
  sizes = tuple(params[f"contexts_{i}"]["hashes"].size for i in range(order - 1))
  config = NgramConfig(vocab_size, sizes, width if sizes else 1, order)
  return NgramTable(config), jax.tree.map(jax.numpy.asarray, params)


def _contexts(grams, counts, width, max_contexts):
  """Returns the parameters of `network.ngram.Contexts`."""
  hashes, first, owner = np.unique(
    grams >> np.uint64(32), return_index=True, return_inverse=True
  )
  totals = np.bincount(owner, counts)
  contexts = np.sort(np.argsort(-totals, kind="stable")[:max_contexts])
  row_of = np.full(hashes.size, -1)
  row_of[contexts] = np.arange(contexts.size)
  # Sorts by context, and within a context by decreasing count.
  best = np.lexsort((-counts, owner))
  rank = np.arange(best.size) - first[owner[best]]
  is_kept = (rank < width) & (row_of[owner[best]] >= 0)
  best = best[is_kept]
  rank = rank[is_kept]
  rows = row_of[owner[best]]
  successors = np.zeros((contexts.size, width), np.int32)
  probs = np.zeros((contexts.size, width), np.float32)
  successors[rows, rank] = (grams[best] & np.uint64(0xFFFFFFFF)).astype(np.int32)
  probs[rows, rank] = (counts[best] - _DISCOUNT) / totals[owner[best]]
  return {
    "hashes": hashes[contexts].astype(np.uint32),
    "leftover": np.float32(1) - probs.sum(axis=1),
    "successors": successors,
    "probs": probs,
  }
