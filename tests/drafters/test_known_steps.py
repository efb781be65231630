"""Drafts with a known number of steps, the form of GPUs and TPUs, run on a CPU."""

import dataclasses
import itertools

import chex
import jax
import jax.numpy as jnp
import pytest

from lab.model.hlo import Program
from specdec_t5x.core.distributions import GREEDY, LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import generate, step
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.decoding.state import row_keys, unit_uniforms
from specdec_t5x.native import platforms
from tests import networks, table
from tests.hash_model import speculation
from tests.test_policies import Alternating
from tests.test_table import INPUTS, ROOM

KEYS = row_keys(jax.random.key(0), 24)
SAMPLED = Sampling(0.7, top_k=3)
COUPLED = Sampling(coupled=True)
BY_ROW = CostAware((1.0, 1.35, 1.55, 1.8), 0.6, 1.0, decay=0.5, by_row=True)


def of_tables(name, sampling, policy):
  """Returns how table models decode, and the first state."""
  return speculation(
    drafter=table.ROWS[name].drafter(table.TABLES),
    target=table.TARGET,
    rule=RULES["coupled" if sampling.coupled else "traversal"],
    sampling=sampling,
    keys=KEYS,
    max_length=12,
    source=table.source(len(KEYS)),
    policy=policy,
    # Two ends end many drafts early.
    eos_id=(1, 3),
  )


def of_networks(name, sampling=GREEDY, policy=None):
  """Returns how tiny networks decode, and the first state."""
  row, found, target = table.ROWS[name], table.models(), table.target()
  decoder = Decoder(
    target.network,
    row.of_networks(found),
    RULES["coupled" if sampling.coupled else row.rule],
    policy or row.policy,
  )
  params = {own: found[model].params for own, model in row.networks.items()}
  params["target"] = target.params
  params |= {x: make(target.params) for x, make in decoder.derive(sampling).items()}
  params = jax.tree.map(jnp.asarray, params)
  keys = KEYS[: len(INPUTS)]
  return networks.prepare(decoder, params, INPUTS, keys, sampling, ROOM, 1)


def by_step(ctx):
  """Returns how to decode with the form of GPUs and TPUs."""
  assert ctx.stops_early
  return dataclasses.replace(ctx, stops_early=False)


# ---- Equal results. ----


def same_outputs(ctx, state):
  """Checks that both forms decode alike, bit for bit."""

  def decode(ctx):
    return jax.jit(lambda: generate(ctx, state))()

  usual = decode(ctx)
  assert usual.statistics.drafted.sum() > 0
  chex.assert_trees_all_equal(decode(by_step(ctx)), usual)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, COUPLED], ids=str)
@pytest.mark.parametrize(
  ("name", "policy"),
  [
    ("draft model", BY_ROW),
    pytest.param("draft model", Alternating(), marks=pytest.mark.slow),
    ("cascade", Fixed()),
  ],
  ids=["lengths of rows", "rests", "cascade"],
)
def test_table_models_decode_alike(name, sampling, policy):
  same_outputs(*of_tables(name, sampling, policy))


def each(*names):
  """Returns a parameter per name; all but the first are slow tests."""
  return [names[0], *(pytest.param(name, marks=pytest.mark.slow) for name in names[1:])]


STEPWISE = ("draft model by name", "eagle", "quantized", "ngram", "trimmed")


@pytest.mark.parametrize("name", each(*STEPWISE))
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=str)
def test_networks_decode_alike(name, sampling):
  same_outputs(*of_networks(name, sampling))


# ---- Compiled programs. ----


@pytest.fixture
def as_on_a_gpu(monkeypatch):
  """Compiles all choices by platform for a device that is not a CPU."""
  monkeypatch.setattr(
    jax.lax, "platform_dependent", lambda *args, default, **by_name: default(*args)
  )
  monkeypatch.setattr(platforms, "wide_blocks_cost_more", lambda: False)


def open_loops(run, state):
  """Returns the loops without a known number of turns in a program of a state."""
  leaves, structure = jax.tree.flatten(state)

  @jax.jit
  def program(*leaves):
    return run(jax.tree.unflatten(structure, leaves))

  parsed = Program.read(program.lower(*leaves).compile().as_text())
  lines = itertools.chain(*parsed.computations.values())
  return [line.name for line in lines if parsed.turns(line) is None]


@pytest.mark.parametrize(
  ("name", "sampling"),
  [
    ("draft model", GREEDY),
    ("draft model", SAMPLED),
    ("draft model", COUPLED),
    pytest.param("draft model", Sampling(top_p=0.9), marks=pytest.mark.slow),
    pytest.param("eagle", SAMPLED, marks=pytest.mark.slow),
    pytest.param("quantized", SAMPLED, marks=pytest.mark.slow),
    pytest.param("ngram", SAMPLED, marks=pytest.mark.slow),
  ],
  ids=str,
)
@pytest.mark.usefixtures("as_on_a_gpu")
def test_no_loop_of_a_draft_has_an_unknown_number_of_turns(name, sampling):
  ctx, state = of_networks(name, sampling, Fixed())
  shape = len(state.lengths), ctx.drafter.tree.size, LEVELS
  uniforms = unit_uniforms(jax.random.key(2), shape)

  def draft(ctx):
    return lambda state: ctx.drafter.propose(ctx, state, uniforms)

  assert not open_loops(draft(by_step(ctx)), state)
  # The planted fault: the loop of CPUs.
  assert len(open_loops(draft(ctx), state)) == 1


@pytest.mark.parametrize(
  ("name", "policy", "count"),
  [
    ("draft model", Fixed(), 0),
    # A row's tokens of a rest are read before a draft.
    ("draft model", Alternating(), 1),
    # A block has one token or the full width.
    pytest.param("copy", Fixed(), 2, marks=pytest.mark.slow),
  ],
  ids=["fixed", "rests", "copy"],
)
@pytest.mark.usefixtures("as_on_a_gpu")
def test_an_iteration_has_few_loops_with_an_unknown_number_of_turns(
  name, policy, count
):
  ctx, state = of_networks(name, SAMPLED, policy)
  ctx = by_step(ctx)
  assert len(open_loops(lambda state: step(ctx, state)[0], state)) == count


@pytest.mark.parametrize(("platform", "stops"), [("cpu", True), ("gpu", False)])
def test_the_platform_decides(monkeypatch, platform, stops):
  with monkeypatch.context() as patch:
    patch.setattr(jax, "default_backend", lambda: platform)
    assert platforms.conditions_are_free() is stops
  monkeypatch.setattr(platforms, "conditions_are_free", lambda: stops)
  assert of_networks("ngram")[0].stops_early is stops
