"""With more inputs than rows, an ended row takes the next input; outputs stay equal."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding import loop
from specdec_t5x.decoding.contracts import Context
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.functional import network_for
from tests import networks

pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 14, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 24}
T5 = network_for(T5Config(**SIZES, num_encoder_layers=1, num_decoder_layers=1))
SAMPLING = Sampling()
LENGTH = 12
EOS = 1
# Eleven inputs of 1 to 24 tokens cover both widths of the encoder.
INPUTS = np.zeros((11, 24), np.int32)
for number, size in enumerate([3, 20, 1, 7, 24, 2, 19, 5, 10, 1, 12]):
  INPUTS[number, :size] = np.random.default_rng(number).integers(2, 14, size)

DECODERS = {
  "plain": Decoder(T5),
  "fixed": Decoder(T5, DraftModel(T5, 2)),
}


@functools.cache
def params(network):
  tokens = jnp.ones((1, 1), jnp.int32)

  def drawn(seed):
    return networks.initialize(network, tokens, seed=seed)["params"]

  return {"target": drawn(0), "draft": drawn(1)}


def program(decoder, slots, sampling=SAMPLING, per_input=2):
  """Returns a compiled function that decodes all inputs, with keyword arguments."""
  decoder = dataclasses.replace(decoder, slots=slots)
  run = jax.jit(lambda *x, **told: decoder.decode(*x, sampling, LENGTH, EOS, **told))
  keys = row_keys(jax.random.key(7), per_input * len(INPUTS))
  own = {name: params(decoder.target)[name] for name in decoder.networks}
  return functools.partial(run, own, jnp.asarray(INPUTS), keys)


def decode(*settings, per_input=2, **told):
  return program(*settings, per_input=per_input)(**told)


@functools.cache
def all_at_once(name):
  return decode(DECODERS[name], 0)


# After one failed draft, rows never draft again.
HASTY = CostAware((1.0, 1.9, 1.95), 0.8, prior_weight=0.1, decay=1.0)


@pytest.mark.parametrize("slots", [0, 3])
def test_a_policy_state_continues_across_batches(slots):
  """Drafts fail: the first rows draft once; later rows and the next batch do not draft.

  Coupled samples equal the samples of plain decoding under any policy state.
  """
  sampling = Sampling(coupled=True)
  drafter = DraftModel(T5, 2)
  rule = RULES["coupled"]
  decoder = Decoder(T5, drafter, rule, HASTY)
  run = program(decoder, slots, sampling, per_input=1)
  known = decoder.policy.start(len(INPUTS))
  drafted = []
  expected = decode(DECODERS["plain"], 0, sampling, per_input=1)
  for _ in range(2):
    found = run(policy_state=known)
    known = found.policy_state
    drafted.append(int(found.statistics.drafted.sum()))
    np.testing.assert_array_equal(found.tokens, expected.tokens)
  assert 0 < drafted[0] <= 4 * (slots or len(INPUTS))
  assert drafted[1] == 0


# Eight of 22 rows are wanted.
@pytest.mark.parametrize(("name", "slots"), [("plain", 11), ("fixed", 3)])
def test_unwanted_rows_are_not_decoded(name, slots, monkeypatch):
  """Outputs and counts of the other rows do not depend on the number of rows."""
  expected = all_at_once(name)
  assert len(set(np.asarray(expected.statistics.emitted).tolist())) > 4
  is_wanted = np.arange(len(INPUTS)) % 3 == 1
  iterations = iterations_of(monkeypatch)
  found = decode(DECODERS[name], slots, is_wanted=jnp.asarray(is_wanted))
  rows = np.repeat(is_wanted, 2)
  np.testing.assert_array_equal(found.tokens, expected.tokens * rows[:, None])
  counts = jax.tree.map(lambda x: x * rows, expected.statistics)
  chex.assert_trees_all_close(found.statistics, counts, rtol=1e-4, atol=1e-4)
  assert iterations() <= np.asarray(expected.statistics.emitted)[rows].sum()


def test_inputs_are_read_when_rows_need_them(monkeypatch):
  """The loop reads as many inputs at once as there are rows, and no unwanted input."""
  read = []
  first_state = Context.first_state

  def counting(ctx, inputs, keys):
    jax.debug.callback(lambda rows: read.append(rows.tolist()), (inputs > 0).sum(1))
    return first_state(ctx, inputs, keys)

  monkeypatch.setattr(Context, "first_state", counting)
  is_wanted = jnp.arange(len(INPUTS)) < 7
  decode(DECODERS["plain"], 3, per_input=1, is_wanted=is_wanted)
  jax.effects_barrier()
  assert sorted(read) == [[1, 5, 10], [7, 3, 2], [24, 20, 19]]


def iterations_of(monkeypatch):
  """Returns a function that returns the number of iterations so far."""
  count = []

  def counted(step):
    def run(*args):
      jax.debug.callback(lambda: count.append(1))
      return step(*args)

    return run

  def found():
    jax.effects_barrier()
    return len(count)

  for name in ("step", "plain_step"):
    monkeypatch.setattr(loop, name, counted(getattr(loop, name)))
  return found


def test_rows_are_busy_while_inputs_remain(monkeypatch):
  iterations = iterations_of(monkeypatch)
  lengths = np.sort(decode(Decoder(T5), 4, per_input=1).statistics.emitted)
  # A schedule of 4 rows takes at least an even share of the work. A schedule without
  # idle rows takes at most an even share and one more output.
  assert lengths.sum() / 4 <= iterations() <= lengths.sum() / 4 + lengths.max()
  assert iterations() < sum(lengths[::-1][::4])  # The iterations of batches of four.
