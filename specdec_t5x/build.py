"""Makes decoders from words of gin files and of Python."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax

from specdec_t5x import prepared
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.knobs import check_value, is_whole
from specdec_t5x.core.rules import get_rule
from specdec_t5x.core.tree import Tree, chain, delayed
from specdec_t5x.core.types import Rule
from specdec_t5x.decoding.contracts import Drafter, Policy
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA, GAMMA, DraftModel
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.lazy import Lazy
from specdec_t5x.network.functional import Network
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.policies import CostAware, get_policy
from specdec_t5x.ways import NAMED, WAYS

# The drafters that can be asked for by name.
DRAFTERS: Mapping[str, type[Drafter]] = Lazy(
  {name: f"specdec_t5x.{way.drafter}" for name, way in NAMED.items()}
)


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A network with its parameters; `specdec_t5x.load_model` makes one.

  A model equals itself alone: comparing parameters would take as long as reading.

  Attributes:
    network: the network.
    params: the parameters, rounded if the network's weights are rounded.
    restore: reads the parameters of the checkpoint again, if the weights are rounded.
    generation: the settings for generation in the checkpoint's folder.
    folder: the Hugging Face folder of the model, which may hold a vocabulary, or None.
  """

  network: Network
  params: Any = dataclasses.field(repr=False)
  restore: Callable[[], Any] | None = dataclasses.field(default=None, repr=False)
  generation: Generation = dataclasses.field(default_factory=Generation)
  folder: str | None = None
  # Not an argument: `dataclasses.replace` with other parameters derives anew.
  _derived: dict = dataclasses.field(default_factory=dict, init=False, repr=False)

  def derived(
    self, wanted: Mapping[str, Callable[[Any], Any]], name: str = "target"
  ) -> dict[str, Any]:
    """Returns arrays that a decode derives of the parameters; they are kept.

    Args:
      wanted: functions of the parameters, by name (`Decoder.derive`).
      name: the name of the network in the decode.
    """
    for of_decode, make in wanted.items():
      if make not in self._derived:
        params = self.restore() if self.restore else self.params
        self._derived[make] = prepared.made(of_decode, make, params, name)
    return {of_decode: self._derived[make] for of_decode, make in wanted.items()}


def together(
  target: Model,
  draft: Model | Mapping[str, Model] | str | None = None,
  drafter: Drafter | str | None = None,
  rule: Rule | str = "token",
  *,
  gamma: int | None = None,
  num_candidates: int = 1,
  policy: Policy | str | None = None,
  same_bits: bool | None = None,
) -> tuple[Decoder, Mapping[str, Any]]:
  """Returns the decoder of some models, and its parameters on the device.

  Args:
    target: the target.
    draft: the draft model, or the models of a drafter's networks by name; the name of a
      drafter without a network; None for plain decoding, or for a `drafter` without a
      network.
    drafter: see `specdec_t5x.generate`, as for all further arguments.
    rule: accepts drafted tokens.
    gamma: draft length of a named drafter.
    num_candidates: independent drafts of an iteration, of a named drafter.
    policy: decides draft lengths.
    same_bits: whether plain and speculative decoding score blocks of one width.

  Raises:
    ValueError: if settings of speculation are given without a draft, or the drafter
      needs other networks.
  """
  check_models(target, draft)
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
  params = jax.device_put({name: model.params for name, model in models.items()})
  if drafter is None and draft is None:
    _refuse_words(rule=rule, gamma=gamma, num_candidates=num_candidates, policy=policy)
    return Decoder(target.network, same_bits=same_bits), params
  network = networks.get("draft")
  if drafter is None:
    drafter = "heads" if isinstance(network, FeatureDrafter) else "draft_model"
  parts = get_drafter(drafter, network, gamma, num_candidates)
  chosen = policy_for(parts, policy, gamma, is_word=isinstance(drafter, str))
  decoder = Decoder(target.network, parts, get_rule(rule), chosen, same_bits=same_bits)
  if networks != decoder.networks:
    raise ValueError(
      f"The drafter {type(parts).__name__} needs the networks "
      f"{sorted(parts.networks)}, but draft has different networks, called "
      f"{sorted(drafts)}. Build the drafter with the networks of the models in draft."
    )
  params |= target.derived(parts.derive(target.network))
  for name, model in drafts.items():
    params |= model.derived(decoder.derive(GREEDY, name), name)
  return decoder, params


def check_models(target: Any, draft: Any) -> None:
  """Raises a ValueError if target and draft have other types than `together` takes."""
  _check_model(target, "target", "a Model")
  if draft is None or (isinstance(draft, str) and not os.path.exists(draft)):
    return
  if isinstance(draft, Mapping):
    for name, model in draft.items():
      _check_model(model, f"draft[{name!r}]", "a Model")
  else:
    # A file may have the name of a drafter.
    if not (isinstance(draft, str) and draft in DRAFTERS):
      _check_model(draft, "draft", "a Model, a drafter's name or None")


def _check_model(model: Any, name: str, expected: str) -> None:
  if isinstance(model, Model):
    return
  if isinstance(model, str | os.PathLike):
    path = os.fspath(model)
    raise ValueError(
      f"{name} must be {expected}, got the path {path!r}. Load the checkpoint first: "
      f"{name.partition('[')[0]}=load_model({path!r})."
    )
  raise ValueError(
    f"{name} must be {expected}, got {type(model).__name__}. Load a checkpoint with "
    "`load_model`."
  )


def _refuse_words(**words: Any) -> None:
  """Raises a ValueError if plain decoding is given settings of speculation."""
  defaults = {"rule": "token", "num_candidates": 1}
  surplus = {name: x for name, x in words.items() if x != defaults.get(name)}
  if surplus:
    raise ValueError(
      f"{surplus} need a draft, got None. Give a draft, or leave the settings out."
    )


def get_drafter(
  drafter: Drafter | str,
  network: Network | None = None,
  gamma: int | None = None,
  num_candidates: int = 1,
) -> Drafter:
  """Returns a drafter unchanged, or makes the named drafter with these settings.

  Args:
    drafter: a drafter, or a name in `DRAFTERS`.
    network: the network of a named drafter, if it needs a network.
    gamma: draft length, in tokens.
    num_candidates: independent drafts of an iteration, of a draft model.

  Raises:
    ValueError: if the name is unknown, or these settings do not go together.
  """
  if not is_whole(num_candidates, 1):
    raise ValueError(
      f"NUM_CANDIDATES must be a whole number of at least 1, got {num_candidates!r}."
    )
  if isinstance(drafter, Drafter):
    if num_candidates > 1 or gamma not in (None, drafter.depth):
      raise ValueError(
        f"A drafter owns its knobs: your {type(drafter).__name__} drafts "
        f"{drafter.depth} tokens, got GAMMA={gamma} and "
        f"NUM_CANDIDATES={num_candidates}. Leave GAMMA and NUM_CANDIDATES out, and set "
        "the drafter's knobs."
      )
    return drafter
  if _needs_network(drafter) != (network is not None):
    raise ValueError(
      f"DRAFTER={drafter!r} needs {'a' if network is None else 'no'} draft network, "
      f"got {type(network).__name__}."
    )
  way = NAMED[drafter]
  if num_candidates > 1 and way.kind is not DraftModel:
    raise ValueError(
      f"NUM_CANDIDATES={num_candidates} needs a draft model, got DRAFTER={drafter!r} "
      "with a single draft per iteration. Set NUM_CANDIDATES to 1."
    )
  if drafter == "heads":
    return headed(network, gamma=gamma)
  if num_candidates > 1:
    tree = delayed(0, num_candidates, longest(gamma))
    return WAYS["tree"].kind(network, tree)
  knobs = {} if gamma is None else {"gamma": gamma}
  return way.make({"draft": network}, **knobs)


def _needs_network(name: str) -> bool:
  """Returns whether the named drafter needs a network."""
  if not isinstance(name, str) or name not in NAMED:
    raise ValueError(
      f"Unknown DRAFTER {name!r}; expected one of {sorted(NAMED)} or a Drafter."
    )
  return NAMED[name].needs_network


def headed(
  network: FeatureDrafter,
  shape: Any = None,
  siblings: str = "distinct",
  gamma: int | None = None,
) -> Drafter:
  """Returns the drafter of heads of any kind.

  Args:
    network: the heads.
    shape: a tree, `RowTrees` or None; see `drafters.heads.Headed`.
    siblings: see `drafters.heads.Headed`.
    gamma: length of a chain without a `shape`; None is the number of heads.

  Raises:
    ValueError: if the network is not heads, or has no drafts of that shape.
  """
  if shape is None and gamma is not None:
    check_value(GAMMA, gamma)
    shape = chain(gamma)
  if not isinstance(network, FeatureDrafter):
    raise ValueError(
      f"Expected heads as draft, got a {type(network).__name__}. Load a checkpoint "
      "made by configs/train/heads.gin, or leave DRAFTER at 'draft_model'."
    )
  kind = network.config.kind
  if kind != "eagle":
    way = "parallel" if kind == "parallel" else "position_heads"
    return WAYS[way].kind(network, shape, siblings)
  if shape is None:
    return WAYS["eagle"].kind(network)
  if not isinstance(shape, Tree) or not shape.is_chain:
    raise ValueError(
      f"EAGLE's drafter drafts chains, got SHAPE={shape!r}. Leave SHAPE out, or draft "
      "with another kind of heads."
    )
  return WAYS["eagle"].kind(network, shape.depth)


def longest(gamma: int | None) -> int:
  """Returns the length of the longest draft: GAMMA, or 5 if GAMMA is not set."""
  return DEFAULT_GAMMA if gamma is None else gamma


def drafter_for(
  choice: Drafter | str,
  network: Network,
  path: str | None,
  gamma: int | None,
  num_candidates: int,
) -> Drafter:
  """Returns the drafter of the macro DRAFTER, which may be a drafter or a name.

  Args:
    choice: DRAFTER.
    network: the network of 'draft_model', which gin configures.
    path: the draft's checkpoint, with the sizes of n-grams and heads.
    gamma: GAMMA.
    num_candidates: NUM_CANDIDATES.

  Raises:
    ValueError: if settings do not go together, or `path` has no such network.
  """
  if isinstance(choice, Drafter) or not _needs_network(choice):
    network = None
  elif choice in ("ngram", "heads"):
    from specdec_t5x.checkpoints import networks

    load_network = networks.ngram_table if choice == "ngram" else networks.heads
    network = load_network(path)
  return get_drafter(choice, network, gamma, num_candidates)


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
    policy: a name in `policies.POLICIES`, a policy, or None.
    gamma: a draft length that was asked for. Without a policy every draft then has this
      length, as with a drafter that was built with a gamma.
    is_word: whether a gin file or a name asked for the drafter
      (`Traits.auto`).
    alpha: the acceptance rate that 'auto' expects before the first draft; None is the
      policy's own, or the drafter's (`Traits.prior_alpha`) if 'auto' is a name.
  """
  if policy is None:
    is_set = gamma is not None or getattr(drafter, "gamma", None) is not None
    is_auto = drafter.traits.auto in ("always", "named" if is_word else "always")
    policy = "auto" if is_auto and not is_set else "fixed"
  chosen = get_policy(policy)
  if policy == "auto" and alpha is None:
    alpha = drafter.traits.prior_alpha
  if alpha is None or not isinstance(chosen, CostAware):
    return chosen
  return dataclasses.replace(chosen, prior_alpha=alpha)


def rule_for(choice: Rule | str, lenience: float) -> Rule:
  """Returns the rule of the macro VERIFICATION, which may be a rule or a name.

  Args:
    choice: VERIFICATION.
    lenience: LENIENCE, for 'lenient' alone.

  Raises:
    ValueError: if the name is unknown, or another rule has a lenience below 1.
  """
  knobs = {"lenience": lenience} if choice == "lenient" else {}
  if lenience != 1.0 and not knobs:
    raise ValueError(
      f"LENIENCE={lenience} needs VERIFICATION='lenient', got {choice!r}."
    )
  return get_rule(choice, **knobs)
