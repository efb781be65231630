"""The comparison of drafters, rules, policies and domains."""

import pytest

from tests.benchmarks.conftest import ran

pytestmark = pytest.mark.slow

SHORT = ("--max-length=10", "--num-inputs=3", "--gamma=3")


@pytest.fixture(scope="module")
def rows(pair, tmp_path_factory):
  """Returns the rows of every shape at temperature 0 on two domains."""
  root = tmp_path_factory.mktemp("methods")
  (root / "others.txt").write_text("a red house\nthe old dog sees\n")
  flags = ["--draft=copy", "--chart", f"--also=others={root / 'others.txt'}"]
  flags += ["--temperatures=0", "--no-rules"]
  found = ran("methods", root, *pair, *flags, *SHORT)
  assert (root / "methods.svg").is_file()
  return found["rows"]


def test_every_domain_has_the_same_ways(rows):
  found = {}
  for row in rows:
    way = tuple(row[name] for name in ("draft", "shape", "rule"))
    found.setdefault(row["domain"], []).append(way)
  assert list(found) == ["yours", "others"]
  assert found["yours"] == found["others"]
  assert len(set(found["yours"])) == len(found["yours"])


def test_exact_ways_give_the_target_s_outputs(rows):
  all_of_them = {"yours": "3/3", "others": "2/2"}
  for row in rows:
    if row["guarantee"] in ("EXACT", "GREEDY_EXACT"):
      assert row["identical"] == all_of_them[row["domain"]], row


def test_rows_have_parameters_training_and_costs(rows):
  by = {(row["draft"], row["shape"]): row for row in rows}
  assert by["copy", "chain"]["parameters"] == "0.00M"
  assert by["copy", "chain"]["training"] == "none"
  assert by["small", "chain"]["training"] == "a draft model"
  assert by["target", "rounded to 8 bits"]["training"] == "none"
  costs = [row["c"] for row in rows]
  assert all(c is None or c >= 0 for c in costs)
  assert by["small", "chain"]["tokens_per_call"]["value"] >= 1
  assert all(row["milliseconds"] > 0 for row in rows)
