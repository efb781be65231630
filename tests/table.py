"""A row for every way to draft, rule and network.

tests/test_table.py drives the properties that all rows share, and e2e/test_drafters.py
the gin files. A new drafter needs one row here.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x import Drafter, Model, Tree
from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.contrib.sparse import SparseDraft
from specdec_t5x.contrib.truncation import Truncation
from specdec_t5x.decoding.contracts import Policy
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.eagle import EagleDraft
from specdec_t5x.drafters.heads import HeadDraft, ParallelDraft
from specdec_t5x.drafters.of_target import LayerSkip, Quantized
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.drafters.tree_draft import TreeDraft, delayed
from specdec_t5x.network import hot
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.t5x_bridge.restore import abstract_state
from specdec_t5x.training.ngrams import estimate
from tests.contrib.link.local import Local, honest
from tests.hash_model import HashHeads, HashModel, Similar
from tests.t5x_bridge import tiny, tiny_gpt

GAMMA = 3
TREE = Tree((0, 0, 1, 1, 3))

# ---- Table models: few tokens, with many accepted and many rejected drafts. ----

TARGET = HashModel(seed=1, vocab_size=5, eos_bias=-1.5)
TABLES = {
  "draft": Similar(9, 5, model=TARGET),
  "lower": HashModel(seed=2, vocab_size=5, eos_bias=-1.5),
  "medusa": HashHeads(4, 5, HeadsConfig("medusa", GAMMA, 1)),
}

# ---- Tiny networks. ----

# The target and the draft model.
CONFIGS = tiny.config(1, 16, vocab_size=16), tiny.config(1, 8, vocab_size=16)


@functools.cache
def models(
  target: T5Config = CONFIGS[0], draft: T5Config = CONFIGS[1]
) -> dict[str, Model]:
  """Returns random networks that draft for a target, by name.

  Args:
    target: the target's configuration.
    draft: the draft model's configuration.
  """
  width, size = target.emb_dim, target.vocab_size
  head = functools.partial(HeadsConfig, count=GAMMA, emb_dim=width)
  parallel = functools.partial(HeadsConfig.of, target, GAMMA)
  configs = {
    "draft": draft,
    "lower": dataclasses.replace(draft, num_heads=1),
    "shared": dataclasses.replace(target, num_encoder_layers=0),
    "medusa": head("medusa"),
    "blockwise": head("blockwise", hidden_dim=8),
    "parallel": parallel(),
    "eagle": parallel(kind="eagle"),
    # Networks with another number of padding rows.
    "fewer": dataclasses.replace(draft, vocab_size=size - 1),
    "more": dataclasses.replace(draft, vocab_size=size + 1),
    "fewer medusa": head("medusa", vocab_size=size - 1),
  }
  found = {name: Model(network_for(x), drawn(x)) for name, x in configs.items()}
  table, params = estimate([[2, 3, 2, 5, 1], [4, 3, 2, 1], [5, 4, 2, 3, 1]], size, 3)
  found["ngrams"] = Model(table, params)
  projection = hot.projection(found["shared"].params)
  for name in ("shared", "eagle"):
    full = found[name]
    config, params = hot.trimmed(
      full.network.config, full.params, range(1, 9), projection
    )
    found[f"trimmed {name}"] = Model(network_for(config), params)
  return found


def target() -> Model:
  """Returns the target, with outputs that vary and end at several places."""
  return Model(network_for(CONFIGS[0]), drawn(CONFIGS[0], seed=32))


@functools.cache
def decoder_only() -> dict[str, Model]:
  """Returns a decoder-only target and the networks of `PROMPTED`, by name."""
  target, draft = (tiny_gpt.config(1, width, vocab_size=16) for width in (16, 8))
  heads = HeadsConfig("medusa", GAMMA, target.emb_dim)
  configs = {"target": target, "draft": draft, "medusa": heads}
  return {name: Model(network_for(x), drawn(x, 64)) for name, x in configs.items()}


def drawn(config: Any, seed: int = 29) -> Any:
  """Returns parameters drawn with NumPy: an initializer would be compiled."""
  return drawn_like(dict(abstract_state(network_for(config)).params), seed)


def drawn_like(shapes: Any, seed: int = 29) -> Any:
  """Returns parameters with the shapes."""
  draw = np.random.default_rng(seed).normal

  # Vectors are scales of layer norms.
  def draw_leaf(x):
    return ((x.ndim < 2) + draw(scale=0.25, size=x.shape)).astype(x.dtype)

  return jax.tree.map(draw_leaf, shapes)


# ---- The table. ----


@dataclasses.dataclass(frozen=True)
class Row:
  """A way to draft.

  Attributes:
    drafter: makes the drafter from networks by name, of `TABLES` or `models`.
    networks: the drafter's networks, by name in the decoder.
    rule: the rule that verifies the drafts.
    on: the networks that draft this way.
    policy: the policy of the gin files.
    gin: gin files of configs/ after spec_ende.gin; None for ways without gin files.
    macros: values of gin macros, beside GAMMA = 3.
    is_drawn: whether drafted tokens are drawn; otherwise they are certain.
  """

  drafter: Callable[[Mapping[str, Any]], Drafter]
  networks: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {"draft": "draft"}
  )
  rule: str = "token"
  on: tuple[str, ...] = ("tables", "networks")
  policy: Policy = dataclasses.field(default_factory=Fixed)
  gin: tuple[str, ...] | None = ()
  macros: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  is_drawn: bool = True

  def of_networks(self, found: Mapping[str, Model]) -> Drafter:
    """Returns the drafter of the models' networks."""
    return self.drafter({name: model.network for name, model in found.items()})


NETWORKS = ("networks",)
HEADS = ("drafters/heads",)
PRUNED = (*HEADS, "drafters/pruned")
SMALL_TREE = {"NODES": 6, "WIDTH": 3, "RANKS": 3}


def _on_networks(drafter, name, rule="token", **settings) -> Row:
  """Returns a row that only tiny networks have, by the network's name."""
  return Row(drafter, {"draft": name}, rule, NETWORKS, **settings)


ROWS = {
  "draft model": Row(lambda n: DraftModel(n["draft"], GAMMA)),
  "draft model by name": Row(
    lambda n: DraftModel(n["draft"], 5),
    on=NETWORKS,
    policy=CostAware(),
    macros={"GAMMA": None},
  ),
  "auto": Row(
    lambda n: DraftModel(n["draft"], GAMMA),
    on=NETWORKS,
    policy=CostAware(by_row=True),
    gin=("policies/auto",),
    macros={"BY_ROW": True},
  ),
  "copy": Row(
    lambda n: Copy(GAMMA, match=1),
    {},
    gin=("drafters/copy",),
    macros={"COPY_MATCH": 1},
    is_drawn=False,
  ),
  "sparse": Row(
    lambda n: SparseDraft(n["draft"], GAMMA, Truncation(4)),
    gin=("contrib/sparse",),
    macros={"DRAFT_TOPK": 4},
  ),
  "link": Row(
    lambda n: Link(Local.of(honest(n["draft"])), GAMMA, Truncation(4)),
    on=("tables",),
    gin=None,
  ),
  "tree": Row(
    lambda n: TreeDraft(n["draft"], delayed(1, 2, GAMMA), "likeliest"),
    rule="traversal",
    gin=("drafters/tree",),
    macros={"STEM": 1, "SIBLINGS": "likeliest"},
  ),
  "distinct tree": Row(
    lambda n: TreeDraft(n["draft"], delayed(2, 2, GAMMA), "distinct"),
    rule="traversal",
    gin=("drafters/tree",),
  ),
  "candidates": Row(
    lambda n: TreeDraft(n["draft"], delayed(0, 2, GAMMA)),
    rule="kseq",
    macros={"NUM_CANDIDATES": 2, "VERIFICATION": "kseq"},
  ),
  "draft model with a row less": _on_networks(
    lambda n: DraftModel(n["fewer"], GAMMA), "fewer", gin=None
  ),
  "tree with a row more": _on_networks(
    lambda n: TreeDraft(n["more"], delayed(0, 2, GAMMA)), "more", "kseq", gin=None
  ),
  "heads with a row less": _on_networks(
    lambda n: HeadDraft(n["fewer medusa"]), "fewer medusa", "traversal", gin=None
  ),
  "ngram": _on_networks(
    lambda n: DraftModel(n["ngrams"], GAMMA), "ngrams", gin=("drafters/ngram",)
  ),
  "ngram by name": _on_networks(
    lambda n: DraftModel(n["ngrams"], GAMMA), "ngrams", macros={"DRAFTER": "ngram"}
  ),
  "ngrams in a tree": _on_networks(
    lambda n: TreeDraft(n["ngrams"], delayed(2, 2, GAMMA), "distinct"),
    "ngrams",
    "traversal",
    gin=("drafters/ngram", "drafters/tree"),
  ),
  "shared encoder": _on_networks(
    lambda n: DraftModel(n["shared"], GAMMA), "shared", gin=("drafters/shared_encoder",)
  ),
  "shared encoder in a tree": _on_networks(
    lambda n: TreeDraft(n["shared"], delayed(1, 2, GAMMA), "distinct"),
    "shared",
    "traversal",
    gin=("drafters/shared_encoder", "drafters/tree"),
    macros={"STEM": 1},
  ),
  "trimmed": _on_networks(
    lambda n: DraftModel(n["trimmed shared"], GAMMA),
    "trimmed shared",
    gin=("drafters/trimmed",),
  ),
  "medusa": Row(
    lambda n: HeadDraft(n["medusa"]), {"draft": "medusa"}, "traversal", gin=HEADS
  ),
  "heads in a tree": Row(
    lambda n: HeadDraft(n["medusa"], TREE, "likeliest"),
    {"draft": "medusa"},
    "traversal",
    gin=None,
  ),
  "pruned heads": Row(
    lambda n: HeadDraft(n["medusa"], Pruned(6, 3, 3)),
    {"draft": "medusa"},
    "traversal",
    gin=PRUNED,
    macros=SMALL_TREE,
    is_drawn=False,
  ),
  "blockwise": _on_networks(
    lambda n: HeadDraft(n["blockwise"]), "blockwise", "traversal", gin=HEADS
  ),
  "parallel": _on_networks(
    lambda n: ParallelDraft(n["parallel"]), "parallel", "traversal", gin=HEADS
  ),
  "parallel in a tree": _on_networks(
    lambda n: ParallelDraft(n["parallel"], TREE, "likeliest"),
    "parallel",
    "traversal",
    gin=None,
  ),
  "parallel by ngrams": Row(
    lambda n: ParallelDraft(
      n["parallel"], Pruned(6, 3, 3, table=n["ngrams"], weight=0.25)
    ),
    {"draft": "parallel", "ngrams": "ngrams"},
    "traversal",
    NETWORKS,
    gin=(*PRUNED, "drafters/pruned_by_ngrams"),
    macros=SMALL_TREE,
  ),
  "eagle": _on_networks(
    lambda n: EagleDraft(n["eagle"], GAMMA), "eagle", "traversal", gin=HEADS
  ),
  "trimmed eagle": _on_networks(
    lambda n: EagleDraft(n["trimmed eagle"], 5),
    "trimmed eagle",
    "traversal",
    policy=CostAware(),
    gin=HEADS,
    macros={"GAMMA": None},
  ),
  "layer skip": Row(
    lambda n: LayerSkip(("self_0",), GAMMA),
    {},
    on=NETWORKS,
    gin=("drafters/layer_skip",),
    macros={"SKIP": ("self_0",)},
  ),
  "quantized": Row(
    lambda n: Quantized(4, 8, ("logits",), ("mlp_0",), GAMMA),
    {},
    on=NETWORKS,
    gin=("drafters/quantized",),
    macros={"BITS": 4, "GROUP": 8, "WHOLE": ("logits",), "SKIP": ("mlp_0",)},
  ),
  "quantized by name": Row(
    lambda n: Quantized(),
    {},
    on=NETWORKS,
    policy=CostAware(prior_alpha=0.9),
    macros={"DRAFTER": "quantized", "GAMMA": None, "DRAFT_CHECKPOINT_PATH": None},
  ),
  "cascade": Row(
    lambda n: Cascade(n["draft"], DraftModel(n["lower"], 1), GAMMA),
    {"draft": "draft", "draft_2": "lower"},
    gin=("drafters/cascade",),
    macros={"LOWER_GAMMA": 1},
  ),
  "cascade that ends early": Row(
    lambda n: Cascade(n["draft"], DraftModel(n["lower"], 2), GAMMA, "flush"),
    {"draft": "draft", "draft_2": "lower"},
    gin=("drafters/cascade",),
    macros={"WINDOW": "flush"},
  ),
  "cascade of copies": Row(
    lambda n: Cascade(n["draft"], Copy(2, 1), GAMMA),
    gin=("drafters/cascade_copy",),
    macros={"COPY_MATCH": 1, "LOWER_GAMMA": 2},
  ),
  "cascade on rounded weights": Row(
    lambda n: Cascade(Quantized(4, 8), DraftModel(n["draft"], 2), GAMMA),
    on=NETWORKS,
    gin=("drafters/cascade_quantized",),
    macros={"BITS": 4, "GROUP": 8},
  ),
  "three levels": Row(
    lambda n: Cascade(n["draft"], Cascade(n["lower"], DraftModel(n["lower"], 1), 3), 6),
    on=("tables",),
    gin=None,
  ),
}

ON_TABLES = {name: row for name, row in ROWS.items() if "tables" in row.on}
ON_NETWORKS = {name: row for name, row in ROWS.items() if "networks" in row.on}
# Ways to continue prompts of decoder-only networks: a row per kind of drafter.
PROMPTED = ("draft model", "distinct tree", "copy", "medusa", "layer skip", "quantized")
IN_GIN = {name: row for name, row in ROWS.items() if row.gin is not None}


def source(rows: int) -> jax.Array:
  """Returns the encoder's input of table models, equal in every row, for copies."""
  return jnp.tile(jnp.array((3, 2, 4, 3, 4, 2, 1)), (rows, 1))
