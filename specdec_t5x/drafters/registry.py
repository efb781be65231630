"""Drafters and gamma policies by name, for those who set them with a word."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.tree import Tree, chain, delayed
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.drafters.adaptive import AdaptiveDraft
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA, DraftModel
from specdec_t5x.drafters.exit_threshold import ExitThreshold
from specdec_t5x.drafters.heads import HeadDraft, Headed
from specdec_t5x.drafters.layer_skip import LayerSkip
from specdec_t5x.drafters.parallel import ParallelDraft
from specdec_t5x.drafters.paying import Paying
from specdec_t5x.drafters.policies import Auto, Confidence, Policy, Whole
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.drafters.sparse import SparseDraft
from specdec_t5x.drafters.tree_draft import TreeDraft

DRAFTERS: dict[str, type[Drafter]] = {
  "draft_model": DraftModel,
  "ngram": DraftModel,
  "copy": Copy,
  "heads": Headed,
  "sparse": SparseDraft,
}
POLICIES: dict[str, Policy | None] = {
  "auto": Auto(),
  "confidence": Confidence(),
  "exit": ExitThreshold(),
  "fixed": None,
}


def get_drafter(
  drafter: Drafter | str,
  network: Any = None,
  gamma: int | None = None,
  num_candidates: int = 1,
  policy: Policy | str = "fixed",
) -> Drafter:
  """Returns a drafter: as it is, or the one of that name with what is set in words.

  Args:
    drafter: a drafter of yours, or a name in `DRAFTERS`.
    network: of a named drafter that needs one.
    gamma: length of a draft, in tokens.
    num_candidates: independent drafts an iteration, of a draft model.
    policy: how long a draft model's drafts are; a name in `POLICIES`, or a policy.
      With 'auto', heads draft all or nothing, as pays (`Paying`); for other drafters,
      and for several candidates, it is 'fixed'.

  Raises:
    ValueError: where the name is unknown, or these settings do not go together.
  """
  is_auto = policy == "auto"
  is_model = isinstance(drafter, str) and DRAFTERS.get(drafter) is DraftModel
  if is_auto and not (is_model and num_candidates == 1):
    policy = "fixed"  # The default is of draft models; what else there is owns its own.
  policy = get_policy(policy)
  if not is_whole(num_candidates, 1):
    raise ValueError(
      f"NUM_CANDIDATES must be a whole number of at least 1, got {num_candidates!r}."
    )
  if isinstance(drafter, Drafter):
    own = getattr(drafter, "gamma", None)
    if policy or num_candidates > 1 or gamma not in (None, own):
      raise ValueError(
        f"A drafter owns its knobs: set them on your {type(drafter).__name__}, got "
        f"GAMMA={gamma}, NUM_CANDIDATES={num_candidates} and GAMMA_POLICY={policy}."
      )
    return drafter
  if needs_network(drafter) != (network is not None):
    raise ValueError(
      f"DRAFTER={drafter!r} needs {'a' if network is None else 'no'} draft network, "
      f"got {type(network).__name__}."
    )
  kind, plain = DRAFTERS[drafter], _named(drafter, network, gamma)
  if policy is None and num_candidates == 1:
    return Paying(plain) if is_auto and kind is Headed else plain
  if kind is not DraftModel or (policy and num_candidates > 1):
    raise ValueError(
      f"DRAFTER={drafter!r} with NUM_CANDIDATES={num_candidates} and GAMMA_POLICY="
      f"{policy} do not go together: a draft model has either several candidates or a "
      "policy, other drafters neither."
    )
  if policy:
    return AdaptiveDraft(network, plain.gamma, policy)
  return TreeDraft(network, delayed(0, num_candidates, plain.gamma))


def _named(name, network, gamma) -> Drafter:
  """Returns a drafter of one chain."""
  kind = DRAFTERS[name]
  if kind is Headed:
    return headed(network, None if gamma is None else chain(gamma))
  knobs = {} if network is None else {"network": network}
  return kind(gamma=DEFAULT_GAMMA if gamma is None else gamma, **knobs)


def headed(
  network: Any,
  shape: Tree | Pruned | None = None,
  siblings: str = "distinct",
  policy: str = "fixed",
) -> Headed | Paying:
  """Returns the drafter of heads, whatever their kind.

  Args:
    network: the heads.
    shape: see `heads.Headed`.
    siblings: see `heads.Headed`.
    policy: 'fixed', or 'auto' to draft while it pays (`Paying`).

  Raises:
    ValueError: where the network is no heads, or there is no such policy of theirs.
  """
  if policy not in ("auto", "fixed"):
    raise ValueError(
      f"GAMMA_POLICY must be 'auto' or 'fixed' with heads, got {policy!r}: they draft "
      "all at once."
    )
  kind = getattr(network.config, "kind", None)
  if kind is None:
    raise ValueError(
      f"Expected heads as draft, got a {type(network).__name__}. Load a checkpoint "
      "that configs/train/heads.gin made, or leave DRAFTER at 'draft_model'."
    )
  kind = ParallelDraft if kind == "parallel" else HeadDraft
  drafter = kind(network, shape, siblings)
  return Paying(drafter) if policy == "auto" else drafter


def layer_skip(
  skip: Sequence[str], gamma: int = DEFAULT_GAMMA, policy: Policy | str = "exit"
) -> LayerSkip:
  """Returns the target as its own drafter; `policy` may be a name in `POLICIES`."""
  return LayerSkip(skip, gamma, get_policy(policy) or Whole())


def needs_network(drafter: Drafter | str) -> bool:
  """Returns whether what is to draft needs a network to be handed to it.

  Raises:
    ValueError: where it is a name that no drafter has.
  """
  if isinstance(drafter, Drafter):
    return False
  if not isinstance(drafter, str) or drafter not in DRAFTERS:
    raise ValueError(
      f"Unknown DRAFTER {drafter!r}; expected one of {sorted(DRAFTERS)} or a Drafter."
    )
  return "network" in {field.name for field in dataclasses.fields(DRAFTERS[drafter])}


def get_policy(policy: Policy | str | None) -> Policy | None:
  """Returns a gamma policy: as it is, or the one of that name; None where it is fixed.

  Raises:
    ValueError: where there is none of that name.
  """
  if policy is None or isinstance(policy, Policy):
    return policy
  if policy == "online":
    raise ValueError(
      "GAMMA_POLICY='online' needs what drafting costs on this machine: add "
      "--gin_file=configs/policies/online.gin with the DRAFT_COST that "
      "scripts/bench_gamma.py measures, or pass OnlineAlpha(draft_cost=...)."
    )
  if policy not in POLICIES:
    raise ValueError(
      f"Unknown GAMMA_POLICY {policy!r}; expected one of {sorted(POLICIES)} or a "
      "Policy."
    )
  return POLICIES[policy]
