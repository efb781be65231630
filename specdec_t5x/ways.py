"""The table of all ways to draft.

A new way has a file, a record in this table, a gin file and a page. Everything else
reads the record: names in gin and Python (`build`), the reference, the benchmarks, and
the tests that all ways share. Classes are imported on first use. A drafter's class
states its knobs, its default policy and its limits (`decoding.contracts`); the record
states the rest.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from typing import Any

from specdec_t5x.core.knobs import Knob, knobs_of


@dataclasses.dataclass(frozen=True)
class Way:
  """The record of a way to draft.

  Attributes:
    name: the name; the value of DRAFTER in gin if `is_named`.
    drafter: "module:Class" of the drafter.
    about: one line of documentation.
    networks: how the networks are trained, by their names.
    page: the page in docs/methods/.
    gin: the gin file in configs/, or ''.
    is_named: whether gin and Python can ask for the way by name.
    tiny: knobs for tests with tiny networks.
  """

  name: str
  drafter: str
  about: str
  networks: Mapping[str, str] = dataclasses.field(default_factory=dict)
  page: str = ""
  gin: str = ""
  is_named: bool = False
  tiny: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def kind(self) -> type:
    """The class of the drafter, or the base class of drafters of several kinds."""
    module, _, name = self.drafter.partition(":")
    return getattr(importlib.import_module(f"specdec_t5x.{module}"), name)

  @property
  def knobs(self) -> dict[str, tuple[Any, Knob]]:
    """The default and the declaration of each knob, by field."""
    return knobs_of(self.kind)

  @property
  def needs_network(self) -> bool:
    """Whether the drafter has a network of its own."""
    return "draft" in self.networks

  def make(self, networks: Mapping[str, Any] | None = None, **knobs: Any) -> Any:
    """Returns the drafter.

    Args:
      networks: the drafter's networks, by name.
      **knobs: knobs with other values than the defaults.
    """
    if self.needs_network:
      knobs = {"network": (networks or {})["draft"], **knobs}
    return self.kind(**knobs)


_MODEL = "a smaller model of the family; python -m specdec_t5x.train distils it"
_HEADS = "heads on the target's features; python -m specdec_t5x.train --job=heads"
_TABLE = "a table of n-grams; python -m specdec_t5x.train --job=ngrams counts it"

_RECORDS = (
  Way(
    "draft_model",
    "drafters.draft_model:DraftModel",
    "a smaller model drafts token by token",
    {"draft": _MODEL},
    page="draft_model",
    is_named=True,
    tiny={"gamma": 3},
  ),
  Way(
    "ngram",
    "drafters.draft_model:DraftModel",
    "a table of n-grams drafts token by token",
    {"draft": _TABLE},
    page="ngram",
    gin="drafters/ngram.gin",
    is_named=True,
    tiny={"gamma": 3},
  ),
  Way(
    "copy",
    "drafters.copy:Copy",
    "copies what followed the last tokens before, in the input or the output",
    page="copy",
    gin="drafters/copy.gin",
    is_named=True,
    tiny={"gamma": 3, "match": 1},
  ),
  Way(
    "heads",
    "drafters.heads:Headed",
    "heads draft from the target's features",
    {"draft": _HEADS},
    page="heads",
    gin="drafters/heads.gin",
    is_named=True,
  ),
  Way(
    "parallel",
    "drafters.heads:ParallelDraft",
    "one layer drafts all positions in one pass",
    {"draft": _HEADS},
    page="heads",
    gin="drafters/heads.gin",
  ),
  Way(
    "eagle",
    "drafters.eagle:EagleDraft",
    "one layer drafts token by token from the target's features and its own",
    {"draft": _HEADS},
    page="eagle",
    gin="drafters/heads.gin",
    tiny={"gamma": 3},
  ),
  Way(
    "tree",
    "drafters.tree_draft:TreeDraft",
    "a smaller model drafts a tree",
    {"draft": _MODEL},
    page="tree",
    gin="drafters/tree.gin",
  ),
  Way(
    "quantized",
    "drafters.of_target:Quantized",
    "the target with its weights in 8 or 4 bits drafts for itself",
    page="quantized",
    gin="drafters/quantized.gin",
    is_named=True,
    tiny={"bits": 4, "group": 8, "gamma": 3},
  ),
  Way(
    "sparse",
    "contrib.sparse:SparseDraft",
    "a smaller model drafts from the likeliest tokens of its distributions",
    {"draft": _MODEL},
    page="link",
    gin="contrib/sparse.gin",
    is_named=True,
    tiny={"gamma": 3, "top_k": 4},
  ),
  Way(
    "link",
    "contrib.link.drafter:Link",
    "a draft in another process",
    page="link",
    gin="contrib/link.gin",
  ),
  Way(
    "cascade",
    "drafters.cascade:Cascade",
    "a draft that is sped up by a draft of its own",
    {"draft": _MODEL},
    page="cascade",
    gin="drafters/cascade.gin",
  ),
  Way(
    "layer_skip",
    "drafters.of_target:LayerSkip",
    "the target without some of its sublayers drafts for itself",
    page="layer_skip",
    gin="drafters/layer_skip.gin",
    tiny={"skip": ("self_0",), "gamma": 3},
  ),
  Way(
    "position_heads",
    "drafters.heads:HeadDraft",
    "feed-forward heads (blockwise, Medusa), one for each position",
    {"draft": _HEADS},
    page="heads",
    gin="drafters/heads.gin",
  ),
)

WAYS = {way.name: way for way in _RECORDS}
NAMED = {name: way for name, way in WAYS.items() if way.is_named}
