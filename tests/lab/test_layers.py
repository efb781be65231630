"""The search for sublayers to skip: alpha, costs, and continued runs."""

import itertools

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.study import Job, Study, pad_inputs
from lab.layers import command as layers
from lab.layers import search as layer_search
from lab.layers.agreement import Agreement
from lab.layers.costs import LayerCosts, knapsack
from specdec_t5x import api
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.theory import optimal_gamma, walltime_improvement
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.of_target import LayerSkip
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network.functional import network_for, without_fn
from specdec_t5x.training.state import initial_params
from tests import networks
from tests.benchmarks.conftest import TARGET, named
from tests.lab.conftest import ran
from tests.t5x_bridge import tiny, tiny_gpt

KINDS = {"self": 0.1, "cross": 0.05, "mlp": 0.2}


def test_speed_equals_theorem_3_8_if_a_block_costs_a_token():
  costs = LayerCosts(KINDS, 0.1, (1.0,) * 12)
  kept = ("self_0", "cross_1", "mlp_1")
  assert costs.c(kept) == pytest.approx(0.45)
  for alpha in (0.2, 0.7, 0.95):
    speed, gamma = costs.best(alpha, kept)
    assert speed == pytest.approx(walltime_improvement(alpha, gamma, 0.45))
    assert speed >= walltime_improvement(alpha, np.arange(1, 13), 0.45).max() - 1e-9
    assert gamma == max(optimal_gamma(alpha, 0.45), 1)


def test_an_expensive_block_shortens_the_draft():
  cheap = LayerCosts(KINDS, 0.1, (1, 1, 1))
  dear = LayerCosts(KINDS, 0.1, (1, 9, 9))
  assert cheap.best(0.9, ())[1] == 3
  assert dear.best(0.9, ()) == (pytest.approx(1.9 / 1.1), 1)


def test_the_knapsack_orders_sublayers_by_loss_per_cost():
  losses = {"self_0": 0.02, "cross_0": 0.03, "mlp_0": 0.03, "self_1": -0.01}
  found = knapsack(losses, LayerCosts(KINDS, 0.1, (1.0,)))
  # Losses per cost: -0.1, 0.15, 0.2 and 0.6.
  order = ["self_1", "mlp_0", "self_0", "cross_0"]
  assert found == [frozenset(order[:count]) for count in range(5)]


@pytest.mark.parametrize("blocks", [(), (0.0,), (np.nan,)])
def test_invalid_costs_are_refused(blocks):
  with pytest.raises(ValueError, match="Costs must be finite numbers"):
    LayerCosts(KINDS, 0.1, blocks)


KEY = jax.random.key(0)
IDS = [[5, 6, 7, 1], [9, 3, 1], [4, 4, 8, 12, 1]]
ROOM = 10
NAMES = tuple(f"{kind}_{i}" for kind in ("self", "cross", "mlp") for i in range(3))
COSTS = LayerCosts({"self": 0.08, "cross": 0.06, "mlp": 0.12}, 0.2, (1.1, 1.2, 1.3))


def alpha_of(skip):
  """Returns alpha; skipping 'mlp_1' without 'mlp_2' costs much."""
  alpha = 0.99 - 0.02 * len(skip) - 0.2 * ("self_0" in skip)
  return alpha - (0.3 if "mlp_1" in skip and "mlp_2" not in skip else 0.0)


def study_of(config, params):
  target = api.Model(network_for(config), params)
  return Study(Job("", "", {}, None, ROOM), target, (), pad_inputs(IDS), 1)


# ---- Alpha. ----


def brute_force(target, skip, sampling, block):
  """Computes alpha with one draft after the other, token by token."""
  (_, texts, _), *_ = api.padded_batches(IDS, len(IDS))
  decoder = Decoder(target.network, block=block)
  keys = row_keys(KEY, len(IDS))

  @jax.jit
  def decoded(params):
    outputs = decoder.decode({"target": params}, texts, keys, sampling, ROOM, 1).tokens
    plain, state = networks.prepare(
      decoder, {"target": params}, texts, keys, GREEDY, ROOM, 1
    )
    inputs = jnp.concatenate([state.last_tokens()[:, None], outputs[:, :-1]], axis=1)
    begin = state.lengths - 1
    logits, _, cache = plain.target.extend(state.target_cache.at(begin), inputs)
    return outputs, inputs, begin, cache, adjusted_probs(logits, sampling)

  @jax.jit
  def drafted(params, cache, token):
    logits, _, cache = without_fn(target.network, params)(skip)(cache, token)
    return adjusted_probs(logits, sampling)[:, 0], cache

  outputs, inputs, begin, cache, p = decoded(target.params)
  betas = []
  for at in range(ROOM):
    if at % block == 0:
      drafting = cache.at(begin + at)
    q, drafting = drafted(target.params, drafting, inputs[:, at : at + 1])
    beta = np.minimum(p[:, at], q).sum(-1)
    betas += beta[np.asarray(outputs[:, at]) > 0].tolist()
  return np.mean(betas)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("config", "sampling", "block", "skip"),
  [
    (tiny.TARGET, GREEDY, 4, ("self_0", "cross_1", "mlp_1")),
    (tiny_gpt.TARGET, Sampling(0.9), 3, ("self_0", "mlp_1")),
  ],
)
def test_alpha_equals_brute_force_on_the_target_s_cache(config, sampling, block, skip):
  params = jax.tree.map(lambda x: 2 * x, initial_params(network_for(config), 3))
  study = study_of(config, params)
  agreement = Agreement(study, sampling.temperature, block)
  assert agreement(()) == pytest.approx(1, abs=1e-5)
  found = agreement(skip)
  expected = brute_force(study.target, skip, sampling, block)
  assert found == pytest.approx(expected, abs=1e-5)
  assert found == agreement(skip)
  assert 0 < found < 1


# ---- Costs. ----


@pytest.mark.slow
def test_costs_by_weights_are_shares_of_all_weights():
  found = layers.by_weights(tiny.TARGET, 2)
  counts = {"self": 4 * 16 * 16, "cross": 2 * 16 * 16, "mlp": 3 * 16 * 32}
  total = 64 * 16 + 2 * sum(counts.values())
  assert found.kinds == {kind: count / total for kind, count in counts.items()}
  names = network_for(tiny.TARGET).sublayers
  assert found.c(names) == pytest.approx(1)
  assert found.blocks == (1.0, 1.0)
  assert set(layers.by_weights(tiny_gpt.TARGET, 1).kinds) == {"self", "mlp"}


# ---- The search. ----


@pytest.mark.slow
def test_optuna_finds_dependent_sublayers_that_the_knapsack_misses():
  found = layer_search.Search(NAMES, alpha_of, COSTS)
  knapsack = found.by_knapsack()
  best = found.by_optuna(40, seed=0)
  speeds = [found.row(skip)["speed"] for skip in (knapsack, best)]
  sizes = range(len(NAMES) + 1)
  every = [skip for n in sizes for skip in itertools.combinations(NAMES, n)]

  def kept(skip):
    return [name for name in NAMES if name not in skip]

  top = max(COSTS.best(alpha_of(skip), kept(skip))[0] for skip in every)
  assert speeds[0] <= speeds[1] <= top
  assert speeds[1] > 0.98 * top
  assert found.measured < 80


# ---- The command. ----


@pytest.mark.slow
def test_the_command_writes_a_gin_file_and_measures_nothing_twice(
  files, tmp_path, capsys, monkeypatch
):
  flags = named({name: files[name] for name in ("target", "vocabulary", "inputs")})
  flags += ["--max-length=10", "--gamma=3", "--trials=6", "--timed=2"]
  flags.append("--costs=weights")
  first = ran("layers", tmp_path, *flags)["rows"]
  by_name = {row["found"]: row for row in first}
  assert by_name["nothing"]["alpha"] == pytest.approx(1)
  assert {row["identical"] for row in first} == {"2/2"}
  gamma = by_name["nothing"]["gamma"]
  assert 1 < by_name["nothing"]["tokens_per_call"]["value"] <= gamma + 1
  assert by_name["Optuna"]["speed"] >= by_name["knapsack"]["speed"]
  gin.parse_config((tmp_path / "layers.gin").read_text())
  skip = gin.query_parameter("SKIP/macro.value")
  gamma = gin.query_parameter("GAMMA/macro.value")
  drafter = LayerSkip(skip, gamma)
  drafter.check(network_for(TARGET))
  assert list(drafter.skip) == by_name["Optuna"]["skip"]
  monkeypatch.setattr(Agreement, "__call__", lambda *args: pytest.fail("measured"))
  again = ran("layers", tmp_path, *flags)["rows"][-1]
  assert {n: again[n] for n in ("skip", "speed")} == {
    n: first[-1][n] for n in ("skip", "speed")
  }
  assert "| Optuna" in capsys.readouterr().out
