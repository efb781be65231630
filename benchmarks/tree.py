r"""Finds the fastest tree for heads on this device, and writes a gin file.

  python -m benchmarks tree --target DIR --draft HEADS --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR

Decodes the inputs with the target alone, counts the rank of the target's token under
each head, and times an iteration on trees of several sizes. Chains of each length and
the best tree of each size are compared by tokens per second. The fastest tree is
written to tree.gin, to be added after configs/drafters/heads.gin. With a temperature
the counts are of samples, and siblings are the likeliest tokens, without random draws.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from benchmarks import jobs
from benchmarks.command import Command, fastest_as_gin
from benchmarks.run import PLAIN
from benchmarks.study import Study, batches
from benchmarks.table import Table, render
from benchmarks.timed import each_turn, medians
from benchmarks.trees import best_tree, tokens_per_call
from specdec_t5x import api
from specdec_t5x.build import headed
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.network.functional import is_decoder_only
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.training.heads import ahead, drafted_ahead, has_token
from specdec_t5x.training.objectives import forward

_RUNS = 7
_GIN = """# {draft}: {tokens_per_call:.2f} tokens a call, {speed:.2f} times plain
# decoding, as counted and timed at batch {batch} and temperature {temperature:g} by
# python -m benchmarks tree. Heads: {heads}
#
# To be added after configs/drafters/heads.gin.
from __gin__ import dynamic_registration

from specdec_t5x.core import tree

SHAPE = @tree.Tree()
SIBLINGS = 'likeliest'
tree.Tree.parents = ({parents})
"""


def make(args: argparse.Namespace) -> Table:
  """Counts ranks, times iterations and compares trees."""
  study = jobs.load(args)
  heads = study.drafts[0].model
  drafts_trees = getattr(heads.network.config, "kind", "eagle") != "eagle"
  if not (isinstance(heads.network, FeatureDrafter) and drafts_trees):
    raise ValueError(
      "--draft: expected heads, but not EAGLE's, got a "
      f"{type(heads.network).__name__}. Train heads with configs/train/heads.gin."
    )
  chances = acceptance(study, heads, args.temperature, args.ranks)
  drafts = _drafts(chances, args.sizes)
  seconds = _seconds(study, drafts, args)
  plain = seconds.pop(PLAIN)
  rows = []
  for name, tree in drafts.items():
    tokens = tokens_per_call(tree, chances)
    row = {
      "draft": name,
      "nodes": tree.size,
      "depth": tree.depth,
      "tokens_per_call": tokens,
      "milliseconds": 1e3 * seconds[name],
      "speed": tokens * plain / seconds[name],
      "parents": list(tree.parents),
    }
    rows.append(row)
  words = {
    "kind": heads.network.config.kind,
    "inputs": len(study.inputs),
    "sampling": Sampling(args.temperature),
    "plain": 1e3 * plain,
    "batch": args.batch,
  }
  facts = {
    "acceptance": chances.tolist(),
    "plain_seconds": plain,
    "heads": study.drafts[0].source,
  }
  return render("tree", rows, words, facts=facts)


def ranks_of(
  models: tuple[api.Model, api.Model],
  texts: Int[Array, "B E"],
  outputs: Int[Array, "B T"],
) -> Float[Array, "D B T"]:
  """Returns the rank of the target's token under each head; NaN beyond the output.

  Args:
    models: the target and the heads.
    texts: the inputs, padded with 0.
    outputs: the target's outputs, padded with 0.
  """
  target, heads = models
  batch = {
    "encoder_input_tokens": texts,
    "decoder_input_tokens": jnp.pad(outputs, ((0, 0), (1, 0)))[:, :-1],
    "decoder_target_tokens": outputs,
  }
  features = forward(target.network, target.params, batch, method="features")
  logits_by_depth = drafted_ahead(
    heads.network, heads.params, target.network, target.params, features, batch
  )
  ranks = []
  for i, logits in enumerate(logits_by_depth, 1):
    token = ahead(outputs, i)[..., None]
    rank = (logits > jnp.take_along_axis(logits, token, axis=-1)).sum(-1)
    ranks.append(jnp.where(has_token(batch, i), rank, jnp.nan))
  return jnp.stack(ranks)


def acceptance_of(
  ranks: Float[np.ndarray, "D N"], most: int
) -> Float[np.ndarray, "D R"]:
  """Returns the frequency of each of the first `most` ranks at each depth.

  The frequency is conditional on ranks below `most` at all smaller depths, as otherwise
  the tree has no node to extend.
  """
  frequencies = []
  is_reached = np.ones(ranks.shape[1], bool)
  for rank in ranks:
    counted = rank[is_reached & ~np.isnan(rank)]
    hits = np.array([(counted == r).sum() for r in range(most)])
    frequencies.append(hits / max(counted.size, 1))
    is_reached &= rank < most
  # Sorted, as a rank may be more frequent than a better rank only by chance.
  return -np.sort(-np.array(frequencies), axis=1)


def acceptance(
  study: Study, heads: api.Model, temperature: float, most: int = 10
) -> Float[np.ndarray, "D R"]:
  """Returns the frequency of each rank of the target's token, for each head."""
  if is_decoder_only(study.target.network):
    raise ValueError(
      "Ranks are counted for encoder-decoders, got a decoder-only target. Set the tree "
      "of the heads by hand (SHAPE in configs/drafters/heads.gin)."
    )
  decode = study.decode(temperature)
  count = jax.jit(functools.partial(ranks_of, (study.target, heads)))
  batches_of_ranks = []
  for texts, decoded, rows in batches(decode, study.ids):
    ranks = np.asarray(count(texts, decoded.tokens))[:, :rows]
    batches_of_ranks.append(ranks.reshape(len(ranks), -1))
  return acceptance_of(np.concatenate(batches_of_ranks, axis=1), most)


def _drafts(acceptance, sizes) -> dict[str, Tree]:
  """Returns chains of each length, and the best tree of each size."""
  chains = {f"chain {n}": chain(n) for n in range(1, len(acceptance) + 1)}
  trees = {f"tree {size}": best_tree(acceptance, size) for size in sizes}
  return chains | {name: t for name, t in trees.items() if not t.is_chain}


def _seconds(study: Study, drafts: dict[str, Tree], args) -> dict[str, float]:
  """Returns the seconds of an iteration with each draft, and of a 'plain' token."""
  texts = study.batch(args.batch)
  heads = study.drafts[0].model
  loops = {PLAIN: study.decode(args.temperature).loop(texts)}
  for name, tree in drafts.items():
    drafter = headed(heads.network, tree, "likeliest")
    decode = study.decode(args.temperature, heads, drafter, "traversal")
    loops[name] = decode.loop(texts)
  return medians(each_turn(loops, _RUNS), max(tree.depth for tree in drafts.values()))


COMMAND = Command(
  __doc__,
  make,
  {
    **jobs.PAIRS,
    **jobs.FEW,
    "sizes": ([2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64], "sizes of trees"),
    "ranks": (10, "maximum number of siblings"),
    "batch": (1, "rows at once"),
    "temperature": 0.0,
  },
  write=fastest_as_gin("tree.gin", _GIN, "parents"),
)
