"""Ways to draft and to verify, set in gin: the target's own outputs, and what ran."""

import dataclasses

import jax
import pytest
from flax.core import unfreeze

from specdec_t5x import train
from specdec_t5x.checkpoints.parameters import T5XParameters
from specdec_t5x.link import process
from specdec_t5x.network import hot
from specdec_t5x.network.functional import initial_variables, network_for
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.network.parallel import ParallelConfig
from tests.e2e import runs
from tests.t5x_bridge import tiny

KEY = jax.random.key(0)
EXAMPLE = "examples/write_a_drafter.gin"


def drafts(drafter, *files, policy="Fixed", **bindings):
  """Returns gin files, bindings, and the kinds of drafter and policy that then run."""
  return files, bindings, [drafter, policy]


PAYS = {"policy": "CostAware"}
PRUNED = ("drafters/heads", "drafters/pruned")
SKIP = ("self_0", "mlp_1")
WAYS = {
  "copy": drafts("Copy", "drafters/copy", COPY_MATCH=1),
  "tree": drafts("TreeDraft", "drafters/tree", STEM=1, SIBLINGS="likeliest"),
  "candidates": drafts("TreeDraft", NUM_CANDIDATES=2, VERIFICATION="kseq"),
  "auto": drafts("DraftModel", "policies/auto", BY_ROW=True, **PAYS),
  "budget": drafts(
    *("DraftModel", "policies/budget"),
    **{"policy": "Budget", "SECONDS": (1.0, 1.1, 1.2, 1.3, 1.1, 1.2, 1.3)},
  ),
  "confidence": drafts(
    "DraftModel", "policies/confidence", policy="Confidence", CONFIDENCE=0.3
  ),
  "heads": drafts("HeadDraft", "drafters/heads", SIBLINGS="likeliest"),
  "biased": drafts("ParallelDraft", "drafters/heads", VERIFICATION="block"),
  "eagle": drafts("EagleDraft", "drafters/heads", VERIFICATION="block"),
  "trimmed": drafts("DraftModel", "drafters/trimmed"),
  "eagle-trimmed": drafts("EagleDraft", "drafters/heads", GAMMA=None, **PAYS),
  "shared encoder in a tree": drafts(
    "TreeDraft", "drafters/shared_encoder", "drafters/tree", STEM=1
  ),
  "parallel by ngrams": drafts(
    *("ParallelDraft", *PRUNED, "drafters/pruned_by_ngrams"),
    **{"NODES": 6, "GAMMA_POLICY": "auto", **PAYS},
  ),
  "layers": drafts(
    *("LayerSkip", "drafters/layer_skip"),
    **{"SKIP": SKIP, "GAMMA_POLICY": "exit", "policy": "ExitThreshold"},
  ),
  "sparse": drafts("SparseDraft", "drafters/sparse", DRAFT_TOPK=4),
  "cascade that pays": drafts(
    "Cascade", "drafters/cascade", LOWER_GAMMA=1, GAMMA_POLICY="auto", **PAYS
  ),
  "cascade flush": drafts("Cascade", "drafters/cascade", WINDOW="flush"),
  "cascade copy": drafts(
    "Cascade", "drafters/cascade_copy", COPY_MATCH=1, LOWER_GAMMA=2
  ),
  "cascade quantized": drafts("Cascade", "drafters/cascade_quantized", BITS=4, GROUP=8),
  "ngram by name": drafts("DraftModel", DRAFTER="ngram", GAMMA=None, **PAYS),
  "ngram in a tree": drafts("TreeDraft", "drafters/ngram", "drafters/tree"),
  "quantized": drafts(
    *("Quantized", "drafters/quantized"),
    **{"BITS": 4, "GROUP": 8, "WHOLE": ("logits",), "SKIP": ("mlp_1",)},
  ),
  "quantized by name": drafts("Quantized", DRAFTER="quantized", GAMMA=None, **PAYS),
}


@pytest.fixture(scope="session")
def table(pair, tmp_path_factory):
  """The checkpoint of a table of n-grams."""
  root, output = pair[0].parent, tmp_path_factory.mktemp("table")
  bindings = {
    "TARGETS": str(root / "text.en"),
    "VOCABULARY_PATH": str(root / "tiny.model"),
    "VOCAB_SIZE": 64,
    "OUTPUT_DIR": str(output),
  }
  settings = [f"{name} = {x!r}" for name, x in bindings.items()]
  train.run("ngrams", ["configs/train/ngrams.gin"], settings)
  return str(output / "checkpoint_0")


@pytest.fixture(scope="session")
def heads(tmp_path_factory):
  """The checkpoints of what reads the target, by the way to draft with it."""
  networks = {
    "heads": network_for(HeadsConfig("hydra", 3, tiny.TARGET.emb_dim)),
    "parallel": network_for(ParallelConfig.of(tiny.TARGET, 3)),
    "biased": network_for(ParallelConfig.of(tiny.TARGET, 3, rank=2, vocab_size=64)),
    "shared": network_for(dataclasses.replace(tiny.TARGET, num_encoder_layers=0)),
  }
  networks["eagle"] = network_for(ParallelConfig.of(tiny.TARGET, 3, kind="eagle"))
  made = {
    name: (network.config, unfreeze(initial_variables(network, KEY)["params"]))
    for name, network in networks.items()
  }
  head = hot.projection(made["shared"][1])
  for name, of in (("trimmed", "shared"), ("eagle-trimmed", "eagle")):
    made[name] = hot.trimmed(*made[of], range(1, 20), head)
  paths = {}
  for name, (config, params) in made.items():
    root = tmp_path_factory.mktemp(name)
    T5XParameters(network_for(config), str(root)).save(1, params)
    paths[name] = str(root / "checkpoint_1")
  return paths


@pytest.fixture
def drafted(pair, tmp_path):
  """Runs the pair with more gin files; returns the outputs and what the run records."""

  def run(*gin_files, draft=pair[1], **bindings):
    printed = runs.completed(
      *("configs/spec_ende.gin", pair[0], *gin_files),
      INFER_OUTPUT_DIR=str(tmp_path / "out"),
      **{"DRAFT_CHECKPOINT_PATH": draft} if draft else {},
      **{"GAMMA": 3, **bindings},
    )
    return runs.tokens(tmp_path / "out"), runs.summary(tmp_path / "out"), printed

  return run


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_draft_gives_the_target_s_own_outputs(
  way, drafted, table, heads, pair, speculative
):
  files, bindings, kinds = WAYS[way]
  none = dict.fromkeys(("copy", "layers", "quantized"))
  draft = {"ngram": table, **none, **heads}.get(way.split()[0], pair[1])
  if "drafters/pruned_by_ngrams" in files:
    bindings = {**bindings, "NGRAMS_CHECKPOINT_PATH": table}
  files = [f"configs/{name}.gin" for name in files]
  if "drafters/cascade" in WAYS[way][0]:  # Under the draft model.
    bindings = {**bindings, "DRAFT_2_CHECKPOINT_PATH": table}
  tokens, summary, _ = drafted(*files, draft=draft, **bindings)
  assert tokens == runs.tokens(speculative)
  drafter, policy = (summary["decoder"][part] for part in ("drafter", "policy"))
  assert [drafter["kind"], policy["kind"]] == kinds
  # What a GAMMA asks for is drafted; what is timed may be drafted.
  is_timed = kinds[1] in ("CostAware", "Budget") and "SECONDS" not in bindings
  assert summary["statistics"]["drafted"] > 0 or is_timed
  if is_timed:
    times = [x for x in summary["iteration_seconds"] if x["rows"] == 8]
    assert all(len(x["seconds"]) == len(x["drafted"]) for x in times)
    assert times
  derived = summary["derived"]
  assert list(derived) == ["quantized"] * ("quantized" in way)
  assert all(0 < x["bytes"] < x["bytes_of_target"] for x in derived.values())
  network = drafter.get("network", {"kind": None})["kind"]
  assert (network == "NgramTable") == (draft == table)
  assert summary["guarantee"] == "EXACT"


def test_a_table_of_n_grams_drafts_and_gin_sets_the_policy_of_gamma(
  drafted, table, speculative
):
  knobs = {"SECONDS": [1.0, 1.41, 1.42, 2.23], "PRIOR_ALPHA": 0.9, "BY_ROW": True}
  tokens, summary, _ = drafted(
    "configs/policies/auto.gin", draft=table, DRAFTER="ngram", **knobs
  )
  assert tokens == runs.tokens(speculative)
  assert summary["decoder"]["drafter"]["kind"] == "DraftModel"
  policy = summary["decoder"]["policy"]
  assert policy["kind"] == "CostAware"
  assert {n: policy[n.lower()] for n in knobs} == knobs


def test_a_draft_in_another_process_gives_them_too(drafted, pair, speculative):
  with process.drafting(pair[1]) as address:
    tokens, summary, _ = drafted(
      "configs/drafters/link.gin", draft=None, LINK_ADDRESS=address, LINK_TOPK=4
    )
  assert tokens == runs.tokens(speculative)
  assert summary["decoder"]["drafter"]["remote"]["address"] == address
  assert summary["counted"]["tokens"] >= summary["statistics"]["drafted"] > 0
  assert summary["counted"]["lost"] == 0


def test_a_tree_samples(drafted):
  _, summary, _ = drafted("configs/drafters/tree.gin", TEMPERATURE=1.0, STEM=1)
  decoder = summary["decoder"]
  assert decoder["rule"] == {"kind": "Traversal"}
  assert decoder["drafter"]["siblings"] == "distinct"
  assert decoder["drafter"]["tree"]["parents"] == [0, 1, 1, 2, 3]
  assert summary["statistics"]["accepted"] > 0


def test_a_beam_finds_the_hypotheses_of_its_baseline(drafted, pair, tmp_path):
  beam = {"BEAM_SIZE": 2, "BEAM_ALPHA": 0.3}
  tokens, summary, _ = drafted("configs/runs/beam.gin", DRAFT_BEAM_SIZE=4, **beam)
  decoder = summary["decoder"]
  assert (decoder["kind"], decoder["gamma"], decoder["alpha"]) == (
    "BeamDecoder",
    3,
    0.3,
  )
  assert summary["guarantee"] == "GREEDY_EXACT"
  runs.completed(
    *("configs/baseline_ende.gin", pair[0], "configs/runs/beam_baseline.gin"),
    INFER_OUTPUT_DIR=str(tmp_path / "plain"),
    **beam,
  )
  assert runs.tokens(tmp_path / "plain") == tokens
  assert runs.summary(tmp_path / "plain")["decoder"]["draft"] is None


def test_a_drafter_of_one_s_own_needs_none_of_our_files(drafted, speculative):
  tokens, summary, _ = drafted(EXAMPLE, draft=None)
  assert tokens == runs.tokens(speculative)
  assert summary["decoder"]["drafter"] == {"kind": "Echo", "gamma": 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_rule_of_one_s_own_needs_none_of_our_files(drafted, temperature):
  rule = "examples/write_a_rule.gin"
  _, summary, printed = drafted(rule, TEMPERATURE=temperature)
  assert printed.startswith("LOSSY: this run keeps nothing of the target's")
  assert summary["decoder"]["rule"] == {"kind": "Plausible", "share": 0.3}
  assert summary["statistics"]["alpha_by_mass"] is None
