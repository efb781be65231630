r"""The tree that heads had best draft on this device, as a gin file.

  python -m specdec_t5x.bench tree --target DIR --draft HEADS --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR

Decodes the inputs with the target alone, counts at which rank each head has the token
that came, and times an iteration on trees of several sizes. Chains of each length and
the best tree of each size are then compared by tokens a second. Writes the best one to
tree.gin, to be added after configs/drafters/heads.gin, and tree.json, tree.csv and
tree.md. With a temperature the counts are of samples and siblings the likeliest tokens,
which are certain. Leave all cores to it.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec_t5x import api
from specdec_t5x.analysis.trees import best_tree, tokens_per_call
from specdec_t5x.bench import flags, inputs, parts, programs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.costs import medians
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.parts import NEVER
from specdec_t5x.bench.table import Column, Table, listed
from specdec_t5x.bench.walltime import alternate
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.registry import headed
from specdec_t5x.network.functional import HEADS, is_decoder_only
from specdec_t5x.training.heads import ahead, has_token, head_logits
from specdec_t5x.training.objectives import forward

_RUNS, _ITERATIONS = 7, 10
_GIN = """# {name}: {tokens:.2f} tokens a call, {speed:.2f} times plain decoding, as
# counted and timed at batch {batch} and temperature {temperature:g} by
# python -m specdec_t5x.bench tree. Heads: {draft}
#
# To be added after configs/drafters/heads.gin.
from __gin__ import dynamic_registration

from specdec_t5x.core import tree

SHAPE = @tree.Tree()
SIBLINGS = 'likeliest'
tree.Tree.parents = ({parents})
"""
_COLUMNS = (
  Column("draft", "draft"),
  Column("nodes", "nodes"),
  Column("depth", "depth"),
  Column("tokens_per_call", "tokens a call"),
  Column("milliseconds", "ms an iteration"),
  Column("speed", "speed-up"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
  flags.add_one_pair(parser)
  add = parser.add_argument
  sizes = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
  add("--sizes", type=int, nargs="+", default=sizes, help="of trees (%(default)s)")
  add("--ranks", type=int, default=10, help="most siblings (%(default)s)")
  add("--batch", type=int, default=1, help="rows at once (%(default)s)")
  add("--temperature", type=float, default=0.0, help="(%(default)s)")
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Counts, times and compares."""
  models = api.load_model(args.target), api.load_model(args.draft)
  if not isinstance(models[1].network, HEADS):
    raise ValueError(
      f"--draft: expected heads, got a {type(models[1].network).__name__}. Train some "
      "with configs/train/heads.gin."
    )
  ids, eos_id = inputs.lines(args)()
  sampling = Sampling(args.temperature)
  chances = acceptance(models, ids, sampling, eos_id, args.max_length, args.ranks)
  drafts = _drafts(chances, args.sizes)
  rows, plain = _rows(models, drafts, chances, ids, sampling, args)
  return Table(
    "tree",
    f"Drafts by {models[1].network.config.kind} heads, {len(ids)} inputs, {sampling}",
    _COLUMNS,
    rows,
    (
      f"Plain decoding: {1e3 * plain:.2f} ms a token, batch {args.batch}. Tokens a "
      "call follow from the counted ranks, speed-ups from them and the times.",
      listed(environment()),
    ),
    vars(args),
    {"acceptance": chances.tolist(), "plain_seconds": plain},
  )


def ranks_of(
  models: Sequence[api.Model], texts: Int[Array, "B E"], outputs: Int[Array, "B T"]
) -> Float[Array, "D B T"]:
  """Returns at which rank each head has the token that came; NaN where none did.

  Args:
    models: the target and its heads.
    texts: inputs, zero-padded.
    outputs: the target's, zero-padded.
  """
  target, heads = models
  batch = {
    "encoder_input_tokens": texts,
    "decoder_input_tokens": jnp.pad(outputs, ((0, 0), (1, 0)))[:, :-1],
    "decoder_target_tokens": outputs,
  }
  features = forward(target.network, target.params, batch, method="features")
  known = heads.network, heads.params, target.network, target.params
  found = []
  for i, logits in enumerate(head_logits(*known, features, batch), 1):
    token = ahead(outputs, i)[..., None]
    rank = (logits > jnp.take_along_axis(logits, token, axis=-1)).sum(-1)
    found.append(jnp.where(has_token(batch, i), rank, jnp.nan))
  return jnp.stack(found)


def acceptance_of(
  ranks: Float[np.ndarray, "D N"], most: int
) -> Float[np.ndarray, "D R"]:
  """Returns how often the token of a depth has each rank, of `most`.

  Given that every token before it was of such a rank, so that there is a node.
  """
  found, reached = [], np.ones(ranks.shape[1], bool)
  for rank in ranks:
    counted = rank[reached & ~np.isnan(rank)]
    hits = np.array([(counted == r).sum() for r in range(most)])
    found.append(hits / max(counted.size, 1))
    reached &= rank < most
  # A rank may come more often than one before it by chance alone.
  return -np.sort(-np.array(found), axis=1)


def acceptance(
  models: Sequence[api.Model],
  ids: Sequence[Sequence[int]],
  sampling: Sampling,
  eos_id: int,
  room: int,
  most: int = 10,
) -> Float[np.ndarray, "D R"]:
  """Returns how often each rank of each head is the target's token.

  Args:
    models: the target and its heads.
    ids: the inputs' tokens.
    sampling: of the target.
    eos_id: the token that ends an output.
    room: for an output, in tokens.
    most: ranks that are told apart (R).
  """
  if is_decoder_only(models[0].network):
    raise ValueError(
      "Ranks are counted for encoder-decoders, got a decoder-only target. Choose the "
      "tree of its heads by hand (SHAPE in configs/drafters/heads.gin)."
    )
  decoder, params = programs.together(models[0])
  run = programs.decoding(decoder, params, sampling, room, eos_id)
  count = jax.jit(lambda *given: ranks_of(models, *given))
  found = []
  for first, texts, rows in api.padded_batches(ids, 16):
    outputs = run(texts, row_keys(jax.random.key(0), 16, first)).tokens
    ranks = np.asarray(count(texts, outputs))[:, :rows]
    found.append(ranks.reshape(len(ranks), -1))
  return acceptance_of(np.concatenate(found, axis=1), most)


def _drafts(acceptance, sizes) -> dict[str, Tree]:
  """Returns chains of each length, and the best tree of each size."""
  chains = {f"chain {n}": chain(n) for n in range(1, len(acceptance) + 1)}
  trees = {f"tree {size}": best_tree(acceptance, size) for size in sizes}
  return chains | {name: t for name, t in trees.items() if not t.is_chain}


def _rows(models, drafts: Mapping[str, Tree], acceptance, ids, sampling, args):
  """Returns a row a draft, and the seconds of a plain token."""
  texts = next(iter(api.padded_batches(ids[: args.batch], args.batch)))[1]
  found = seconds(models, drafts, texts, sampling, args.max_length)
  plain = found.pop("plain")
  rows = []
  for name, tree in drafts.items():
    tokens = tokens_per_call(tree, acceptance)
    rows.append(
      {
        "draft": name,
        "nodes": tree.size,
        "depth": tree.depth,
        "tokens_per_call": tokens,
        "milliseconds": 1e3 * found[name],
        "speed": tokens * plain / found[name],
        "parents": list(tree.parents),
      }
    )
  return rows, plain


def seconds(
  models: Sequence[api.Model],
  drafts: Mapping[str, Tree],
  texts: Int[Array, "B E"],
  sampling: Sampling,
  room: int,
) -> dict[str, float]:
  """Returns the seconds of an iteration with each draft, and of a 'plain' token.

  Raises:
    ValueError: where the machine is too busy to tell one of them from noise.
  """
  arguments = texts, row_keys(jax.random.key(0), texts.shape[0])
  decoder, params = programs.together(models[0])
  prepare = lambda *args, decoder=decoder: decoder.prepare(*args, room)
  runs = {"plain": parts.plain_program(prepare, sampling, room)}
  counts = {"plain": min(_ITERATIONS, room)}
  given = {"plain": (params, *arguments)}
  for name, tree in drafts.items():
    drafter = headed(models[1].network, tree, "likeliest")
    decoder, params = programs.together(*models, drafter, "traversal")
    runs[name] = parts.iterated(
      lambda *args, decoder=decoder: decoder.prepare(*args, sampling, room, NEVER)
    )
    counts[name] = max(1, min(_ITERATIONS, (room - 1) // (tree.depth + 1)))
    given[name] = params, *arguments
  timed = alternate(
    {
      (name, count): lambda _, name=name, n=count: runs[name](
        jnp.int32(n), *given[name]
      )
      for name in runs
      for count in (0, counts[name])
    },
    range(_RUNS),
  )
  slopes = parts.costs({key: found.seconds for key, found in timed.items()})
  longest = max(tree.depth for tree in drafts.values())
  return medians(slopes, longest)


def write(table: Table, args: argparse.Namespace) -> list[str]:
  """Writes the table, and the best draft's gin file."""
  path = os.path.join(args.output, "tree.gin")
  best = max(table.rows, key=lambda row: row["speed"])
  os.makedirs(args.output, exist_ok=True)
  with open(path, "w", encoding="utf-8") as file:
    file.write(gin_of(best, args))
  return [path, *table.write(args.output)]


def gin_of(best: Mapping[str, Any], args: argparse.Namespace) -> str:
  """Returns the gin file of a row."""
  return _GIN.format(
    name=best["draft"],
    tokens=best["tokens_per_call"],
    speed=best["speed"],
    batch=args.batch,
    temperature=args.temperature,
    draft=args.draft,
    parents="".join(f"{parent}, " for parent in best["parents"]).strip(),
  )


COMMAND = Command(__doc__, make, add_flags, write)
