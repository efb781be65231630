"""The comparison of drafters, rules, policies and domains."""

import functools

import jax
import pytest

from specdec_t5x.bench import jobs, methods
from specdec_t5x.bench.ways import ways
from specdec_t5x.contrib.link.drafter import Link
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.state import row_keys
from tests.bench.conftest import ran

SHORT = ("--max-length=10", "--num-inputs=3", "--gamma=3")
SHAPES = {"chain", "4 candidates", "stem 2, 2 branches", "without 1 sublayers"}
SHAPES |= {"rounded to 4 bits", "rounded to 8 bits", "chain of distributions cut to 32"}
SHAPES |= {"in another process", "chain, sped up by copies", "policy 'auto'"}
LOSSY = {"typical", "topk", "distance", "lenient"}


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


def tokens_of(decode, inputs, keys):
  return decode(inputs, keys).tokens


def test_every_way_and_rule_is_listed_and_can_be_traced(pair, heads, monkeypatch):
  """tests/test_ways.py and tests/exactness decode with every way and rule."""
  flags = *pair, f"--draft=medusa={heads['medusa']}", "--skip=self_0", "--output=none"
  args = methods.COMMAND.parser().parse_args(
    [*flags, "--draft=copy", "--sizes=3", *SHORT]
  )
  study = jobs.load(args)
  shapes = set()
  rules = {}
  # No other process runs.
  monkeypatch.setattr(Link, "check", lambda *args, **words: None)
  for temperature in (0.0, 1.0):
    for (draft, shape, rule), way in ways(
      study, temperature, args, "localhost:1"
    ).items():
      shapes.add((draft, shape))
      if draft != "small" or shape == "in another process":
        continue
      rules[rule] = way.columns["guarantee"]
      # Policies based on measured times run programs.
      if "policy" not in shape:
        run = functools.partial(tokens_of, way.decode)
        jax.eval_shape(run, study.inputs[0], row_keys(jax.random.key(0), 1))
  shapes_of_heads = {shape for draft, shape in shapes if draft == "medusa"}
  assert shapes_of_heads == {"chain", "pruned to 3", "tree of 3"}
  assert ("copy", "chain, COPY_MATCH 1") in shapes
  assert {shape for _, shape in shapes} >= SHAPES
  names = {type(rule).__name__.lower() for rule in RULES.values()}
  # Chains have 'traversal' in place of 'block'.
  assert rules.keys() >= names - {"block"}
  assert not {name for name, kind in rules.items() if kind == "EXACT"} & LOSSY


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
