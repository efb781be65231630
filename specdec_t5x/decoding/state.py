"""The state, the counts and the result of a decode.

Shapes: B rows, T output length, N nodes of a draft's tree, S sequence buffer, V
vocabulary, C decisions, L uniforms a decision.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax.linen.partitioning import with_sharding_constraint
from jaxtyping import Array, Bool, Float, Int, Key

from specdec_t5x.core.distributions import LEVELS
from specdec_t5x.core.types import Cache, Proposal, Verdict
from specdec_t5x.network.inputs import input_lengths, without_padding

START_TOKEN = 0
# The signature of jax.lax.while_loop. The carry is (DecodeState, Queue or None).
LoopFn = Callable


@flax.struct.dataclass
class StepInfo:
  """The counts of an iteration; zero in rows that had ended before.

  Attributes:
    target_calls: 1 in live rows.
    drafted: counting drafted tokens.
    accepted: drafted tokens that entered the output.
    acceptance_positions: tried tokens: accepted tokens, and a draft's first rejected.
    acceptance_mass: sum of beta = sum_x min(p(x), q(x)) over the tried positions of a
      chain; 0 for other trees.
    emitted: new tokens of the row.
    log_prob: log-probability of the new tokens under the target's adjusted
      distribution.
  """

  target_calls: Int[Array, "B"]
  drafted: Int[Array, "B"]
  accepted: Int[Array, "B"]
  acceptance_positions: Int[Array, "B"]
  acceptance_mass: Float[Array, "B"]
  emitted: Int[Array, "B"]
  log_prob: Float[Array, "B"]

  @classmethod
  def zeros(cls, rows: int) -> "StepInfo":
    """Returns the counts of no iteration."""
    count, amount = jnp.zeros(rows, jnp.int32), jnp.zeros(rows)
    return cls(count, count, count, count, amount, count, amount)


@flax.struct.dataclass
class DecodeState:
  """The state of a batch of decodes between two iterations.

  Attributes:
    sequences: the start token, the prompt, then the output; zeros beyond each length.
    starts: index of the first output token in each row's sequence.
    lengths: number of known tokens of each row, the start token included.
    ended: marks finished rows: EOS produced, or max_length reached.
    keys: random keys of the rows: draws of rows are independent.
    iteration: number of iterations of each row.
    statistics: the sum of the counts of all iterations.
    target_cache: the target's cache; entries at and beyond lengths - 1 are stale.
    drafter_state: the drafter's state; None in plain decoding.
    policy_state: the policy's state; None in plain decoding.
    has_rested: marks rows with a token that was decoded without a draft.
    observed: an observer's record; None if there is no observer.
  """

  sequences: Int[Array, "B S"]
  starts: Int[Array, "B"]
  lengths: Int[Array, "B"]
  ended: Bool[Array, "B"]
  keys: Key[Array, "B"]
  iteration: Int[Array, "B"]
  statistics: StepInfo
  target_cache: Cache
  drafter_state: Any
  policy_state: Any
  has_rested: Bool[Array, "B"]
  observed: Any = None

  def uniforms(self, count: int) -> Float[Array, "B count L"]:
    """Returns each row's independent draws from U[0, 1) for `count` decisions."""
    keys = jax.vmap(jax.random.fold_in)(self.keys, self.iteration)
    return jax.vmap(lambda key: unit_uniforms(key, (count, LEVELS)))(keys)

  def uniforms_of_places(self, count: int) -> Float[Array, "B count L"]:
    """Returns uniforms that depend on each of the next `count` positions alone."""
    places = self.lengths[:, None] + jnp.arange(count)
    keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(self.keys, places)
    return jax.vmap(jax.vmap(lambda key: unit_uniforms(key, (LEVELS,))))(keys)

  def last_tokens(self) -> Int[Array, "B"]:
    """Returns each row's last known token."""
    last = self.lengths[:, None] - 1
    return jnp.take_along_axis(self.sequences, last, axis=1)[:, 0]

  def remaining(self, max_length: int) -> Int[Array, "B"]:
    """Returns the room for tokens in the outputs of the rows."""
    return self.starts + max_length - self.lengths

  def decoded(self, max_length: int) -> "Decoded":
    """Returns the outputs, without start token and prompt."""
    places = self.starts[:, None] + jnp.arange(max_length)
    tokens = jnp.take_along_axis(self.sequences, places, axis=1)
    return Decoded(tokens, self.statistics, self.observed, self.policy_state)


@flax.struct.dataclass
class Iteration:
  """The result of an iteration, for observers.

  Attributes:
    logits: the target's logits after each node; after the last token without a draft.
    info: the counts; None until the iteration is committed.
    proposal: the draft, cut to the tokens that can count. Without a draft, `proposal`
      and the attributes below are None.
    target_probs: p after each node; the logits if the rule reads no distributions.
    verdict: the accepted path and the next token.
    uniforms: the draws of all decisions: the drafter's, then the rule's.
  """

  logits: Float[Array, "B N V"]
  info: StepInfo | None = None
  proposal: Proposal | None = None
  target_probs: Float[Array, "B N V"] | None = None
  verdict: Verdict | None = None
  uniforms: Float[Array, "B C L"] | None = None


@flax.struct.dataclass
class Decoded:
  """The result of a decode.

  Attributes:
    tokens: the output, zeros after the end of sequence.
    statistics: the sum of all iterations' `StepInfo`.
    observed: an observer's record; None if there is no observer.
    policy_state: the policy's state after the last iteration.
  """

  tokens: Int[Array, "B T"]
  statistics: StepInfo
  observed: Any = None
  policy_state: Any = None


def initial_state(
  target_cache: Cache,
  drafter_state: Any,
  keys: Key[Array, "B"],
  max_length: int,
  gamma: int,
  prompts: Int[Array, "I P"] | None = None,
) -> DecodeState:
  """Returns the state of B rows with the start token and prompts.

  The cache lacks the last tokens of the rows. `gamma` is the number of drafted tokens
  of an iteration. `prompts` are padded tokens before the outputs of B / I rows each.
  """
  rows = keys.shape[0]
  prompts = jnp.zeros((1, 0), jnp.int32) if prompts is None else prompts
  prompts = jnp.repeat(prompts, rows // prompts.shape[0], axis=0)
  lengths = 1 + input_lengths(prompts)
  # A block may reach gamma + 1 tokens beyond the last place of the output.
  size = 1 + prompts.shape[1] + num_slots(max_length, gamma)
  sequences = jnp.zeros((rows, size), jnp.int32).at[:, 0].set(START_TOKEN)
  sequences = sequences.at[:, 1 : prompts.shape[1] + 1].set(without_padding(prompts))

  # Under a partitioner's rules, rows lie on the devices of their inputs.
  def by_row(x):
    return with_sharding_constraint(x, ("batch", *[None] * (x.ndim - 1)))

  return DecodeState(
    sequences=by_row(sequences),
    starts=by_row(lengths),
    lengths=by_row(lengths),
    ended=by_row(jnp.zeros(rows, bool)),
    keys=by_row(keys),
    iteration=by_row(jnp.zeros(rows, jnp.int32)),
    statistics=jax.tree.map(by_row, StepInfo.zeros(rows)),
    target_cache=target_cache,
    drafter_state=drafter_state,
    policy_state=None,
    has_rested=by_row(jnp.zeros(rows, bool)),
  )


def unit_uniforms(
  key: Key[Array, ""], shape: tuple[int, ...]
) -> Float[Array, "*shape"]:
  """Returns draws from U[0, 1) on the grid of 2^-24, float32's finest grid below 1."""
  return (jax.random.bits(key, shape, jnp.uint32) >> 8).astype(jnp.float32) * 2.0**-24


def write_rows(rows: Array, new: Array, at: Int[Array, "B"]) -> Array:
  """Returns rows with new entries at one place per row."""
  write = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=0)
  return jax.vmap(write)(rows, new, at)


def num_slots(max_length: int, gamma: int) -> int:
  """Returns a row's cache slots beside the prompt's, as blocks may overrun outputs."""
  return max_length + gamma + 1


# Compiled: both are called for each batch, and uncompiled a call takes 0.7 ms on a CPU.
@jax.jit
def keys_at(key: Key[Array, ""], numbers: Int[Array, "rows"]) -> Key[Array, "rows"]:
  """Returns the keys of numbered rows."""
  return jax.vmap(lambda row: jax.random.fold_in(key, row))(numbers)


@functools.partial(jax.jit, static_argnums=1)
def row_keys(key: Key[Array, ""], rows: int) -> Key[Array, "rows"]:
  """Returns the keys of the rows 0, 1, ..; a key depends on the row's number."""
  return keys_at(key, jnp.arange(rows))
