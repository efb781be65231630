"""A target, a draft and the loop, put together: from inputs to outputs.

What the T5X models and `specdec_t5x.generate` share.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES, get_rule, rule_for
from specdec_t5x.core.types import Drafter, ExtendFn, Rule
from specdec_t5x.decoding import baseline, generate, state
from specdec_t5x.decoding.state import Decoded, DecodeState
from specdec_t5x.decoding.step import Speculation
from specdec_t5x.decoding.widths import block_widths
from specdec_t5x.drafters.adaptive import AdaptiveDraft, AdaptiveState
from specdec_t5x.drafters.copy import DEFAULT_MATCH, CopyDraft
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.multi import IndependentDrafts
from specdec_t5x.drafters.policies import DEFAULT_CONFIDENCE, Policy, policy_for
from specdec_t5x.network import functional
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.functional import Network, start_decoding
from specdec_t5x.network.ngram import NgramTable

DRAFTERS = ("draft_model", "ngram", "copy")
PAIR = ("target", "draft")


@dataclasses.dataclass(frozen=True)
class Pair:
  """A target and a draft, and how they speculate.

  Attributes:
    target: the network whose law is kept.
    draft: the network that drafts, over the same vocabulary: of 'ngram' a table of
      n-grams; None of 'copy'.
    gamma: length of a draft, in tokens.
    drafter: how tokens are drafted; one of `DRAFTERS`.
    verification: name of a rule in `core.rules.RULES`.
    lenience: of the rule 'lenient'; 1 binds to the target's law.
    num_candidates: independent drafts an iteration, for the rules that take several.
    gamma_policy: one of `drafters.policies.GAMMA_POLICIES`; but for 'fixed' each row's
      drafts have at most gamma tokens.
    confidence: of 'confidence': how sure of the next token the draft must be.
    draft_cost: of 'online': time of a draft step / of a target step.
    block_costs: of 'online': time of a target step at each of `decoding.widths`, over
      that of one token; none is 1.
    copy_match: of 'copy': how many of the last tokens must stand where it copies.
  """

  target: Network
  draft: Network | None
  gamma: int
  drafter: str = "draft_model"
  verification: str = "token"
  lenience: float = 1.0
  num_candidates: int = 1
  gamma_policy: str = "fixed"
  confidence: float = DEFAULT_CONFIDENCE
  draft_cost: float | None = None
  block_costs: tuple[float, ...] = ()
  copy_match: int = DEFAULT_MATCH

  def __post_init__(self):
    # A list, as gin gives, would make the pair and its programs unhashable.
    object.__setattr__(self, "block_costs", tuple(self.block_costs))
    if not is_whole(self.gamma, 1):
      raise ValueError(
        f"GAMMA must be a whole number of at least 1, got {self.gamma!r}. For decoding "
        "without speculation use configs/baseline_*.gin, or no draft."
      )
    _check_drafter(self)
    count = self.num_candidates
    if not is_whole(count, 1):
      raise ValueError(
        f"NUM_CANDIDATES must be a whole number of at least 1, got {count!r}."
      )
    if count > 1 and not get_rule(self.verification).takes_candidates:
      several = [name for name, rule in RULES.items() if rule.takes_candidates]
      raise ValueError(
        f"NUM_CANDIDATES={count} needs a VERIFICATION of {several}, got "
        f"{self.verification!r}, which judges a single draft."
      )
    if self.policy() and get_rule(self.verification).takes_candidates:
      raise ValueError(
        f"GAMMA_POLICY={self.gamma_policy!r} needs a VERIFICATION that judges a single "
        f"draft, got {self.verification!r}. Use 'token' or 'block', or "
        "GAMMA_POLICY='fixed'."
      )

  def rule(self, sampling: Sampling) -> tuple[Rule, Sampling]:
    """Returns the rule, and the adjustment of the target's law that it works on.

    Raises:
      ValueError: where the rule does not go with the way of sampling.
    """
    return rule_for(self.verification, sampling, self.lenience)

  def policy(self) -> Policy | None:
    """Returns how long drafts shall be; None where all have gamma tokens.

    Raises:
      ValueError: where its settings are missing, out of range or of another policy.
    """
    return policy_for(
      self.gamma_policy,
      self.confidence,
      self.draft_cost,
      self.block_costs,
      widths=block_widths(self.gamma),
    )

  @property
  def widths(self) -> tuple[int, ...]:
    """The widths of block that the target may be called with; none is gamma + 1."""
    varies = self.policy() or self.drafter == "copy"
    return block_widths(self.gamma) if varies else ()

  def check_room(self, max_length: int) -> None:
    """Raises a ValueError where a draft is longer than what of it can count."""
    if self.gamma >= max_length:
      raise ValueError(
        f"GAMMA={self.gamma} is too long a draft for outputs of {max_length} tokens: "
        f"at most {max_length - 1} drafted tokens can count, since each call of the "
        "target adds one of its own. Lower GAMMA, or give outputs more room "
        "(TASK_FEATURE_LENGTHS' targets, max_length)."
      )

  def num_slots(self, max_length: int) -> int:
    """Returns the cache slots that a row needs."""
    return state.num_slots(max_length, self.gamma * self.num_candidates)


def _check_drafter(pair):
  """Raises a ValueError where the draft does not go with the drafter or the target."""
  if pair.drafter not in DRAFTERS:
    raise ValueError(f"Unknown DRAFTER {pair.drafter!r}; expected one of {DRAFTERS}.")
  if pair.drafter == "copy":
    CopyDraft(pair.gamma, 1, pair.copy_match)  # Refuses a bad match.
    if pair.draft is not None:
      raise ValueError(
        "DRAFTER='copy' has no draft network, got a "
        f"{type(pair.draft).__name__}. Leave it out (None)."
      )
    if pair.policy() or get_rule(pair.verification).takes_candidates:
      raise ValueError(
        "DRAFTER='copy' has but one draft, of the length that it finds: it needs "
        "GAMMA_POLICY='fixed' and a VERIFICATION that judges a single draft, got "
        f"{pair.gamma_policy!r} and {pair.verification!r}."
      )
    return
  if pair.copy_match != DEFAULT_MATCH:
    raise ValueError(
      f"COPY_MATCH={pair.copy_match} needs DRAFTER='copy', got {pair.drafter!r}."
    )
  if pair.draft is None or isinstance(pair.draft, NgramTable) != (
    pair.drafter == "ngram"
  ):
    raise ValueError(
      f"DRAFTER={pair.drafter!r} does not go with a {type(pair.draft).__name__} as the "
      "draft: 'ngram' takes a table of n-grams, 'draft_model' a network."
    )
  sizes = [network.config.vocab_size for network in (pair.target, pair.draft)]
  if sizes[0] != sizes[1]:
    raise ValueError(
      f"Target and draft must share a vocabulary: the target's vocab_size is "
      f"{sizes[0]}, the draft's {sizes[1]}. Use a draft trained with the target's "
      "vocabulary (and padded to the same size)."
    )


def decode(
  pair: Pair,
  params,
  inputs: Int[Array, "B E"],
  keys: Key[Array, "R"],
  sampling: Sampling,
  max_length: int,
  eos_id: int,
) -> Decoded:
  """Decodes R / B outputs an input with speculation.

  Args:
    pair: the networks.
    params: {target, draft}.
    inputs: encoder tokens, or the prompts of decoder-only networks; zero-padded.
    keys: one a row; the rows of one input stand next to each other.
    sampling: the adjustment of both laws.
    max_length: room for the output, in tokens.
    eos_id: the token that ends a sequence.
  """
  spec, start = prepare(pair, params, inputs, keys, sampling, max_length, eos_id)
  return generate.generate(spec, start)


def prepare(
  pair: Pair,
  params,
  inputs: Int[Array, "B E"],
  keys: Key[Array, "R"],
  sampling: Sampling,
  max_length: int,
  eos_id: int,
) -> tuple[Speculation, DecodeState]:
  """Returns what the loop needs: how to step and where to start; as for `decode`."""
  rule, target_sampling = pair.rule(sampling)
  per_input = keys.shape[0] // inputs.shape[0]
  prompts = functional.prompts_of(inputs, pair.target, pair.draft)
  extend, cache = start_decoding(
    pair.target,
    params["target"],
    inputs,
    pair.num_slots(max_length),
    per_input,
    prompts,
  )
  drafter, drafter_state = start_drafting(
    pair, params.get("draft"), inputs, per_input, sampling, max_length, eos_id, prompts
  )
  spec = Speculation(
    extend=extend,
    drafter=drafter,
    rule=rule,
    sampling=target_sampling,
    gamma=pair.gamma,
    max_length=max_length,
    eos_id=eos_id,
    num_candidates=pair.num_candidates,
    widths=pair.widths,
  )
  drafted = pair.gamma * pair.num_candidates
  start = state.initial_state(cache, drafter_state, keys, max_length, drafted, prompts)
  return spec, start


def start_drafting(
  pair: Pair,
  params,
  inputs: Int[Array, "B E"],
  per_input: int,
  sampling: Sampling,
  max_length: int,
  eos_id: int,
  prompts: Int[Array, "B P"] | None = None,
) -> tuple[Drafter, DecoderCache | AdaptiveState]:
  """Returns the drafter and its first state; `params` are the draft's."""
  if pair.drafter == "copy":
    # A decoder-only network's inputs are prompts, which its sequences hold already.
    source = inputs[:, :0] if functional.is_decoder_only(pair.target) else inputs
    drafter = CopyDraft(pair.gamma, pair.target.config.vocab_size, pair.copy_match)
    return drafter, jnp.repeat(source, per_input, axis=0)
  rows = per_input * pair.num_candidates
  slots = pair.num_slots(max_length)
  extend, cache = start_decoding(pair.draft, params, inputs, slots, rows, prompts)
  model = extend, pair.gamma, sampling
  if policy := pair.policy():
    drafter = AdaptiveDraft(*model, policy, max_length, eos_id)
    return drafter, drafter.start(cache, inputs.shape[0] * per_input)
  drafter = DraftModel(*model)
  several = get_rule(pair.verification).takes_candidates
  return IndependentDrafts(drafter, pair.num_candidates) if several else drafter, cache


def decode_plain(
  network: Network,
  params,
  inputs: Int[Array, "B E"],
  keys: Key[Array, "R"],
  sampling: Sampling,
  max_length: int,
  eos_id: int,
  block: int = 1,
) -> Decoded:
  """Decodes one token a call; arguments as `decode`'s.

  `block` is the number of tokens that a call scores, of which the first counts; see
  `decoding.baseline`.
  """
  extend, start = prepare_plain(network, params, inputs, keys, max_length, block)
  return baseline.generate_plain(extend, sampling, start, max_length, eos_id, block)


def prepare_plain(
  network: Network,
  params,
  inputs: Int[Array, "B E"],
  keys: Key[Array, "R"],
  max_length: int,
  block: int = 1,
) -> tuple[ExtendFn, DecodeState]:
  """Returns what the plain loop needs; arguments as `decode_plain`'s.

  Raises:
    ValueError: where a block has no token.
  """
  check_block(block)
  # A block overruns the output as a draft of block - 1 tokens does.
  slots = state.num_slots(max_length, block - 1)
  per_input = keys.shape[0] // inputs.shape[0]
  prompts = functional.prompts_of(inputs, network)
  extend, cache = start_decoding(network, params, inputs, slots, per_input, prompts)
  return extend, state.initial_state(cache, None, keys, max_length, block - 1, prompts)


def check_block(block: int) -> None:
  """Raises a ValueError where `block` is no number of tokens to score a call."""
  if not is_whole(block, 1):
    raise ValueError(
      f"BLOCK must be a whole number of at least 1, got {block!r}. 1 is plain "
      "decoding, GAMMA + 1 the strict baseline of a speculative run."
    )
