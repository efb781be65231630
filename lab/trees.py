"""Finds the fastest tree for heads on this device, and writes a gin file.

The tree of a size with the most tokens per call follows from the ranks of the target's
tokens under each head.

A node is reached if, at each depth of the node's path, the target's token has the rank
of the path among the drafter's tokens. Let a(d, r) be the probability of rank r at
depth d. If a(d, r) depends on depth and rank alone, the expected number of tokens per
call is

  E = 1 + sum over nodes of prod_d a(d, rank of the path's node at depth d).

The best N nodes are the nodes with the largest products, because no node's product
exceeds the parent's product. Sequoia's dynamic programme (arXiv 2402.12374, section
3.1) finds the same tree if a(d, r) is the same at all depths.

Shapes: D depths, R ranks.
"""

import argparse
import functools
import heapq
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from benchmarks import jobs
from benchmarks.command import Command
from benchmarks.comparison import columns_of
from benchmarks.measure import PLAIN, Run, Way, Ways, measure
from benchmarks.study import BATCH, Decode, Draft, Study
from benchmarks.table import Table, put, render
from specdec_t5x import api
from specdec_t5x.api import Model
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import is_whole
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.decoding.state import Decoded, keys_at
from specdec_t5x.network.functional import is_decoder_only
from specdec_t5x.training.heads import ahead, drafted_ahead, has_token
from specdec_t5x.training.objectives import forward
from specdec_t5x.ways import headed


def batches(
  decode: Decode, ids: Sequence[Sequence[int]], batch: int = BATCH
) -> Iterator[tuple[Int[Array, "B E"], Decoded, int]]:
  """Yields each batch of inputs, the decode, and the number of rows that count."""
  key = jax.random.key(0)
  for first, texts, count in api.padded_batches(ids, batch):
    yield texts, decode(texts, keys_at(key, first + np.arange(batch))), count


def best_tree(acceptance: Float[np.ndarray, "D R"], size: int) -> Tree:
  """Returns the tree of `size` drafted nodes with the most tokens per call.

  Args:
    acceptance: a(d, r), decreasing in r, with row sums of at most 1.
    size: number of nodes without the root.

  Raises:
    ValueError: if `size` is not a positive integer, or there are fewer nodes.
  """
  if not is_whole(size, 1):
    raise ValueError(
      f"A tree must have a whole number of nodes of at least 1, got {size!r}."
    )
  depths, ranks = acceptance.shape
  # Heap entries: value of a node, path of ranks, value of the parent. Values are
  # negative products, because the heap pops the smallest value.
  nodes = [(-float(acceptance[0, 0]), (0,), -1.0)]
  paths = []
  while nodes and len(paths) < size:
    value, path, parent_value = heapq.heappop(nodes)
    paths.append(path)
    sibling = (*path[:-1], path[-1] + 1)
    child = (*path, 0)
    for candidate, above in ((sibling, parent_value), (child, value)):
      depth = len(candidate)
      rank = candidate[-1]
      if depth <= depths and rank < ranks:
        chance = float(acceptance[depth - 1, rank])
        heapq.heappush(nodes, (above * chance, candidate, above))
  if len(paths) < size:
    raise ValueError(
      f"A tree of {size} nodes needs at least {size} candidate nodes, got {len(paths)} "
      f"of {depths} depths and {ranks} ranks. Ask for fewer nodes, or measure more "
      "ranks."
    )
  # Nodes are numbered by depth, then in the order of the parents, then by rank.
  ordered = sorted(paths, key=lambda path: (len(path), path))
  number = {(): 0, **{path: node for node, path in enumerate(ordered, 1)}}
  return Tree(tuple(number[path[:-1]] for path in ordered))


def ranks_of(
  models: tuple[Model, Model], texts: Int[Array, "B E"], outputs: Int[Array, "B T"]
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
  study: Study, heads: Model, temperature: float, most: int = 10
) -> Float[np.ndarray, "D R"]:
  """Returns the frequency of each rank of the target's token, for each head.

  Raises:
    ValueError: if the target has no encoder.
  """
  if is_decoder_only(study.target.network):
    raise ValueError(
      "Ranks are counted for encoder-decoders, got a decoder-only target. Set the tree "
      "of the heads by hand (SHAPE in configs/drafters/heads.gin)."
    )
  count = jax.jit(functools.partial(ranks_of, (study.target, heads)))
  ranks = []
  for texts, decoded, rows in batches(study.decode(temperature), study.ids):
    found = np.asarray(count(texts, decoded.tokens))[:, :rows]
    ranks.append(found.reshape(len(found), -1))
  return acceptance_of(np.concatenate(ranks, axis=1), most)


def ways(study: Study, draft: Draft, temperature: float, sizes: list[int]) -> Ways:
  """Returns a way for the best tree of each size of a draft that drafts trees."""
  chances = acceptance(study, draft.model, temperature)
  trees = {f"tree of {size}": best_tree(chances, size) for size in sizes}
  return _ways(study, draft, temperature, trees, "distinct")


def can_draft(draft: Draft) -> bool:
  """Returns whether a draft drafts trees: heads, but not EAGLE's."""
  return draft.drafter == "heads" and draft.model.network.config.kind != "eagle"


def make(args: argparse.Namespace) -> Table:
  """Decodes with chains of each length and with the best tree of each size, in turn."""
  study = jobs.load(args)
  draft = study.drafts[0]
  if not can_draft(draft):
    raise ValueError(
      f"--draft: expected heads, but not EAGLE's, got {draft.drafter!r}. Train heads "
      "with configs/train/heads.gin."
    )
  chances = acceptance(study, draft.model, args.temperature, args.ranks)
  shapes = {f"chain {n}": chain(n) for n in range(1, len(chances) + 1)}
  trees = {f"tree {size}": best_tree(chances, size) for size in args.sizes}
  shapes |= {name: tree for name, tree in trees.items() if not tree.is_chain}
  compared = _ways(study, draft, args.temperature, shapes, "likeliest")
  compared[PLAIN] = Way(study.grouped(study.decode(args.temperature), 1))
  run = Run(lambda *_: compared, study.groups, [args.temperature])
  rows = [row.values for row in measure(run) if row.key != PLAIN]
  best = max(rows, key=lambda row: row["in_all"])
  words = {**best, "tokens": best["tokens_per_call"].value, "source": draft.source}
  put(args.output, "tree.gin", _GIN.format_map(words))
  words = {"inputs": len(study.inputs), "sampling": Sampling(args.temperature)}
  facts = {"acceptance": chances.tolist()}
  return render("tree", rows, words, package="lab", facts=facts)


def _ways(study, draft, temperature, shapes, siblings) -> dict:
  found = {}
  for name, tree in shapes.items():
    drafter = headed(draft.model.network, tree, siblings)
    decode = study.decode(temperature, draft.model, drafter, "traversal")
    columns = {**columns_of(draft, decode), "shape": name, "parents": tree.parents}
    found[draft.name, name] = Way(study.grouped(decode, 1), columns, decode)
  return found


_GIN = """# {draft}, {shape}: {tokens:.2f} tokens a call, {in_all:.2f} times plain
# decoding at temperature {temperature}, by python -m lab tree. Heads: {source}
#
# To be added after configs/drafters/heads.gin.
from __gin__ import dynamic_registration

from specdec_t5x.core import tree

SHAPE = @tree.Tree()
SIBLINGS = 'likeliest'
tree.Tree.parents = {parents}
"""
COMMAND = Command("tree", make, package="lab")
