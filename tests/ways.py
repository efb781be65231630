"""Every way to draft: the drafter on tiny models, and the gin files.

tests/test_ways.py tests the common properties of the ways. The tests of the command
(tests/e2e) read the same table.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x import ways
from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.core.knobs import knobs_of
from specdec_t5x.core.tree import Tree, delayed
from specdec_t5x.decoding.contracts import Drafter, Policy
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.heads import HeadDraft
from specdec_t5x.drafters.of_target import Quantized
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network import hot
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.functional import Network, network_for
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.t5x_bridge.restore import abstract_state
from specdec_t5x.training.ngrams import estimate
from specdec_t5x.ways import Model, headed
from tests.contrib.link.local import Local, honest
from tests.hash_model import HashHeads, HashModel
from tests.t5x_bridge import tiny

GAMMA = 3

# ---- Table models with distributions that can be enumerated ----


@dataclasses.dataclass(frozen=True)
class Similar(HashModel):
  """A table that mostly agrees with the table of `model`."""

  model: HashModel | None = None
  noise: float = 0.6

  @property
  def table(self):
    return self.model.table + self.noise * super().table


TARGET = HashModel(seed=1, vocab_size=5, eos_bias=-1.5)
MIDDLE = Similar(9, 5, model=TARGET)
LOWER = HashModel(seed=2, vocab_size=5, eos_bias=-1.5)
MEDUSA = HashHeads(4, 5, HeadsConfig("medusa", 3, 1))
SOURCE = (3, 2, 4, 3, 4, 2, 1)  # The encoder's input, for drafts that copy.

# ---- Tiny networks ----

TREE = Tree((0, 0, 1, 1, 3))
HOT_TOKENS = range(1, 9)
# The target and the draft model.
CONFIGS = tiny.config(1, 16, vocab_size=12), tiny.config(1, 8, vocab_size=12)


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
  }
  found = {name: Model(network_for(x), drawn(x)) for name, x in configs.items()}
  table, params = estimate([[2, 3, 2, 5, 1], [4, 3, 2, 1], [5, 4, 2, 3, 1]], size, 3)
  found["ngrams"] = Model(table, params)
  projection = hot.projection(found["shared"].params)
  for name, draft_name in (("trimmed", "shared"), ("trimmed eagle", "eagle")):
    full = found[draft_name]
    config, params = hot.trimmed(
      full.network.config, full.params, HOT_TOKENS, projection
    )
    found[name] = Model(network_for(config), params)
  return found


def drawn(config: Any) -> Any:
  """Returns parameters drawn with NumPy: an initializer would be compiled."""
  return drawn_like(dict(abstract_state(network_for(config)).params))


def drawn_like(shapes: Any) -> Any:
  """Returns parameters with the shapes."""
  # With this seed, outputs of the target in CONFIGS vary and end at several places.
  draw = np.random.default_rng(29).normal

  # Vectors are scales of layer norms.
  def draw_leaf(x):
    return ((x.ndim < 2) + draw(scale=0.25, size=x.shape)).astype(x.dtype)

  return jax.tree.map(draw_leaf, shapes)


# ---- The table ----

Networks = Mapping[str, Network]


@dataclasses.dataclass(frozen=True)
class Way:
  """A way to draft.

  Attributes:
    drafter: makes the drafter from the networks of `models` by name; None if no tiny
      network drafts that way.
    models: names of the drafter's networks in `models`, by name in the decoder.
    tables: the drafter on table models; None if table models don't draft that way.
    rule: the rule that verifies the drafts.
    policy: the policy of the gin files.
    files: gin files of configs/ after spec_ende.gin; None for ways without gin files.
    bindings: values of gin macros, beside GAMMA = 3.
    page: the page in docs/methods/, without .md.
  """

  drafter: Callable[[Networks], Drafter] | None = None
  models: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {"draft": "draft"}
  )
  tables: Drafter | None = None
  rule: str = "token"
  policy: Policy = dataclasses.field(default_factory=Fixed)
  files: tuple[str, ...] | None = ()
  bindings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  page: str = "draft_model"


HEADS = ("drafters/heads",)
PRUNED = (*HEADS, "drafters/pruned")
SMALL_TREE = {"NODES": 6, "WIDTH": 3, "RANKS": 3}


def _by_heads(name: str, shape: Any = None, **settings) -> Way:
  """Returns the way of a kind of heads: a chain unless a shape is given."""
  siblings = {"siblings": "likeliest"} if isinstance(shape, Tree) else {}
  settings = {"page": "heads", "files": HEADS, "rule": "traversal", **settings}

  def drafter(networks):
    return headed(networks[name], shape, **siblings)

  return Way(drafter, {"draft": name}, **settings)


def _of_record(record: ways.Way) -> Way:
  """Returns the way of a record with a tiny drafter: no other entry is needed."""
  model = "ngrams" if record.name == "ngram" else "draft"
  macros = {field: knob.macro for field, (_, knob) in knobs_of(record.kind).items()}
  on_tables = record.make(MIDDLE, **record.tiny)
  has_tables = not on_tables.traits.reads_target and model == "draft"
  models = {"draft": model} if record.needs_network else {}

  def drafter(networks):
    return record.make(networks.get(model), **record.tiny)

  return Way(
    drafter,
    models,
    tables=on_tables if has_tables else None,
    files=(record.gin.removesuffix(".gin"),) if record.gin else (),
    bindings={macros[x]: value for x, value in record.tiny.items() if x != "gamma"},
  )


WAYS = {
  record.name.replace("_", " "): _of_record(record)
  for record in ways.WAYS.values()
  if record.tiny
}
WAYS |= {
  "draft model by name": Way(
    lambda n: DraftModel(n["draft"], 5), policy=CostAware(), bindings={"GAMMA": None}
  ),
  "ngram by name": Way(
    lambda n: DraftModel(n["ngrams"], GAMMA),
    {"draft": "ngrams"},
    bindings={"DRAFTER": "ngram"},
    page="ngram",
  ),
  "ngrams in a tree": Way(
    lambda n: TreeDraft(n["ngrams"], delayed(2, 2, GAMMA), "distinct"),
    {"draft": "ngrams"},
    rule="traversal",
    files=("drafters/ngram", "drafters/tree"),
    page="ngram",
  ),
  "tree": Way(
    lambda n: TreeDraft(n["draft"], delayed(1, 2, GAMMA), "likeliest"),
    tables=TreeDraft(MIDDLE, delayed(1, 2, 3), "likeliest"),
    rule="traversal",
    files=("drafters/tree",),
    bindings={"STEM": 1, "SIBLINGS": "likeliest"},
    page="tree",
  ),
  "distinct tree": Way(
    lambda n: TreeDraft(n["draft"], delayed(2, 2, GAMMA), "distinct"),
    tables=TreeDraft(MIDDLE, Tree((0, 0, 1, 1)), "distinct"),
    rule="traversal",
    files=("drafters/tree",),
    page="tree",
  ),
  "candidates": Way(
    lambda n: TreeDraft(n["draft"], delayed(0, 2, GAMMA)),
    tables=TreeDraft(MIDDLE, delayed(1, 2, 3)),
    rule="kseq",
    bindings={"NUM_CANDIDATES": 2, "VERIFICATION": "kseq"},
    page="kseq",
  ),
  "auto": Way(
    lambda n: DraftModel(n["draft"], GAMMA),
    policy=CostAware(by_row=True),
    files=("policies/auto",),
    bindings={"BY_ROW": True},
    page="policies",
  ),
  "shared encoder": Way(
    lambda n: DraftModel(n["shared"], GAMMA),
    {"draft": "shared"},
    files=("drafters/shared_encoder",),
  ),
  "shared encoder in a tree": Way(
    lambda n: TreeDraft(n["shared"], delayed(1, 2, GAMMA), "distinct"),
    {"draft": "shared"},
    rule="traversal",
    files=("drafters/shared_encoder", "drafters/tree"),
    bindings={"STEM": 1},
  ),
  "trimmed": Way(
    lambda n: DraftModel(n["trimmed"], GAMMA),
    {"draft": "trimmed"},
    files=("drafters/trimmed",),
    page="trimmed",
  ),
  "medusa": _by_heads("medusa", tables=HeadDraft(MEDUSA)),
  "blockwise": _by_heads("blockwise"),
  "heads in a tree": _by_heads(
    "medusa", TREE, tables=HeadDraft(MEDUSA, TREE, "likeliest"), files=None
  ),
  "pruned heads": _by_heads(
    "medusa",
    Pruned(6, 3, 3),
    tables=HeadDraft(MEDUSA, Pruned(5, 3, 3)),
    files=PRUNED,
    bindings=SMALL_TREE,
  ),
  "parallel": _by_heads("parallel"),
  "parallel in a tree": _by_heads("parallel", TREE, files=None),
  "parallel by ngrams": Way(
    lambda n: headed(n["parallel"], Pruned(6, 3, 3, table=n["ngrams"], weight=0.25)),
    {"draft": "parallel", "ngrams": "ngrams"},
    rule="traversal",
    files=(*PRUNED, "drafters/pruned_by_ngrams"),
    bindings=SMALL_TREE,
    page="heads",
  ),
  "eagle": _by_heads("eagle", page="eagle"),
  "trimmed eagle": Way(
    lambda n: headed(n["trimmed eagle"], gamma=5),
    {"draft": "trimmed eagle"},
    rule="traversal",
    policy=CostAware(),
    files=HEADS,
    bindings={"GAMMA": None},
    page="trimmed",
  ),
  "quantized": Way(
    lambda n: Quantized(4, 8, ("logits",), ("mlp_0",), GAMMA),
    {},
    files=("drafters/quantized",),
    bindings={"BITS": 4, "GROUP": 8, "WHOLE": ("logits",), "SKIP": ("mlp_0",)},
    page="quantized",
  ),
  "quantized by name": Way(
    lambda n: Quantized(),
    {},
    policy=CostAware(prior_alpha=0.9),
    bindings={"DRAFTER": "quantized", "GAMMA": None, "DRAFT_CHECKPOINT_PATH": None},
    page="quantized",
  ),
  "link": Way(
    tables=Link(Local.of(honest(MIDDLE)), 3, top_k=4),
    files=None,
    page="link",
  ),
  "cascade": Way(
    lambda n: Cascade(n["draft"], DraftModel(n["lower"], 1), GAMMA),
    {"draft": "draft", "draft_2": "lower"},
    tables=Cascade(MIDDLE, DraftModel(LOWER, 2), 8),
    files=("drafters/cascade",),
    bindings={"LOWER_GAMMA": 1},
    page="cascade",
  ),
  "cascade that ends early": Way(
    lambda n: Cascade(n["draft"], DraftModel(n["lower"], 2), GAMMA, "flush"),
    {"draft": "draft", "draft_2": "lower"},
    tables=Cascade(MIDDLE, DraftModel(LOWER, 2), 4, "flush"),
    files=("drafters/cascade",),
    bindings={"WINDOW": "flush"},
    page="cascade",
  ),
  "cascade of copies": Way(
    lambda n: Cascade(n["draft"], Copy(2, 1), GAMMA),
    tables=Cascade(MIDDLE, Copy(2, match=1), 4),
    files=("drafters/cascade_copy",),
    bindings={"COPY_MATCH": 1, "LOWER_GAMMA": 2},
    page="cascade",
  ),
  "cascade on rounded weights": Way(
    lambda n: Cascade(Quantized(4, 8), DraftModel(n["draft"], 2), GAMMA),
    files=("drafters/cascade_quantized",),
    bindings={"BITS": 4, "GROUP": 8},
    page="cascade",
  ),
  "three levels": Way(
    tables=Cascade(MIDDLE, Cascade(LOWER, DraftModel(LOWER, 1), 3), 6),
    files=None,
    page="cascade",
  ),
}

ON_TABLES = {name: way.tables for name, way in WAYS.items() if way.tables is not None}
ON_NETWORKS = {name: way for name, way in WAYS.items() if way.drafter is not None}
IN_GIN = {name: way for name, way in WAYS.items() if way.files is not None}


def networks_of(found: Mapping[str, Model]) -> Networks:
  """Returns the networks of models by name."""
  return {name: model.network for name, model in found.items()}


def source(rows: int) -> jax.Array:
  """Returns the encoder's input of table models, equal in every row."""
  return jnp.tile(jnp.array(SOURCE), (rows, 1))
