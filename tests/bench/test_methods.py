"""Every way to speculate side by side: rules, policies, domains and peers."""

import pytest

from specdec_t5x.bench.peers import CTRANSLATE2, HUGGING_FACE, importable, programs
from specdec_t5x.core.rules import RULES
from tests.bench.conftest import ran
from tests.ways import WAYS

SHORT = ("--max-length=10", "--num-inputs=3", "--gamma=3")
LOSSY = {"typical", "topk", "distance", "lenient"}


@pytest.fixture(scope="module")
def rows(pair, heads, tmp_path_factory):
  root = tmp_path_factory.mktemp("methods")
  (root / "others.txt").write_text("a red house\nthe old dog sees\n")
  also = f"--also=others={root / 'others.txt'}"
  drafts = "copy", *(f"{name}={path}" for name, path in heads.items())
  more = "--draft", *drafts, "--skip=self_1", "--sizes=3", "--chart", also
  found = ran("methods", root, *pair, *more, *SHORT)
  assert (root / "methods.svg").is_file()
  return found["rows"]


def test_each_domain_has_every_way(rows):
  found = {}
  for row in rows:
    way = tuple(row[name] for name in ("temperature", "draft", "shape", "rule"))
    found.setdefault(row["domain"], []).append(way)
  assert list(found) == ["yours", "others"]
  assert found["yours"] == found["others"]
  assert len(set(found["yours"])) == len(found["yours"])
  shapes = {(draft, shape) for _, draft, shape, _ in found["yours"]}
  for heads in ("hydra", "parallel"):
    shapes_of = {shape for draft, shape in shapes if draft == heads}
    assert shapes_of == {"chain", "pruned to 3", "tree of 3"}
  assert ("copy", "chain, COPY_MATCH 1") in shapes
  benched = {way.benched for way in WAYS.values() if way.benched}
  assert benched <= {shape for _, shape in shapes}


def test_outputs_are_the_target_s_own_where_they_have_to_be(rows):
  counts = {"yours": 3, "others": 2}
  for row in rows:
    all_of_them = f"{counts[row['domain']]}/{counts[row['domain']]}"
    if row["temperature"] == "1":
      assert row["identical"] == "sampled"
    elif row["guarantee"] in ("EXACT", "GREEDY_EXACT"):
      assert row["identical"] == all_of_them, row


def test_every_rule_judges_the_first_draft(rows):
  rules = {t: {r["rule"] for r in rows if r["temperature"] == t} for t in ("0", "1")}
  names = {type(rule).__name__.lower() for rule in RULES.values()}
  assert {*rules["0"]} | {*rules["1"]} >= names - {"block"}  # On a chain 'traversal'.
  exact = {row["rule"] for row in rows if row["guarantee"] == "EXACT"}
  assert not exact & LOSSY


def test_a_draft_in_another_process_drafts_the_same(rows):
  found = [row for row in rows if (row["temperature"], row["draft"]) == ("0", "small")]
  calls = {(r["domain"], r["shape"], r["rule"]): r["tokens_per_call"] for r in found}
  for domain in ("yours", "others"):
    here, there = "chain", "in another process"
    assert calls[domain, here, "greedy"] == calls[domain, there, "greedy"]


def test_ways_have_their_price(rows):
  by = {(row["draft"], row["shape"]): row for row in rows if row["temperature"] == "0"}
  assert by["copy", "chain"]["parameters"] == "0.00M"
  assert by["copy", "chain"]["training"] == "none"
  assert by["small", "in another process"]["parameters"] == "0.00M"  # Of this process.
  assert by["small", "chain"]["training"] == "a draft model"
  assert by["target", "without 1 sublayers"]["training"] == "none"
  costs = [row["c"] for row in rows if row["shape"] != "peer"]
  assert all(c is None or c >= 0 for c in costs)
  assert by["small", "chain"]["tokens_per_call"]["value"] >= 1


def test_peers_are_there_where_they_are_installed(rows):
  peers = {row["draft"]: row for row in rows if row["shape"] == "peer"}
  expected = set()
  if importable(HUGGING_FACE):
    expected |= {programs.HF_PLAIN, programs.HF_GAMMA, programs.HF_LOOKUP}
  if importable(CTRANSLATE2):
    expected |= {*programs.CT2.values()}
  assert expected <= peers.keys()
  assert all(row["milliseconds"] > 0 for row in rows)
