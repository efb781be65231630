"""Known mistakes of drafters, planted in place of the right code."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from specdec_t5x.contrib import sparse
from specdec_t5x.core import distributions
from specdec_t5x.core.types import Proposal
from specdec_t5x.drafters import cascade, draft_model
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import Stepwise
from specdec_t5x.drafters.eagle import EagleDraft
from specdec_t5x.drafters.heads import HeadDraft, Headed
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network import functional
from specdec_t5x.network.eagle import EagleDrafter
from tests.exactness.planting import trap
from tests.hash_model import TokenCache

_read_last = draft_model.read_last


@trap("token_loop", draft_model, "draw")
def argmax_draft_with_soft_q(logits, sampling, uniform, adjust):
  return distributions.argmax(logits), adjust(logits, sampling)


@trap("sparse_loop", sparse, "draw_sparsely")
def draws_from_the_whole_probs(logits, uniforms, sampling, truncation, adjust):
  token, probs = distributions.draw(logits, sampling, uniforms, adjust)
  return token, truncation.of(probs)


@trap("sparse_loop", sparse, "draw_sparsely")
def rounds_after_the_draw(logits, uniforms, sampling, truncation, adjust):
  probs = adjust(logits, sampling)
  distribution = truncation.of(probs)
  is_kept = distribution.dense(probs.shape[-1]) > 0
  token = distributions.sample(jnp.where(is_kept, probs, 0.0), uniforms)
  return token.astype(jnp.int32), distribution


@trap("token_loop", Stepwise, "propose")
def q_not_renormalised(self, context, state, uniforms, propose=Stepwise.propose):
  proposal, state = propose(self, context, state, uniforms)
  return proposal.replace(draft_probs=0.7 * proposal.draft_probs), state


@trap("perfect_draft", draft_model, "draw")
def ignore_top_p(logits, sampling, uniform, adjust):
  sampling = dataclasses.replace(sampling, top_p=0.0)
  return distributions.draw(logits, sampling, uniform, adjust)


@trap("perfect_draft", draft_model, "read_last")
def draft_reads_the_last_token_alone(net, cache, sequences, lengths, count):
  del count
  last = jnp.take_along_axis(sequences, lengths[:, None] - 1, axis=1)
  logits, _, cache = net.extend(cache.at(lengths - 1), last)
  return logits[:, 0], cache


@trap("candidates_loop", TreeDraft, "propose")
def drafts_share_their_draws(self, *args, propose=TreeDraft.propose):
  *others, uniforms = args
  return propose(self, *others, jnp.repeat(uniforms[:, ::2], 2, axis=1))


@trap("heads_chain", HeadDraft, "commit")
def heads_on_the_root_s_feature(self, context, own, verdict, features):
  del context, verdict
  return own.replace(feature=features[:, 0])


@trap("heads_chain", Headed, "proposal")
def heads_drop_the_doubtful_token(self, *args, proposal=Headed.proposal):
  """Drops improbable drawn tokens, like a policy that looks at the draw."""
  drafted = proposal(self, *args)
  sure = jnp.cumprod(drafted.drafted_probs() >= 0.5, axis=1).astype(bool)
  return drafted.replace(is_valid=drafted.is_valid & sure)


@trap("heads_tree", Headed, "proposal")
def first_head_s_q_for_all(self, *args, proposal=Headed.proposal):
  drafted = proposal(self, *args)
  first = jnp.zeros(self.shape.size, int)
  return drafted.replace(draft_probs=drafted.draft_probs[:, first])


@trap("siblings_loop", TreeDraft, "propose")
def first_sibling_s_probs_for_all(self, *args, propose=TreeDraft.propose):
  proposal, state = propose(self, *args)
  first = np.searchsorted(self.tree.parents, self.tree.parents)
  return proposal.replace(draft_probs=proposal.draft_probs[:, first]), state


@trap("copying", Copy, "propose")
def copy_from_the_output_alone(self, context, state, *args, propose=Copy.propose):
  nothing = jnp.zeros_like(state.drafter_state)
  return propose(self, context, state.replace(drafter_state=nothing), *args)


def _of_last(proposal, values):
  """Returns the values at a chain's last token."""
  last = jnp.maximum(proposal.num_valid - 1, 0)[:, None]
  return jnp.take_along_axis(values, last, axis=1)[:, 0]


def _without_last(proposal, rows):
  """Returns a chain without its last token in some rows."""
  size = jnp.maximum(proposal.num_valid - rows, 0)
  return Proposal.chain(proposal.tokens, proposal.draft_probs, size)


@trap("turns_loop", Stepwise, "propose")
def drop_the_doubtful_token(self, *args, propose=Stepwise.propose):
  """Drops an improbable last token, like a policy that looks at the draw."""
  proposal, state = propose(self, *args)
  probs = _of_last(proposal, proposal.drafted_probs())
  return _without_last(proposal, probs < 0.35), state


@trap("turns_loop", Stepwise, "propose")
@trap("shared_length", Stepwise, "propose")
def drop_what_it_drew(self, *args, propose=Stepwise.propose):
  """Drops a last token 2, like a policy that looks at the draw, not at q."""
  proposal, state = propose(self, *args)
  return _without_last(proposal, _of_last(proposal, proposal.tokens) == 2), state


@trap("windows_flushed", Cascade, "_proposal")
def window_without_its_correction(self, *args, proposal=Cascade._proposal):
  full = proposal(self, *args)
  return Proposal.chain(full.tokens, full.draft_probs, full.num_valid - 1)


@trap("windows_fixed", Cascade, "_proposal")
def window_s_probs_one_place_off(self, *args, proposal=Cascade._proposal):
  full = proposal(self, *args)
  return full.replace(draft_probs=jnp.roll(full.draft_probs, 1, axis=1))


@trap("perfect_hierarchy", draft_model, "read_last")
def draft_reads_two_whatever_is_above(net, cache, sequences, lengths, count):
  del count
  return _read_last(net, cache, sequences, lengths, 2)


@trap("windows_fixed", cascade, "_reading_before")
def middle_network_reads_the_block_alone(net, sequences, more):
  return net.extend


@trap("candidates_loop", TokenCache, "gathered")
def entries_are_not_moved(self, *args):
  return self


@trap("candidates_loop", TreeDraft, "commit")
def draft_s_cache_is_not_moved(self, context, drafter_state, *args):
  return drafter_state


@trap("turns_loop", draft_model, "caught_up")
def draft_reads_the_last_two_alone(extend, cache, *args):
  return cache


def _rolled(caches, axis):
  def roll(xs):
    return tuple(jnp.roll(x, 1, axis) for x in xs)

  def cross(x):
    return {
      "cross_keys": roll(x.cross_keys),
      "cross_values": roll(x.cross_values),
    }

  return [caches[0], *(x.replace(**cross(x)) for x in caches[1:])]


@trap("encoder_shared", functional, "_read")
def draft_reads_the_row_before(*args, read=functional._read):
  return _rolled(read(*args), 0)


@trap("encoder_shared", functional, "_read")
def draft_reads_features_one_place_on(*args, read=functional._read):
  return _rolled(read(*args), 2)


@trap("trimmed_draft", draft_model, "draw")
def q_of_all_tokens(logits, sampling, uniforms, adjust, draw=distributions.draw):
  token, _ = draw(logits, sampling, uniforms, adjust)
  return token, adjust(jnp.maximum(logits, -1.0), sampling)


@trap("eagle_loop", EagleDraft, "commit")
def eagle_on_features_one_place_off(
  self, context, own, verdict, features, commit=EagleDraft.commit
):
  return commit(self, context, own, verdict, jnp.roll(features, 1, axis=1))


@trap("eagle_loop", EagleDrafter, "everywhere")
def steps_see_the_target_s_features(
  self, features, embedded, *args, everywhere=EagleDrafter.everywhere
):
  def ahead(x, step):
    return jnp.pad(x, ((0, 0), (0, step), (0, 0)))[:, step:]

  steps = range(self.config.count)
  step_inputs = [(ahead(features, step), ahead(embedded, step)) for step in steps]
  return jnp.concatenate(
    [everywhere(self, *x, *args)[:, :, :1] for x in step_inputs], 2
  )
