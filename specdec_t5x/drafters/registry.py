"""Drafters by name, for those who set them with a word."""

import dataclasses
from typing import Any

from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.tree import Tree, chain, delayed
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.policy import Fixed, Policy
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.heads import HeadDraft, Headed
from specdec_t5x.drafters.parallel import ParallelDraft
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.drafters.quantized import Quantized
from specdec_t5x.drafters.sparse import SparseDraft
from specdec_t5x.drafters.stepwise import Stepwise, check_gamma
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.policies import get_policy

DRAFTERS: dict[str, type[Drafter]] = {
  "draft_model": DraftModel,
  "ngram": DraftModel,
  "copy": Copy,
  "heads": Headed,
  "sparse": SparseDraft,
  "quantized": Quantized,
}


def get_drafter(
  drafter: Drafter | str,
  network: Any = None,
  gamma: int | None = None,
  num_candidates: int = 1,
) -> Drafter:
  """Returns a drafter: as it is, or the one of that name with what is set in words.

  Args:
    drafter: a drafter of yours, or a name in `DRAFTERS`.
    network: of a named drafter that needs one.
    gamma: length of a draft, in tokens.
    num_candidates: independent drafts an iteration, of a draft model.

  Raises:
    ValueError: where the name is unknown, or these settings do not go together.
  """
  if not is_whole(num_candidates, 1):
    raise ValueError(
      f"NUM_CANDIDATES must be a whole number of at least 1, got {num_candidates!r}."
    )
  if isinstance(drafter, Drafter):
    if num_candidates > 1 or gamma not in (None, drafter.depth):
      raise ValueError(
        f"A drafter owns its knobs: set them on your {type(drafter).__name__}, which "
        f"drafts {drafter.depth} tokens, got GAMMA={gamma} and "
        f"NUM_CANDIDATES={num_candidates}."
      )
    return drafter
  if needs_network(drafter) != (network is not None):
    raise ValueError(
      f"DRAFTER={drafter!r} needs {'a' if network is None else 'no'} draft network, "
      f"got {type(network).__name__}."
    )
  plain = _named(drafter, network, gamma)
  if num_candidates == 1:
    return plain
  if not isinstance(plain, DraftModel):
    raise ValueError(
      f"NUM_CANDIDATES={num_candidates} needs a draft model, got DRAFTER={drafter!r}, "
      "which drafts once an iteration."
    )
  return TreeDraft(network, delayed(0, num_candidates, plain.gamma))


def policy_for(
  drafter: Drafter, policy: Policy | str | None, gamma: int | None, is_word: bool
) -> Policy:
  """Returns how many tokens a drafter drafts: what was asked for, or what is usual.

  Args:
    drafter: whose drafts they are.
    policy: a name in `policies.POLICIES`, or a policy; None where none was asked for.
    gamma: a length that was asked for: without a policy each iteration drafts as much.
    is_word: whether the drafter is a gin file's or was named, not built by hand: then a
      network that drafts, or heads, draft as much as pays.
  """
  if policy is not None:
    return get_policy(policy)
  if gamma is not None:
    return Fixed()
  costs = is_word and isinstance(drafter, Stepwise | Headed)
  return get_policy("auto") if costs else drafter.usual_policy


def _named(name, network, gamma) -> Drafter:
  """Returns a drafter of one chain."""
  kind = DRAFTERS[name]
  if kind is Headed:
    return headed(network, gamma=gamma)
  knobs = {} if network is None else {"network": network}
  return kind(**knobs) if gamma is None else kind(gamma=gamma, **knobs)


def headed(
  network: Any,
  shape: Tree | Pruned | None = None,
  siblings: str = "distinct",
  gamma: int | None = None,
) -> Headed:
  """Returns the drafter of heads, whatever their kind.

  Args:
    network: the heads.
    shape: see `heads.Headed`.
    siblings: see `heads.Headed`.
    gamma: length of a chain, where there is no `shape`; None is that of all heads.

  Raises:
    ValueError: where the network is no heads.
  """
  if shape is None and gamma is not None:
    check_gamma(gamma)
    shape = chain(gamma)
  kind = getattr(network.config, "kind", None)
  if kind is None:
    raise ValueError(
      f"Expected heads as draft, got a {type(network).__name__}. Load a checkpoint "
      "that configs/train/heads.gin made, or leave DRAFTER at 'draft_model'."
    )
  kind = ParallelDraft if kind == "parallel" else HeadDraft
  return kind(network, shape, siblings)


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
