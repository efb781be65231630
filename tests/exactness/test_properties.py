"""What holds for any laws, drafts, uniforms, neighbours and seeds (hypothesis)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from specdec_t5x.core.distributions import GREEDY, Sampling, adjusted_probs
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.types import Candidates, Proposal
from specdec_t5x.decoding.baseline import generate_plain
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import initial_state, row_keys
from specdec_t5x.decoding.step import Speculation
from specdec_t5x.drafters.draft_model import DraftModel
from tests.hash_model import MODULUS, HashModel

# One shape each, so that one program serves all examples.
ROWS, GAMMA, SIZE, COUNT, LENGTH = 4, 3, 5, 2, 9
EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31 - 1)
SAMPLING = [Sampling(), Sampling(0.3), Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.5)]


def logits(*shape):
  """Any logits; -inf rules a token out, but never all of them."""
  finite = st.floats(-60, 60, width=32)
  values = st.one_of(finite, finite, st.just(-np.inf))
  return arrays.arrays(np.float32, shape, elements=values).map(
    lambda x: np.where(np.isneginf(x).all(-1, keepdims=True), 0.0, x)
  )


@EXAMPLES
@given(logits(ROWS, SIZE), st.sampled_from([*SAMPLING, GREEDY]))
def test_adjusted_laws_are_laws(values, sampling):
  probs = np.asarray(adjusted_probs(jnp.asarray(values, jnp.float32), sampling))
  assert np.isfinite(probs).all()
  np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-5)
  assert (probs[np.isneginf(values)] == 0).all()


@st.composite
def judged(draw, count):
  """Laws, drafts that these laws can draw, valid lengths and uniforms."""
  drafts = (ROWS, count) if count else (ROWS,)
  law = lambda *shape: jax.nn.softmax(draw(logits(*shape)))
  target_probs, draft_probs = (np.array(law(*drafts, GAMMA + n, SIZE)) for n in (1, 0))
  rng = np.random.default_rng(draw(seeds))
  # Drafts of a row share what they have in common: the law at the first position.
  if count:
    target_probs[:, :, 0] = target_probs[:, :1, 0]
    draft_probs[:, :, 0] = draft_probs[:, :1, 0]
  draws = rng.random((*drafts, GAMMA, 1))
  tokens = np.cumsum(draft_probs, -1) <= draws * draft_probs.sum(-1, keepdims=True)
  tokens = np.minimum(tokens.sum(-1), SIZE - 1)
  uniforms = rng.random((ROWS, GAMMA * max(count, 1) + 1, 1)).astype(np.float32)
  uniforms[rng.random(uniforms.shape) < 0.2] = 0.0
  valid = rng.integers(0, GAMMA + 1, drafts)
  kind = Candidates if count else Proposal
  parts = map(jnp.asarray, (tokens, draft_probs, valid))
  return jnp.asarray(target_probs), kind(*parts), jnp.asarray(uniforms)


@functools.cache
def compiled(name):
  return jax.jit(RULES[name].verify)


def row(tree, i):
  """The same row in every place of the batch."""
  return jax.tree.map(lambda x: jnp.broadcast_to(x[i], x.shape), tree)


@pytest.mark.parametrize("name", sorted(RULES))
@EXAMPLES
@given(data=st.data())
def test_verdicts_are_possible_and_of_their_row_alone(name, data):
  several = RULES[name].takes_candidates
  inputs = data.draw(judged(COUNT if several else 0))
  target_probs, proposal = np.asarray(inputs[0]), inputs[1]
  verdict = compiled(name)(*inputs)
  for i in range(ROWS):
    draft = (i, int(verdict.candidate[i])) if several else (i,)
    accepted, next_token = int(verdict.num_accepted[i]), int(verdict.next_token[i])
    assert 0 <= accepted <= int(proposal.num_valid[draft])
    assert 0 <= next_token < SIZE
    laws, tokens = target_probs[draft], np.asarray(proposal.tokens[draft])
    # Whatever comes out is something that the target might say.
    assert all(laws[j, tokens[j]] > 0 for j in range(accepted))
    assert laws[accepted, next_token] > 0
  chosen = data.draw(st.integers(0, ROWS - 1))
  alone = compiled(name)(*(row(part, chosen) for part in inputs))
  for one, other in zip(jax.tree.leaves(verdict), jax.tree.leaves(alone), strict=True):
    assert one[chosen] == other[0]


class Given(HashModel):
  """A table model whose table is an argument of the compiled program."""

  def __init__(self, given_table):
    super().__init__(0, SIZE)
    object.__setattr__(self, "given_table", given_table)

  @property
  def table(self):
    return self.given_table


@functools.partial(jax.jit, static_argnames=("sampling", "gamma"))
def outputs(target, draft, keys, sampling, gamma):
  """Outputs with speculation, plain ones for gamma 0."""
  target, draft = Given(target), Given(draft)
  slots = LENGTH + gamma + 1
  cache = target.start(keys.size, slots)
  if not gamma:
    state = initial_state(cache, None, keys, LENGTH, 0)
    return generate_plain(target.extend, sampling, state, LENGTH, 1).tokens
  drafter = DraftModel(draft.extend, gamma, sampling)
  rule = RULES["token"]
  spec = Speculation(target.extend, drafter, rule, sampling, gamma, LENGTH, 1)
  start = initial_state(cache, draft.start(keys.size, slots), keys, LENGTH, gamma)
  return generate(spec, start).tokens


@st.composite
def tables(draw):
  """A target's logits and a draft's, near to each other or far."""
  rng = np.random.default_rng(draw(seeds))
  target, other = 2 * rng.normal(size=(2, MODULUS, SIZE)).astype(np.float32)
  target[:, 1] += draw(st.sampled_from([-2.0, 0.0, 1.0]))
  return target, target + draw(st.sampled_from([0.0, 0.2, 3.0])) * other


@EXAMPLES
@given(tables(), seeds)
def test_greedy_outputs_do_not_depend_on_gamma_draft_or_seed(models, seed):
  run = lambda gamma, s: np.asarray(
    outputs(*models, row_keys(jax.random.key(s), ROWS), GREEDY, gamma)
  )
  expected = run(0, 0)
  for gamma in (1, 3, 12):
    np.testing.assert_array_equal(run(gamma, seed), expected)


@EXAMPLES
@given(tables(), seeds, st.permutations(range(ROWS)), st.sampled_from(SAMPLING[::2]))
def test_a_row_is_fixed_by_its_key_alone(models, seed, order, sampling):
  keys = row_keys(jax.random.key(seed), ROWS)
  run = lambda keys: np.asarray(outputs(*models, keys, sampling, 3))
  tokens = run(keys)
  np.testing.assert_array_equal(run(keys), tokens)
  order = jnp.asarray(order)
  np.testing.assert_array_equal(run(keys[order]), tokens[order])
  # Other neighbours, whose drafts are accepted and end elsewhere.
  others = row_keys(jax.random.key(seed + 1), ROWS).at[0].set(keys[0])
  np.testing.assert_array_equal(run(others)[0], tokens[0])
