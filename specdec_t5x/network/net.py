"""Networks as functions of caches and tokens: the form in which a decode calls them.

Shapes: B rows, N tokens of a block, I inputs, E input length, P prompt length, S
sequence buffer, V vocabulary, D width of the features.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.types import Cache, DraftFn, ExtendFn
from specdec_t5x.native import platforms
from specdec_t5x.native.cuda import step as draft_step
from specdec_t5x.network import certified, functional
from specdec_t5x.network.decoder import CachedNetwork
from specdec_t5x.network.functional import Network
from specdec_t5x.network.heads import FeatureDrafter


@dataclasses.dataclass(frozen=True)
class Net:
  """A network as functions. The last two attributes are the target's alone.

  Attributes:
    extend: scores tokens on a cache; the target's cache is the state's `target_cache`.
    vocab_size: V.
    params: the parameters.
    derived: arrays that were computed from the parameters, by name (`Drafter.derive`).
    draft: from a number of rows to a function that drafts several certain tokens in one
      call, or to None.
    logits: the projection of features to logits; None if `extend` has no features.
    embed: the embedding of tokens.
    without: makes `extend` of the target without the named sublayers, on the target's
      caches, optionally with rounded matrices.
  """

  extend: ExtendFn
  vocab_size: int
  params: Any = None
  derived: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  draft: Callable[[int], DraftFn | None] | None = None
  logits: Callable[[Float[Array, "*B D"]], Float[Array, "*B V"]] | None = None
  embed: Callable[[Int[Array, "*B"]], Float[Array, "*B D"]] | None = None
  without: Callable[..., ExtendFn] | None = None


def nets_of(
  networks: Mapping[str, Network],
  params: Mapping[str, Any],
  *,
  taps: int,
  width: int,
  reads_argmaxes: bool,
) -> dict[str, Net]:
  """Returns the networks of a decode as functions, over the target's tokens, by name.

  Args:
    networks: the networks of a decode, the target first.
    params: the networks' parameters and derived arrays, by name.
    taps: the number of the target's layers with features.
    width: the least number of tokens of a block of the target.
    reads_argmaxes: whether only the argmax of the target's logits is used.
  """
  (_, target), *drafts = networks.items()
  own = scored = params["target"]
  if reads_argmaxes and certified.NAME in params:
    scored = certified.within(own, params[certified.NAME])
  extend = functional.extend_fn(target, scored, taps=taps)
  vocab_size = target.config.vocab_size
  steps = {name: draft_step.name_of(name) for name in networks}
  nets = {
    "target": Net(
      in_blocks_of(width, extend) if width > 1 else extend,
      vocab_size,
      own,
      {x: params[x] for x in params if x not in {*steps, *steps.values()}},
      logits=functional.logits_fn(target, own),
      embed=functional.embed_fn(target, own),
      without=functional.without_fn(target, own),
    )
  }
  for name, network in drafts:
    step = params.get(steps[name])
    nets[name] = draft_net(network, params[name], vocab_size, step)
  return nets


def draft_net(
  network: Network,
  params: Any,
  vocab_size: int,
  step: Mapping[str, Any] | None = None,
) -> Net:
  """Returns a draft as functions, over the target's tokens.

  The draft embeds tokens without a row as the draft's last row.

  Args:
    network: the draft.
    params: the parameters.
    vocab_size: the number of the target's tokens.
    step: the weights of the draft's step by our kernel, or None.
  """
  parts = {}
  extend = functional.extend_fn(network, params)
  if step:
    parts["derived"] = step
    extend = draft_step.extend_fn(network, step, extend)
    # With equal vocabularies the largest logit is that of a token of the target.
    if network.config.vocab_size == vocab_size:
      parts["draft"] = draft_step.draft_fn(network, step)

  def extend_resized(*args, **settings):
    logits, features, cache = extend(*args, **settings)
    return functional.resized(logits, vocab_size), features, cache

  if isinstance(network, CachedNetwork):
    project = functional.logits_fn(network, params)
    parts["logits"] = lambda h: functional.resized(project(h), vocab_size)
  # The size is 0 for heads without hot tokens.
  has_same_size = network.config.vocab_size in (0, vocab_size)
  return Net(extend if has_same_size else extend_resized, vocab_size, params, **parts)


def first_caches(
  networks: Mapping[str, tuple[Network, Net]],
  inputs: Int[Array, "I E"],
  prompts: Int[Array, "I P"],
  num_slots: int,
  num_decodes: int,
) -> dict[str, Any]:
  """Returns the caches before the first token of outputs, by the networks' names.

  Args:
    networks: the networks of a decode, the target first. Heads have no cache here,
      because heads read no input.
    inputs: the inputs, each encoded once.
    prompts: the prompts of decoder-only networks.
    num_slots: cache slots of a row's output; 0 if rows of the caches are copied into
      other caches.
    num_decodes: the rows of an input.
  """
  start = functools.partial(
    functional.start_decoding,
    inputs=inputs,
    num_slots=num_slots,
    num_decodes=num_decodes,
    prompts=prompts,
  )
  (_, (target, net)), *drafts = networks.items()
  # Networks without an encoder read the target's, so inputs are encoded once.
  readers = {name: x for name, x in drafts if functional.lacks_encoder(x[0])}
  caches = start(
    target, net.params, readers=[(x, own.params) for x, own in readers.values()]
  )
  caches = dict(zip(["target", *readers], caches, strict=True))
  for name, (network, own) in drafts:
    if isinstance(network, FeatureDrafter):
      continue
    if name not in caches:
      (caches[name],) = start(network, own.params)
    if own.derived:
      caches[name] = draft_step.with_scratch(network, caches[name], num_slots > 0)
  return caches


def in_blocks_of(width: int, extend: ExtendFn) -> ExtendFn:
  """Returns `extend` that computes blocks of at least `width` tokens, by fillers.

  Fillers follow the tokens. The cache needs room for the fillers; the next block
  overwrites their entries.
  """

  def extend_wide(cache, tokens):
    count = tokens.shape[1]
    surplus = max(width - count, 0)
    logits, features, cache = extend(cache, jnp.pad(tokens, ((0, 0), (0, surplus))))
    # Behind a barrier, or the compiler may drop the fillers' rows from the products.
    logits, features = jax.lax.optimization_barrier((logits, features))
    # Entries of fillers do not count.
    cache = cache.at(cache.index - surplus)
    return logits[:, :count], features[:, :count], cache

  return extend_wide


def block_widths(gamma: int, least: int = 1) -> tuple[int, ...]:
  """Returns the possible widths of blocks, none below `least`.

  On CPUs a call of the target costs more the wider its block is. Shapes are static, so
  there are a few widths to choose from, each with a copy of the network in the program:
  the powers of two up to gamma, and gamma + 1; on other devices 1 and gamma + 1.
  """
  exponents = range(gamma + 1) if platforms.wide_blocks_cost_more() else range(1)
  powers = [2**i for i in exponents if least <= 2**i < gamma + 1]
  return (*powers, gamma + 1)


def extend_narrowly(
  extend: ExtendFn,
  cache: Cache,
  block: Int[Array, "B N"],
  widths: tuple[int, ...],
  chosen: Int[Array, ""],
) -> tuple[Float[Array, "B N V"], Float[Array, "B N D"], Cache]:
  """Scores the first tokens of a block, as many as the chosen one of `widths`.

  Every width is compiled. Logits and features are zeros beyond the width.
  """
  shapes = jax.eval_shape(lambda cache, block: extend(cache, block)[:2], cache, block)
  scored = *(jnp.zeros(shape.shape, shape.dtype) for shape in shapes), cache

  def score_at(width):
    def run(scored):
      logits, features, cache = scored
      new_logits, new_features, cache = extend(cache, block[:, :width])
      logits = logits.at[:, :width].set(new_logits)
      features = features.at[:, :width].set(new_features)
      return logits, features, cache

    return run

  for i, width in enumerate(widths):
    scored = run_if(chosen == i, score_at(width), scored)
  return scored


def run_if(condition: Bool[Array, ""], run: Callable[[Any], Any], carry: Any) -> Any:
  """Returns `run(carry)` if the condition holds, otherwise the carry.

  A loop of at most one turn, not `lax.cond`: XLA updates the carry of a loop in place,
  but copies it, with whole caches, into and out of a branch.
  """

  def turn(state):
    return jnp.array(False), run(state[1])

  return jax.lax.while_loop(lambda state: state[0], turn, (condition, carry))[1]


def caught_up(
  extend: ExtendFn,
  cache: Cache,
  sequences: Int[Array, "B S"],
  ends: Int[Array, "B"],
  block: int = 2,
) -> Cache:
  """Returns the cache with the first `ends` known tokens of each row.

  Args:
    extend: scores `block` tokens per row in a call, until no row lacks a token.
    cache: the cache, with room for `block` tokens.
    sequences: the known tokens.
    ends: the number of tokens; none in rows with a negative number.
    block: the number of tokens in a call.
  """
  ends = jnp.maximum(ends, 0)

  def lacks_tokens(cache):
    return (cache.index < ends).any()

  def read_block(cache):
    # A row with a complete cache reads the row's next tokens, and does not keep them.
    start = jnp.minimum(cache.index, ends)
    window = start[:, None] + jnp.arange(block)
    tokens = jnp.take_along_axis(sequences, window, axis=1, mode="clip")
    _, _, cache = extend(cache.at(start), tokens)
    return cache.at(jnp.minimum(start + block, ends))

  return jax.lax.while_loop(lacks_tokens, read_block, cache)


def read_last(
  net: Net,
  cache: Cache,
  sequences: Int[Array, "B S"],
  lengths: Int[Array, "B"],
  count: int = 2,
) -> tuple[Float[Array, "B V"], Cache]:
  """Scores the last `count` known tokens in one call.

  Args:
    net: the network.
    cache: the network's cache.
    sequences: the known tokens.
    lengths: the number of known tokens.
    count: the most last known tokens that the cache may lack (`Context.behind`).

  Returns:
    The logits after the last known token, and the cache with all known tokens.
  """
  # The last drafted token of a fully accepted block was never fed back, so the cache
  # may lack the last two known tokens. Only outer speculations make the cache lack more
  # tokens (see `count`). The last `count` tokens are fed. If fewer tokens are known,
  # surplus slots hold garbage until drafted tokens overwrite the garbage.
  start = jnp.maximum(lengths - count, 0)
  window = start[:, None] + jnp.arange(count)
  tokens = jnp.take_along_axis(sequences, window, axis=1)
  logits, _, cache = extend_from(net, cache.at(start), tokens, lengths - 1 - start, 1)
  return logits[:, 0], cache.at(lengths)


def extend_from(
  net: Net,
  cache: Cache,
  tokens: Int[Array, "B M"],
  first: Int[Array, "B"],
  size: int,
) -> tuple[Float[Array, "B N V"], Float[Array, "B N D"], Cache]:
  """Scores a block, and returns logits and features of `size` tokens from `first` on.

  Other tokens are not projected to the vocabulary.
  """
  logits, features, cache = net.extend(cache, tokens)

  def cut(rows):
    cut_row = functools.partial(jax.lax.dynamic_slice_in_dim, slice_size=size)
    return jax.vmap(cut_row)(rows, first)

  features = cut(features)
  # XLA drops the projection of all tokens if these logits are not used.
  logits = cut(logits) if net.logits is None else net.logits(features)
  return logits, features, cache
