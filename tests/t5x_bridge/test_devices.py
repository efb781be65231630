"""Several devices give the tokens of a single device and divide the memory."""

import dataclasses

import jax
import pytest
from t5x import partitioning

from specdec_t5x.t5x_bridge.preflight import check_layout
from tests.processes import on_devices
from tests.t5x_bridge import tiny
from tests.t5x_bridge.eight_devices import MESHES, RUNS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results():
  return on_devices(8, "-m", "tests.t5x_bridge.eight_devices")


@pytest.mark.parametrize(
  ("mesh", "temperature"), [(mesh, t) for t, meshes in RUNS.items() for mesh in meshes]
)
def test_a_mesh_gives_the_tokens_of_a_single_device(results, mesh, temperature):
  alone = results[f"one, T={temperature}"]["tokens"]
  assert results[f"{mesh}, T={temperature}"]["tokens"] == alone
  assert len({tuple(row) for row in alone}) > 8


@pytest.mark.parametrize("mesh", MESHES)
def test_parameters_caches_and_rows_are_divided(results, mesh):
  alone = results["one, T=0"]
  here = results[f"{mesh}, T=0"]
  assert here["temporary"] < alone["temporary"] / 2
  assert (here["params"] < alone["params"] / 3) == ("model" in mesh)


def test_rounded_weights_are_divided_and_drafts_do_not_change(results):
  alone, here = (results[f"{name}, rounded"] for name in ("one", "data 2, model 4"))
  assert here["tokens"] == alone["tokens"] == results["one, T=0"]["tokens"]
  assert here["accepted"] == alone["accepted"]
  assert sum(alone["accepted"]) > 0
  assert here["params"] < alone["params"] / 3


@pytest.mark.parametrize(
  ("run", "held"), [("data 8, T=0", 264), ("data 2, model 4, slots=4, T=1", 264 // 4)]
)
def test_a_block_s_distributions_are_divided_by_vocabulary(results, run, held):
  # With a 'model' axis no device holds a whole distribution.
  assert results[run]["vocabularies"] == [held]


def check(vocabulary, rows=8, **draft):
  """Checks the layout of a pair with a target of 2 heads on a mesh of 2 x 2."""
  model = tiny.speculative(vocabulary, draft=dataclasses.replace(tiny.DRAFT, **draft))
  check_layout(model.abstract_variables, FourDevices(num_partitions=2), rows)


class FourDevices(partitioning.PjitPartitioner):
  """A partitioner with an abstract mesh of 2 x 2."""

  mesh = jax.sharding.AbstractMesh((2, 2), ("data", "model"))


def test_heads_that_the_mesh_does_not_divide_are_refused_before_any_work(vocabulary):
  check(vocabulary)
  with pytest.raises(ValueError, match=r"draft/.*rel_embedding.*DRAFT_SHARDING='no_h"):
    check(vocabulary, num_heads=3)
  check(vocabulary, num_heads=3, sharding="no_heads")
  with pytest.raises(ValueError, match=r"draft/.*mlp.*'replicated'"):
    check(vocabulary, mlp_dim=15, sharding="no_heads")
  check(vocabulary, mlp_dim=15, num_heads=3, sharding="replicated")


def test_a_batch_that_the_mesh_does_not_divide_is_refused(vocabulary):
  with pytest.raises(
    ValueError, match=r"BATCH_SIZE must be divisible .* 2 devices, got 7"
  ):
    check(vocabulary, rows=7)
