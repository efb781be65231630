"""`specdec_t5x.generate`, on a tiny pair."""

import functools
import json
import warnings

import flax
import jax.numpy as jnp
import pytest

import specdec_t5x
from specdec_t5x import Sampling, api, tuning
from specdec_t5x.core.lenient import Lenient
from specdec_t5x.core.tree import delayed
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network.config import config_from_shapes
from specdec_t5x.policies import Confidence, CostAware
from tests import processes
from tests.t5x_bridge import tiny, tiny_gpt

INPUTS = tiny.sentences(5, seed=4)
# Drafts of one length: samples depend on no times.
SAMPLED = {"policy": "fixed", "sampling": Sampling(1.0), "max_length": 10}


def tokens(outputs):
  return [output.tokens for output in outputs]


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
  root = tmp_path_factory.mktemp("api")
  target = specdec_t5x.load_model(tiny.save_t5x(root / "t", tiny.TARGET, seed=1))
  draft = specdec_t5x.load_model(tiny.save_orbax(root / "d", tiny.DRAFT, seed=2))
  return target, draft, tiny.train_vocabulary(root)


def test_greedy_generation_is_the_targets_own(setup):
  target, draft, vocabulary = setup
  settings = {"max_length": 10, "batch_size": 2}
  outputs = specdec_t5x.generate(INPUTS, target, draft, vocabulary, gamma=3, **settings)
  expected = specdec_t5x.generate(INPUTS, target, None, vocabulary, **settings)
  assert tokens(outputs) == tokens(expected)
  assert len(outputs) == len(INPUTS)
  assert all(1 <= o.target_calls <= len(o.tokens) for o in outputs)
  assert all(o.target_calls == len(o.tokens) for o in expected)
  assert all(o.accepted <= o.tried <= o.drafted for o in outputs)
  assert all(o.tried <= o.accepted + o.target_calls for o in outputs)
  assert all(isinstance(o.text, str) for o in outputs)


def timed_as(monkeypatch, cost):
  """As on a device where an iteration with a draft costs so much; what is timed."""
  jobs = []

  def seconds(job, params):
    jobs.append(job)
    return (1.0, *(cost for _ in job.decoder.drafter.lengths[1:]))

  monkeypatch.setattr(tuning, "_tuned", {})
  monkeypatch.setattr(tuning, "_seconds", seconds)
  return jobs


def test_a_gamma_that_is_given_is_drafted_whatever_it_costs(setup, monkeypatch):
  jobs = timed_as(monkeypatch, 9.0)
  settings = {"max_length": 10, "batch_size": 5}
  generate = functools.partial(specdec_t5x.generate, INPUTS, *setup, **settings)
  given, fixed = generate(gamma=3), generate(gamma=3, policy="fixed")
  assert not jobs
  assert given == fixed
  assert all(o.drafted > 0 for o in given)
  unset, auto = generate(), generate(gamma=3, policy="auto")
  assert [job.decoder.drafter.gamma for job in jobs] == [5, 3]
  for plain in (unset, auto):
    assert tokens(plain) == tokens(given)
    assert all(o.drafted == 0 and o.target_calls == len(o.tokens) for o in plain)


def test_a_decode_is_timed_once_for_a_shape_and_drafts_what_pays(setup, monkeypatch):
  jobs = timed_as(monkeypatch, 1.0)
  generate = functools.partial(specdec_t5x.generate, target=setup[0], draft=setup[1])
  settings = {"vocabulary": setup[2], "max_length": 10, "batch_size": 5}
  outputs = generate(INPUTS, **settings)
  assert outputs == generate(INPUTS, gamma=5, **settings)
  generate(INPUTS[:3], **settings), generate(INPUTS, **settings)
  assert [job.rows for job in jobs] == [5, 3]
  assert {job.max_length for job in jobs} == {10}


@pytest.mark.slow
def test_batches_go_on_knowing_what_those_before_taught(setup):
  """Drafts of a network at random fail: they are tried in the first batches alone."""
  policy = CostAware((1.0, 1.9, 1.95), 0.8, prior_weight=0.1, decay=1.0)
  settings = {"max_length": 10, "batch_size": 1, "gamma": 2, "policy": policy}
  outputs = specdec_t5x.generate(tiny.sentences(20, seed=5), *setup, **settings)
  drafted = [sum(o.drafted for o in outputs[i : i + 8]) for i in (0, 8, 16)]
  assert drafted[0] > 0
  assert drafted[1:] == [0, 0]


def test_a_drafter_of_one_s_own_has_the_policy_that_it_is_given(setup):
  drafter = DraftModel(setup[1].network, 4)
  settings = {"max_length": 10, "batch_size": 5}
  generate = functools.partial(specdec_t5x.generate, INPUTS, *setup, **settings)
  fixed, sure = generate(drafter=drafter), {"policy": Confidence(0.9)}
  assert fixed == generate(gamma=4)
  outputs = generate(drafter=drafter, **sure)
  assert outputs == generate(gamma=4, **sure)
  assert tokens(outputs) == tokens(fixed)
  assert sum(o.drafted for o in outputs) < sum(o.drafted for o in fixed)


def test_a_decoder_only_target_goes_on_from_prompts(setup, tmp_path):
  vocabulary = setup[2]
  target, draft = (
    specdec_t5x.load_model(tiny.save_t5x(tmp_path / str(seed), config, seed=seed))
    for seed, config in ((1, tiny_gpt.TARGET), (2, tiny_gpt.DRAFT))
  )
  prompts = ["the old man", "", "a"]
  settings = {"max_length": 10, "batch_size": 2}
  speculate = functools.partial(specdec_t5x.generate, policy="fixed", **settings)
  outputs = speculate(prompts, target, draft, vocabulary)
  expected = specdec_t5x.generate(prompts, target, None, vocabulary, **settings)
  assert tokens(outputs) == tokens(expected)
  assert len({tuple(o.tokens) for o in outputs}) > 1


def test_samples_of_a_fixed_length_go_by_the_seed_and_not_by_batch_size(setup):
  sample = lambda **words: tokens(
    specdec_t5x.generate(INPUTS, *setup, **SAMPLED, **words)
  )
  whole = sample(seed=1, batch_size=5)
  assert whole == sample(seed=1, batch_size=5) == sample(seed=1, batch_size=2)
  assert whole != sample(seed=2, batch_size=5)


def test_a_rule_that_does_not_keep_the_distribution_is_warned_of(setup):
  settings = {"gamma": 3, "max_length": 4, "batch_size": 1, "policy": "fixed"}
  decode = lambda rule: specdec_t5x.generate(INPUTS[:1], *setup, rule=rule, **settings)
  with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always", UserWarning)
    decode("token")
    assert not [w for w in seen if "the outputs keep" in str(w.message)]
    decode(Lenient(0.5))
  (warning,) = (w for w in seen if "the outputs keep" in str(w.message))
  assert str(warning.message).startswith("BOUNDED:")
  assert warning.filename == __file__


def of_nan(model, token):
  """The model with a token that it can't read, and hardly ever says."""
  params = flax.core.unfreeze(model.params)
  table, head = params["token_embedder"], params["decoder"]["logits_dense"]
  table["embedding"] = table["embedding"].at[token].set(jnp.nan)
  head["kernel"] = head["kernel"].at[:, token].set(0.0)
  return api.Model(model.network, params)


UNKNOWN = 2
WITH_NAN = [*INPUTS[:3], "the @ dog", *INPUTS[3:], "the dog"]


@pytest.mark.parametrize(
  ("broken", "temperature", "words"),
  [
    ("target", 0.0, None),
    ("target", 0.05, None),
    ("target", 0.0, {"rule": "token"}),
    ("target", 0.05, {"rule": "token"}),
    ("target", 0.05, {"rule": "block"}),
    ("target", 0.05, {"rule": "kseq"}),
    ("target", 0.0, {"rule": "typical"}),
    ("draft", 0.0, {}),
    ("draft", 0.05, {}),
    ("draft", 0.05, {"rule": "block"}),
    ("draft", 0.05, {"rule": "kseq", "num_candidates": 2}),
    ("draft", 0.0, {"rule": "recursive", "num_candidates": 2}),
    ("draft", 0.05, {"rule": "lenient"}),
    ("draft", 0.0, {"rule": "lenient"}),
  ],
  ids=str,
)
def test_logits_that_are_no_numbers_are_an_error_that_names_the_input(
  setup, broken, temperature, words
):
  target, draft, vocabulary = setup
  settings = {"sampling": Sampling(temperature), "max_length": 6}
  if words is None:
    draft = None
  else:
    settings |= {"policy": "fixed", **words}  # Else it may not draft at all.
  if broken == "target":
    target, settings["batch_size"] = of_nan(target, UNKNOWN), 2
    says = "input 3: expected numbers for logits, got NaN"
  else:
    draft, says = of_nan(draft, UNKNOWN), r"input 3: .* from the draft, in 1 of 7"
  with pytest.raises(ValueError, match=says):
    specdec_t5x.generate(WITH_NAN, target, draft, vocabulary, **settings)


@pytest.mark.parametrize(
  ("count", "rows"), [(0, []), (1, [1]), (3, [3]), (5, [8])], ids=str
)
def test_no_more_rows_are_decoded_than_there_are_inputs(
  setup, monkeypatch, count, rows
):
  seen, compiled = [], api.compiled

  def watched(*settings):
    run = compiled(*settings)
    return lambda params, *args, **known: (
      seen.append([len(x) for x in args]) or run(params, *args, **known)
    )

  monkeypatch.setattr(api, "compiled", watched)
  settings = {"max_length": 6, "batch_size": 4, "policy": "fixed"}
  outputs = specdec_t5x.generate(INPUTS[:count], *setup, **settings)
  assert len(outputs) == count
  assert seen == [[n, n, n] for n in rows]


TURNS = CostAware((1.0, 1.35, 1.55, 1.8), 0.6, prior_weight=1.0, decay=0.5)
PROGRAM = """
import json, sys
import jax
from tests import test_api
assert jax.config.jax_enable_x64
print(json.dumps(test_api.in_all_ways(*json.loads(sys.argv[1]))))
"""


def in_all_ways(inputs, vocabulary, target, draft):
  """The outputs of plain and speculative decoding, greedy and sampled.

  Lengths that are measured are of greedy decoding alone: samples depend on times.
  """
  target, draft = map(specdec_t5x.load_model, (target, draft))
  fixed_costs = {"policy": TURNS, "gamma": 3}
  ways = [
    (None, 0.0, {}),
    (None, 1.0, {}),
    (draft, 0.0, {}),
    (draft, 0.0, fixed_costs),
    (draft, 1.0, fixed_costs),
    (draft, 1.0, {"policy": "fixed"}),
  ]
  found = []
  for helper, temperature, words in ways:
    words = {"sampling": Sampling(temperature), "max_length": 6, **words}
    outputs = specdec_t5x.generate(inputs, target, helper, vocabulary, **words)
    found.append([(output.tokens, output.score) for output in outputs])
  return found


def test_64_bits_change_nothing(tmp_path):
  given = (
    INPUTS[:2],
    tiny.train_vocabulary(tmp_path),
    tiny.save_t5x(tmp_path / "t", tiny.TARGET, seed=1),
    tiny.save_t5x(tmp_path / "d", tiny.DRAFT, seed=2),
  )
  wide = {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
  found = processes.printed("-c", PROGRAM, json.dumps(given), **wide)
  expected = in_all_ways(*given)
  assert json.loads(found.splitlines()[-1]) == json.loads(json.dumps(expected))


def test_a_drafter_that_is_there_needs_the_networks_that_are_passed(setup):
  target, draft, vocabulary = setup
  drafter = TreeDraft(draft.network, delayed(1, 2, 3))
  decode = lambda draft, **words: specdec_t5x.generate(
    INPUTS, target, draft, vocabulary, rule="traversal", max_length=10, **words
  )
  outputs = decode({"draft": draft}, drafter=drafter)
  expected = decode(draft, policy="fixed")
  assert tokens(outputs) == tokens(expected)
  with pytest.raises(ValueError, match=r"needs the networks \['draft'\], got other"):
    decode({"other": draft}, drafter=drafter)


def test_bad_input_is_refused(setup, unchecked):
  target, draft, vocabulary = setup
  with pytest.raises(ValueError, match="list of texts"):
    specdec_t5x.generate("one text", target, draft, vocabulary)
  with pytest.raises(ValueError, match="is not a file"):
    specdec_t5x.generate(INPUTS, target, draft, "nowhere.model")
  for name in ("batch_size", "max_length"):
    for value in (0, 2.5):
      with pytest.raises(ValueError, match=f"{name} must be a whole number of at"):
        specdec_t5x.generate(INPUTS, target, None, vocabulary, **{name: value})
  for words in ({"rule": "block"}, {"gamma": 3}, {"policy": "fixed"}):
    with pytest.raises(ValueError, match="need a draft"):
      specdec_t5x.generate(INPUTS, target, None, vocabulary, **words)
  with pytest.raises(ValueError, match="not a T5"):
    config_from_shapes({"kernel": (2, 3)})
