"""The search for sublayers to leave out: what it measures, and where it goes on."""

import json

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import api
from specdec_t5x.analysis.layers import LayerCosts
from specdec_t5x.bench import layer_search, layers, timed
from specdec_t5x.bench.agreement import Agreement
from specdec_t5x.bench.pairs import Job, Study, pad_inputs
from specdec_t5x.bench.timed import Timed
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.decoding.decoders import PlainDecoder
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.layer_skip import LayerSkip
from specdec_t5x.native.laws import adjusted_probs
from specdec_t5x.network.functional import network_for, without_fn
from tests.t5x_bridge import tiny, tiny_gpt

IDS, ROOM = [[5, 6, 7, 1], [9, 3, 1], [4, 4, 8, 12, 1]], 10
NAMES = tuple(f"{kind}_{i}" for kind in ("self", "cross", "mlp") for i in range(3))
COSTS = LayerCosts({"self": 0.08, "cross": 0.06, "mlp": 0.12}, 0.2, (1.1, 1.2, 1.3))


def alpha_of(skip):
  """A law with a trap: 'mlp_1' costs much, unless 'mlp_2' is left out as well."""
  alpha = 0.99 - 0.02 * len(skip) - 0.2 * ("self_0" in skip)
  return alpha - (0.3 if "mlp_1" in skip and "mlp_2" not in skip else 0.0)


# ---- What is measured. ----


def brute_force(target, skip, sampling, block):
  """Alpha, one draft after the other, token by token."""
  (_, texts, _), *_ = api.padded_batches(IDS, len(IDS))
  decoder, params = PlainDecoder(target.network, block=block), target.params
  keys = row_keys(jax.random.key(0), len(IDS))
  decoded = decoder.decode({"target": params}, texts, keys, sampling, ROOM, 1)
  extend, state = decoder.prepare({"target": params}, texts, keys, ROOM)
  outputs, begin = decoded.tokens, state.lengths - 1
  read = jnp.concatenate([state.last_tokens()[:, None], outputs[:, :-1]], axis=1)
  logits, _, cache = extend(state.target_cache.at(begin), read)
  p = np.asarray(adjusted_probs(logits, sampling))
  without, betas = without_fn(target.network, params)(skip), []
  for at in range(ROOM):
    if at % block == 0:
      drafting = cache.at(begin + at)
    found, _, drafting = without(drafting, read[:, at : at + 1])
    q = np.asarray(adjusted_probs(found, sampling))[:, 0]
    beta = np.minimum(p[:, at], q).sum(-1)
    betas += beta[np.asarray(outputs[:, at]) > 0].tolist()
  return np.mean(betas)


@pytest.mark.parametrize("kind", ["t5", "gpt"])
@pytest.mark.parametrize(("sampling", "block"), [(GREEDY, 4), (Sampling(0.9), 3)])
def test_alpha_is_that_of_drafts_on_the_target_s_cache(kind, sampling, block):
  network = network_for({"t5": tiny.TARGET, "gpt": tiny_gpt.TARGET}[kind])
  params = tiny.state(network, seed=3).params if kind == "t5" else None
  if params is None:
    params = tiny_gpt_params(network)
  target = api.Model(network, params)
  study = Study(Job("", "", {}, None, ROOM), target, (), pad_inputs(IDS), 1)
  agreement = Agreement(study, sampling.temperature, block)
  assert agreement(()) == pytest.approx(1, abs=1e-5)
  skip = ("self_0", "mlp_1")
  found = agreement(skip)
  assert found == pytest.approx(brute_force(target, skip, sampling, block), abs=1e-5)
  assert found == agreement(skip)
  assert 0 < found < 1


def tiny_gpt_params(network):
  init = jax.jit(lambda key: network.init(key, *[jnp.ones((1, 8), int)] * 2)["params"])
  return jax.tree.map(lambda x: 2 * x, init(jax.random.key(3)))


# ---- Costs. ----


def test_costs_by_weights():
  found = layers.by_weights(tiny.TARGET, 2)
  counts = {"self": 4 * 16 * 16, "cross": 2 * 16 * 16, "mlp": 3 * 16 * 32}
  whole = 64 * 16 + 2 * sum(counts.values())
  assert found.kinds == {kind: count / whole for kind, count in counts.items()}
  names = network_for(tiny.TARGET).sublayers
  assert found.c(names) == pytest.approx(1)
  assert found.blocks == (1.0, 1.0)
  assert set(layers.by_weights(tiny_gpt.TARGET, 1).kinds) == {"self", "mlp"}


def test_costs_from_a_steady_clock(monkeypatch):
  """A token takes 10, a sublayer 1, 0.5 or 2, the rest 1; a block 10 + gamma."""
  longest, each = 3, {"self": 1.0, "cross": 0.5, "mlp": 2.0}
  step = lambda without: 1 + 2 * sum(x for k, x in each.items() if k not in without)
  seconds = {"plain": 10.0, "whole": 3 * step(()), "rest": 3 * 1.0}
  seconds |= {kind: 3 * step((kind,)) for kind in each}
  seconds |= {gamma: 10 + gamma + gamma * 1.0 for gamma in (1, 2, 3)}

  def clock(programs, inputs):
    return {
      (name, count): Timed(np.full(len(inputs), 7 + seconds[name] * count), ())
      for name, count in programs
    }

  monkeypatch.setattr(timed, "alternate", clock)
  target = api.Model(network_for(tiny.TARGET), None)
  found = layers.measured(target, jnp.ones((1, 4), int), GREEDY, 12, longest, 3)
  assert found.kinds == pytest.approx({k: x / 10 for k, x in each.items()})
  assert found.rest == pytest.approx(0.1)
  np.testing.assert_allclose(found.blocks, [1.1, 1.2, 1.3])


@pytest.mark.usefixtures("processor_clock")
def test_costs_are_timed():
  """On a network that is large enough for its parts to be told from noise."""
  config = tiny.config(2, 128, vocab_size=4096)
  network = network_for(config)
  target = api.Model(network, tiny.state(network).params)
  given = jnp.ones((1, 4), int), GREEDY, 12, 2, 9
  found = layers.measured(target, *given)
  assert len(found.blocks) == 2
  assert found.rest > 0


# ---- The search. ----


def search(folder, alpha=alpha_of, **key):
  study = layer_search.open_study(str(folder), {"target": "a", **key})
  return layer_search.Search(study, NAMES, alpha, COSTS)


def trials(folder):
  study = layer_search.open_study(str(folder), {"target": "a"})
  return [trial.params for trial in study.trials if trial.value is not None]


def test_optuna_is_no_worse_than_the_knapsack_and_finds_what_goes_together(tmp_path):
  found = search(tmp_path)
  knapsack = found.by_knapsack()
  best = found.by_optuna(40, seed=0)
  speeds = [found.row(skip)["speed"] for skip in (knapsack, best)]
  every = [
    frozenset(np.array(NAMES)[list(bits)].tolist())
    for count in range(512)
    for bits in [[i for i in range(9) if count >> i & 1]]
  ]
  kept = lambda skip: [name for name in NAMES if name not in skip]
  top = max(COSTS.best(alpha_of(skip), kept(skip))[0] for skip in every)
  assert speeds[0] <= speeds[1] <= top
  assert speeds[1] > 0.98 * top
  assert found.measured < 80


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path):
  whole = search(tmp_path / "whole")
  whole.by_knapsack()
  expected = whole.by_optuna(12, seed=3)
  calls = []

  def failing(skip):
    calls.append(skip)
    if len(calls) in (5, 26):
      raise KeyboardInterrupt
    return alpha_of(skip)

  def go_on():
    going_on = search(tmp_path / "parts", failing)
    going_on.by_knapsack()
    return going_on.by_optuna(12, seed=3)

  for _ in range(2):
    with pytest.raises(KeyboardInterrupt):
      go_on()
  assert go_on() == expected
  assert trials(tmp_path / "parts") == trials(tmp_path / "whole")
  # Nothing was measured twice, but for what was being measured when it stopped.
  assert len(calls) == len(set(calls)) + 2


def test_another_search_in_the_same_folder_is_refused(tmp_path):
  search(tmp_path)
  with pytest.raises(ValueError, match="another search: target differ"):
    layer_search.open_study(str(tmp_path), {"target": "b"})


def test_what_is_missing_is_named(monkeypatch):
  monkeypatch.setattr(layer_search.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ValueError, match=r"pip install 'specdec_t5x\[search\]'"):
    layer_search.require_optuna()


# ---- The command. ----


def flags(files, folder, *more):
  named = [f"--{name}={files[name]}" for name in ("target", "vocabulary", "inputs")]
  return [*named, f"--output={folder}", "--max-length=10", "--gamma=3", *more]


def run(files, folder, trials):
  more = "--costs=weights", f"--trials={trials}", "--timed=2"
  return layers.COMMAND.main(flags(files, folder, *more))


def test_the_best_set_is_a_gin_file_and_nothing_is_measured_twice(
  files, tmp_path, capsys, monkeypatch
):
  assert run(files, tmp_path, 6) == 0
  first = json.loads((tmp_path / "layers.json").read_text())["rows"]
  by_name = {row["found"]: row for row in first}
  assert by_name["nothing"]["alpha"] == pytest.approx(1)
  assert {row["identical"] for row in first} == {"2/2"}
  gamma = by_name["nothing"]["gamma"]
  assert 1 < by_name["nothing"]["tokens_per_call"]["value"] <= gamma + 1
  assert by_name["Optuna"]["speed"] >= by_name["knapsack"]["speed"]
  with gin.unlock_config():
    gin.clear_config()
    gin.parse_config((tmp_path / "layers.gin").read_text())
    skip = gin.query_parameter("SKIP/macro.value")
    gamma = gin.query_parameter("GAMMA/macro.value")
    gin.clear_config()
  drafter = LayerSkip(skip, gamma)
  drafter.check(network_for(tiny.TARGET))
  assert list(drafter.skip) == by_name["Optuna"]["skip"]
  monkeypatch.setattr(Agreement, "__call__", lambda *args: pytest.fail("measured"))
  assert run(files, tmp_path, 6) == 0
  again = json.loads((tmp_path / "layers.json").read_text())["rows"][-1]
  assert {n: again[n] for n in ("skip", "speed")} == {
    n: first[-1][n] for n in ("skip", "speed")
  }
  assert "| Optuna" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("more", "message"),
  [
    (["--trials=-1"], "--trials must be at least 0"),
    (["--gamma=0"], "--gamma must be at least 1"),
  ],
)
def test_bad_flags_are_refused(files, tmp_path, capsys, more, message):
  assert layers.COMMAND.main([*flags(files, tmp_path), *more]) == 1
  assert message in capsys.readouterr().err
