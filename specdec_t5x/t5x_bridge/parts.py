"""From what gin files set in words to the objects that decode."""

import dataclasses
from typing import Any

from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.rules import get_rule
from specdec_t5x.core.types import Rule
from specdec_t5x.decoding.beam_decoder import BeamDecoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.policy import Policy
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.registry import get_drafter, needs_network, policy_for
from specdec_t5x.drafters.stepwise import DEFAULT_GAMMA
from specdec_t5x.network import ngram
from specdec_t5x.network.functional import (
  HEADS,
  Network,
  Settings,
  network_for,
)
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.network.parallel import ParallelConfig
from specdec_t5x.t5x_bridge.checkpoint import parameter_shapes, settings


def drafter(
  choice: Drafter | str,
  network: Network,
  path: str | None,
  gamma: int | None,
  num_candidates: int,
) -> Drafter:
  """Returns the drafter that DRAFTER names, or is.

  Args:
    choice: DRAFTER.
    network: what gin configures, for 'draft_model'.
    path: the draft's checkpoint; the sizes of n-grams and heads are read off it.
    gamma: GAMMA.
    num_candidates: NUM_CANDIDATES.

  Raises:
    ValueError: where settings do not go together, or `path` does not have what is
      needed.
  """
  if choice == "ngram":
    network = ngram_table(path)
  elif choice == "heads":
    network = heads(path)
  elif not needs_network(choice):
    network = None
  return get_drafter(choice, network, gamma, num_candidates)


def length(gamma: int | None, longest: int = DEFAULT_GAMMA) -> int:
  """Returns the longest draft, in tokens: GAMMA, or `longest` where it is not set."""
  return longest if gamma is None else gamma


def policy(
  choice: Policy | str | None,
  gamma: int | None,
  drafter: Drafter,
) -> Policy:
  """Returns the policy that GAMMA_POLICY names, or is.

  Args:
    choice: GAMMA_POLICY; None drafts GAMMA tokens where that is set, and as many as pay
      where it is not.
    gamma: GAMMA.
    drafter: what drafts.
  """
  return policy_for(drafter, choice, gamma, is_word=True)


def ngram_table(path: str | None, order: int = 0) -> ngram.NgramTable:
  """Returns the network of a table of n-grams.

  Args:
    path: its checkpoint, off which its size is read.
    order: look up no longer n-grams than these; 0 for all.

  Raises:
    ValueError: where there is no table at `path`, or `order` is none.
  """
  if not is_whole(order, 0):
    raise ValueError(
      f"NGRAM_ORDER must be a whole number of at least 0, got {order!r}. 0 is the "
      "table's."
    )
  if path is None:
    raise ValueError(
      "DRAFTER='ngram' needs DRAFT_CHECKPOINT_PATH, a table that python -m "
      "specdec_t5x.train --job=ngrams made; got None."
    )
  return ngram.NgramTable(ngram.config_from_shapes(parameter_shapes(path), order))


def heads(path: str | None, dtype: str = "float32") -> HEADS:
  """Returns the network of heads, whose kind and size are read off their checkpoint.

  Args:
    path: the checkpoint.
    dtype: of the activations.

  Raises:
    ValueError: where there are no heads at `path`.
  """
  if path is None:
    raise ValueError(
      "Heads need DRAFT_CHECKPOINT_PATH, a checkpoint that python -m specdec_t5x.train "
      "--gin_file=configs/train/heads.gin made; got None."
    )
  network = network_for(settings(path, dtype))
  if not isinstance(network, HEADS):
    raise ValueError(
      f"DRAFT_CHECKPOINT_PATH={path} must hold heads, got a {type(network).__name__}. "
      "Leave out configs/drafters/heads.gin, or give heads' checkpoint."
    )
  return network


def network_at(path: str, dtype: str = "float32") -> Network:
  """Returns the network of a checkpoint, whose kind and sizes are read off it.

  Args:
    path: the checkpoint: of a draft model, or of a table of n-grams.
    dtype: of the activations.

  Raises:
    ValueError: where there is no checkpoint at `path`.
  """
  return network_for(settings(path, dtype))


def network_settings(path: str, dtype: str, **knobs: Any) -> Settings:
  """Returns the configuration of a checkpoint's network, read off it.

  Args:
    path: the checkpoint, or a Hugging Face folder.
    dtype: of the activations.
    **knobs: of the configuration: sharding, products.

  Raises:
    ValueError: where there is no checkpoint at `path`.
  """
  return dataclasses.replace(settings(path, dtype), **knobs)


def new_heads(target_path: str, kind: str, count: int, **knobs: Any) -> HEADS:
  """Returns the network of heads for a target, whose sizes are read off its checkpoint.

  Args:
    target_path: of the target.
    kind: 'parallel', or one of `network.heads.KINDS`.
    count: heads, or positions that are drafted.
    **knobs: of `network.heads.HeadsConfig`; a parallel drafter has none.

  Raises:
    ValueError: where there is no target at `target_path`, or a knob is out of range.
  """
  target = settings(target_path)
  if kind != "parallel":
    return network_for(HeadsConfig(kind, count, target.emb_dim, **knobs))
  return network_for(ParallelConfig.of(target, count))


def rule(choice: Rule | str, lenience: float) -> Rule:
  """Returns the rule that VERIFICATION names, or is.

  Args:
    choice: VERIFICATION.
    lenience: LENIENCE, of 'lenient' alone.

  Raises:
    ValueError: where the name is unknown, or there is another lenience than 1 for
      another rule.
  """
  if choice == "lenient":
    return get_rule(choice, lenience=lenience)
  if lenience != 1.0:
    raise ValueError(
      f"LENIENCE={lenience} needs VERIFICATION='lenient', got {choice!r}."
    )
  return get_rule(choice)


def beam(
  target: Network,
  drafter: Drafter,
  verification: str,
  lenience: float,
  seed: int,
  policy: Policy | str | None = None,
  **knobs: Any,
) -> BeamDecoder:
  """Returns a beam search with the draft model of a drafter.

  Args:
    target: the network whose hypotheses are searched for.
    drafter: a plain `DraftModel`; the draft searches with a beam of its own.
    verification: 'beam', for there is no other with a beam.
    lenience: 1.
    seed: 0.
    policy: None, or 'fixed': each tree has GAMMA levels.
    **knobs: of `BeamDecoder`.

  Raises:
    ValueError: where a setting is one that a beam has no use for.
  """
  if policy not in (None, "fixed"):
    raise ValueError(
      f"GAMMA_POLICY must be 'fixed' with a beam, or left out, got {policy!r}: each "
      "tree has GAMMA levels."
    )
  if verification != "beam" or lenience != 1.0:
    raise ValueError(
      f"VERIFICATION must be 'beam' with a beam, and LENIENCE 1, got {verification!r} "
      f"and {lenience}: hypotheses are compared, not tokens. Leave them out, or leave "
      "out configs/runs/beam.gin."
    )
  if type(drafter) is not DraftModel or not hasattr(drafter.network, "extend_slots"):
    raise ValueError(
      "DRAFTER must be 'draft_model' with a beam, and NUM_CANDIDATES 1, got "
      f"{type(drafter).__name__} whose network is "
      f"{type(getattr(drafter, 'network', None)).__name__}: the draft searches with a "
      "beam of its own."
    )
  return plain_beam(target, seed, draft=drafter.network, gamma=drafter.gamma, **knobs)


def plain_beam(
  target: Network, seed: int, slots: int = 0, block: int = 1, **knobs: Any
) -> BeamDecoder:
  """Returns a beam search.

  Args:
    target: the network whose hypotheses are searched for.
    seed: 0.
    slots: 0.
    block: 1.
    **knobs: of `BeamDecoder`.

  Raises:
    ValueError: where a setting is one that a beam has no use for.
  """
  if (seed, slots, block) != (0, 0, 1):
    raise ValueError(
      f"With a beam SEED and SLOTS must be 0 and BLOCK 1, got {seed}, {slots} and "
      f"{block}: it draws nothing, hypotheses end together, and the strict baseline is "
      "one of single tokens. Leave them out."
    )
  return BeamDecoder(target, **knobs)
