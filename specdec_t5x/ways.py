"""All ways to draft, and decoders from words of gin files and of Python.

A new way has a file, a line in the table, a gin file, a page, and a row in the table of
the tests. A drafter's class is imported on first use. The class states the knobs, the
default policy and the limits (`decoding.contracts`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.knobs import KnobError, check_value, invalid, is_whole
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.core.types import Rule
from specdec_t5x.decoding.contracts import Drafter, Policy
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.drafters.draft_model import GAMMA, DraftModel
from specdec_t5x.lazy import Lazy
from specdec_t5x.network.functional import Network
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.prepared import Model

POLICIES: Mapping[str, Policy] = {"auto": CostAware(), "fixed": Fixed()}


# The drafter of each way; for 'heads' the base class of several kinds (`headed`).
WAYS = Lazy(
  {
    "draft_model": "specdec_t5x.drafters.draft_model:DraftModel",
    "ngram": "specdec_t5x.drafters.draft_model:DraftModel",
    "copy": "specdec_t5x.drafters.copy:Copy",
    "heads": "specdec_t5x.drafters.heads:Headed",
    "parallel": "specdec_t5x.drafters.heads:ParallelDraft",
    "eagle": "specdec_t5x.drafters.eagle:EagleDraft",
    "tree": "specdec_t5x.drafters.tree_draft:TreeDraft",
    "quantized": "specdec_t5x.drafters.of_target:Quantized",
    "sparse": "specdec_t5x.contrib.sparse:SparseDraft",
    "link": "specdec_t5x.contrib.link.drafter:Link",
    "cascade": "specdec_t5x.drafters.cascade:Cascade",
    "layer_skip": "specdec_t5x.drafters.of_target:LayerSkip",
    "position_heads": "specdec_t5x.drafters.heads:HeadDraft",
  }
)
# The names for gin and Python.
NAMED = ("draft_model", "ngram", "copy", "heads", "quantized", "sparse")


def decoder(
  target: Network,
  draft: Network | None = None,
  drafter: Drafter | str | None = "draft_model",
  rule: Rule | str = "token",
  *,
  gamma: int | None = None,
  num_candidates: int = 1,
  policy: Policy | str | None = None,
  lenience: float = 1.0,
  alpha: float | None = None,
  paths: Mapping[str, str | None] | None = None,
  **settings: Any,
) -> Decoder:
  """Returns a decoder; gin and Python call this function.

  Args:
    target: the target's network.
    draft: the network of a named drafter.
    drafter: a drafter, or a name of `NAMED`; None for plain decoding.
    rule: accepts drafted tokens: a rule, or a name in `core.rules.RULES`.
    gamma: draft length of a named drafter; without a policy, of every draft.
    num_candidates: independent drafts of an iteration, of a named draft model.
    policy: decides draft lengths; see `policy_for`, as for `alpha`.
    lenience: of the rule 'lenient'.
    paths: in gin, the checkpoints of the networks. The sizes of n-grams and heads are
      read off the draft's checkpoint.
    **settings: further fields of `Decoder`: slots, block, same_bits, observer.

  Raises:
    ValueError: if settings do not go together, or a checkpoint lacks the network.
  """
  if drafter is None:
    words = {
      "rule": (rule, "token"),
      "gamma": (gamma, None),
      "num_candidates": (num_candidates, 1),
      "policy": (policy, None),
      "lenience": (lenience, 1.0),
      "alpha": (alpha, None),
    }
    if surplus := {name: x for name, (x, plain) in words.items() if x != plain}:
      raise ValueError(
        f"{surplus} need a draft, got None. Give a draft, or leave the settings out."
      )
    return Decoder(target, **settings)
  if paths is not None and drafter in ("ngram", "heads"):
    from specdec_t5x.checkpoints import networks

    load = networks.ngram_table if drafter == "ngram" else networks.heads
    draft = load(paths["draft"])
  is_word = paths is not None or isinstance(drafter, str)
  drafter = drafter_for(drafter, draft, gamma, num_candidates)
  policy = policy_for(drafter, policy, gamma, is_word, alpha)
  return Decoder(target, drafter, rule_for(rule, lenience), policy, **settings)


def drafter_for(
  drafter: Drafter | str,
  network: Network | None = None,
  gamma: int | None = None,
  num_candidates: int = 1,
) -> Drafter:
  """Returns a drafter unchanged, or makes the named drafter; see `decoder`."""
  if not is_whole(num_candidates, 1):
    raise invalid("num_candidates", "a whole number of at least 1", num_candidates)
  if isinstance(drafter, Drafter):
    if num_candidates > 1 or gamma not in (None, drafter.depth):
      raise KnobError(
        "A drafter owns its knobs: your {kind} drafts {part.depth} tokens, got "
        "{gamma}={length} and {num_candidates}={count}. Leave {gamma} and "
        "{num_candidates} out, and set the drafter's knobs.",
        kind=type(drafter).__name__,
        part=drafter,
        length=gamma,
        count=num_candidates,
      )
    return drafter
  if drafter not in NAMED:
    raise KnobError(
      "Unknown {drafter} {value!r}; expected one of {names} or a Drafter.",
      value=drafter,
      names=sorted(NAMED),
    )
  if needs_network(drafter) and network is None:
    raise KnobError(
      "{drafter}={value!r} needs a draft network, got None. Give the draft.",
      value=drafter,
    )
  if num_candidates > 1:
    if WAYS[drafter] is not DraftModel:
      raise KnobError(
        "{num_candidates}={count} needs a draft model, got {drafter}={value!r} with a "
        "single draft per iteration. Set {num_candidates} to 1.",
        count=num_candidates,
        value=drafter,
      )
    # Here alone: a single draft needs no trees.
    from specdec_t5x.drafters.tree_draft import TreeDraft, delayed

    return TreeDraft(network, delayed(0, num_candidates, gamma))
  if drafter == "heads":
    return headed(network, gamma=gamma)
  return make_drafter(drafter, network, gamma=gamma)


def needs_network(name: str) -> bool:
  """Returns whether the drafter of a name in `WAYS` has a network of its own."""
  return any(field.name == "network" for field in dataclasses.fields(WAYS[name]))


def make_drafter(name: str, network: Network | None, **knobs: Any) -> Drafter:
  """Returns the drafter of a name, with the network if the drafter needs a network."""
  if needs_network(name):
    knobs["network"] = network
  return WAYS[name](**knobs)


def headed(
  network: FeatureDrafter,
  shape: Any = None,
  siblings: str = "distinct",
  gamma: int | None = None,
) -> Drafter:
  """Returns the drafter of heads of any kind.

  Args:
    network: the heads.
    shape: a tree, `Pruned` or None; see `drafters.heads.Headed`.
    siblings: see `drafters.heads.Headed`.
    gamma: length of a chain without a `shape`; None is the number of heads.

  Raises:
    ValueError: if the network is not heads, or has no drafts of that shape.
  """
  if shape is None and gamma is not None:
    check_value(GAMMA, gamma, "gamma")
    shape = chain(gamma)
  if not isinstance(network, FeatureDrafter):
    raise KnobError(
      "Expected heads as draft, got a {kind}. Load a checkpoint made by "
      "configs/train/heads.gin, or leave {drafter} at 'draft_model'.",
      kind=type(network).__name__,
    )
  if network.config.kind != "eagle":
    way = "parallel" if network.config.kind == "parallel" else "position_heads"
    return WAYS[way](network, shape, siblings)
  if shape is not None and not (isinstance(shape, Tree) and shape.is_chain):
    raise KnobError(
      "EAGLE's drafter drafts chains, got {shape}={value!r}. Leave {shape} out, or "
      "draft with another kind of heads.",
      value=shape,
    )
  return WAYS["eagle"](network, shape and shape.depth)


def policy_for(
  drafter: Drafter,
  policy: Policy | str | None,
  gamma: int | None,
  is_word: bool = True,
  alpha: float | None = None,
) -> Policy:
  """Returns the policy that was asked for, or a drafter's default policy.

  Args:
    drafter: the drafter.
    policy: a policy, a name in `POLICIES`, or None.
    gamma: a draft length that was asked for. Without a policy every draft then has this
      length, as with a drafter that was built with a gamma.
    is_word: whether a gin file or a name asked for the drafter (`Traits.auto`).
    alpha: the acceptance rate that 'auto' expects before the first draft; None is the
      policy's own, or the drafter's (`Traits.prior_alpha`) if 'auto' is a name.
  """
  if policy is None:
    is_set = gamma is not None or getattr(drafter, "gamma", None) is not None
    is_auto = drafter.traits.auto in ("always", "named" if is_word else "always")
    policy = "auto" if is_auto and not is_set else "fixed"
  if policy == "auto" and alpha is None:
    alpha = drafter.traits.prior_alpha
  policy = POLICIES.get(policy, policy) if isinstance(policy, str) else policy
  if not isinstance(policy, Policy):
    raise KnobError(
      "Unknown {policy} {value!r}; expected one of {names} or a Policy.",
      value=policy,
      names=sorted(POLICIES),
    )
  if alpha is None or not isinstance(policy, CostAware):
    return policy
  return dataclasses.replace(policy, prior_alpha=alpha)


def rule_for(rule: Rule | str, lenience: float = 1.0) -> Rule:
  """Returns a rule unchanged, or makes the named rule; 'lenient' has a lenience."""
  if lenience != 1.0 and rule != "lenient":
    raise KnobError(
      "{lenience}={value} needs {rule}='lenient', got {name!r}.",
      value=lenience,
      name=rule,
    )
  if isinstance(rule, Rule):
    return rule
  if rule not in RULES:
    raise KnobError(
      "Unknown verification rule {value!r}; expected one of {names} or a Rule. Correct "
      "{rule}.",
      value=rule,
      names=sorted(RULES),
    )
  if rule == "lenient":
    return dataclasses.replace(RULES[rule], lenience=lenience)
  return RULES[rule]


def assembled(
  target: Model,
  draft: Model | Mapping[str, Model] | str | None = None,
  drafter: Drafter | str | None = None,
  rule: Rule | str = "token",
  **knobs: Any,
) -> tuple[Decoder, Mapping[str, Any]]:
  """Returns the decoder of some models, and its parameters on the device.

  Args:
    target: the target.
    draft: the draft model, the models of a drafter's networks by name, the name of a
      drafter without a network, or None.
    drafter: a drafter or a name; None is the drafter of `draft`, or plain decoding.
    rule: see `decoder`.
    **knobs: further arguments of `decoder`.

  Raises:
    ValueError: if settings of speculation are given without a draft, or the drafter
      needs other networks.
  """
  if isinstance(draft, str):
    if drafter is not None:
      raise ValueError(
        f"draft={draft!r} names a drafter, but drafter={drafter!r} names a drafter, "
        "too. Leave one out."
      )
    draft, drafter = None, draft
  drafts = {"draft": draft} if isinstance(draft, Model) else dict(draft or {})
  models = {"target": target, **drafts}
  networks = {name: model.network for name, model in models.items()}
  network = networks.get("draft")
  if drafter is None and draft is not None:
    drafter = "heads" if isinstance(network, FeatureDrafter) else "draft_model"
  result = decoder(target.network, network, drafter, rule, **knobs)
  if networks != result.networks:
    if drafts and set(result.networks) == {"target"}:
      raise ValueError(
        f"The drafter {type(result.drafter).__name__} needs no draft model, but draft "
        "has one. Set draft=None."
      )
    raise ValueError(
      f"The drafter {type(result.drafter).__name__} needs the networks "
      f"{sorted(result.drafter.networks)}, but draft has different networks, called "
      f"{sorted(drafts)}. Build the drafter with the networks of the models in draft."
    )
  params = jax.device_put({name: model.params for name, model in models.items()})
  if result.drafter is not None:
    params |= target.derived(result.drafter.derive(target.network))
  for name, model in drafts.items():
    params |= model.derived(result.derive(GREEDY, name), name)
  return result, params
