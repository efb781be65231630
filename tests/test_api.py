"""`specdec_t5x.generate` on a tiny pair."""

import copy
import dataclasses
import functools
import os
import pickle
import sys
import warnings

import flax
import jax
import jax.numpy as jnp
import pytest

import specdec_t5x
from specdec_t5x import Sampling, api, console, groups, tuning
from specdec_t5x.core.rules.lenient import Lenient
from specdec_t5x.decoding.contracts import lengths_of
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.of_target import Quantized
from specdec_t5x.drafters.tree_draft import TreeDraft, delayed
from specdec_t5x.native import library
from specdec_t5x.network.config import config_from_shapes
from tests import damage, table
from tests.t5x_bridge import tiny

INPUTS = tiny.sentences(5, seed=4)
# Most tests have equal sizes and thus share programs.
SIZES = {"max_length": 10, "batch_size": 5}
# The draft length is fixed, so samples don't depend on times.
SAMPLED = {"policy": "fixed", "gamma": 3, "sampling": Sampling(1.0), **SIZES}


def tokens(outputs):
  return [output.tokens for output in outputs]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
  root = tmp_path_factory.mktemp("api")
  target = tiny.save_t5x(root / "t", tiny.TARGET, seed=1)
  draft = tiny.save_t5x(root / "d", tiny.DRAFT, seed=2, format="orbax")
  return target, draft, tiny.train_vocabulary(root)


@pytest.fixture(scope="module")
def setup(paths):
  return *map(specdec_t5x.load_model, paths[:2]), paths[2]


def test_greedy_outputs_equal_the_target_s(setup):
  target, draft, vocabulary = setup
  outputs = specdec_t5x.generate(INPUTS, target, draft, vocabulary, gamma=3, **SIZES)
  expected = specdec_t5x.generate(INPUTS, target, None, vocabulary, **SIZES)
  assert tokens(outputs) == tokens(expected)
  assert len(outputs) == len(INPUTS)
  assert all(1 <= o.target_calls <= len(o.tokens) for o in outputs)
  assert all(o.target_calls == len(o.tokens) for o in expected)
  assert all(o.accepted <= o.tried <= o.drafted for o in outputs)
  assert all(o.tried <= o.accepted + o.target_calls for o in outputs)
  assert all(isinstance(o.text, str) for o in outputs)


@pytest.mark.parametrize(
  "words",
  [
    {"gamma": 3, "batch_size": 2, "sampling": Sampling(1.0)},
    pytest.param(
      {"policy": CostAware((1.0, 1.1, 1.2)), "gamma": 2, "batch_size": 5},
      marks=pytest.mark.slow,
    ),
    pytest.param({"draft": None, "batch_size": 2}, marks=pytest.mark.slow),
  ],
  ids=["fixed", "auto", "plain"],
)
def test_tokens_are_handed_over_while_a_batch_decodes(setup, words, monkeypatch):
  monkeypatch.setattr(groups, "WORTH", 1)  # The long input is a group.
  target, draft, vocabulary = setup
  words = {"draft": draft, "max_length": 10, **words}
  inputs = [*INPUTS[:3], " ".join(INPUTS * 4), *INPUTS[3:]]
  generate = functools.partial(specdec_t5x.generate, inputs, target, **words)
  pieces = [[] for _ in inputs]
  outputs = generate(
    vocabulary=vocabulary, on_tokens=lambda number, new: pieces[number].append(new)
  )
  assert outputs == generate(vocabulary=vocabulary)
  assert [[x for new in each for x in new] for each in pieces] == tokens(outputs)
  # A turn has at most one iteration with drafts and one without.
  for output, new in zip(outputs, pieces, strict=True):
    assert len(new) <= output.target_calls <= 2 * len(new)
  assert max(map(len, pieces)) > 2


def test_an_exception_of_on_tokens_reaches_the_caller(setup):
  def stop(number, new):
    raise KeyError(number)

  with pytest.raises(KeyError):
    specdec_t5x.generate(INPUTS, *setup, gamma=3, **SIZES, on_tokens=stop)


@pytest.mark.usefixtures("unchecked")
def test_on_tokens_must_be_a_function(setup):
  with pytest.raises(ValueError, match=r"on_tokens must be a function .* got True"):
    specdec_t5x.generate(INPUTS, *setup, **SIZES, on_tokens=True)


@pytest.fixture
def timed_as(monkeypatch, tmp_path_factory):
  """Returns a function that sets the time of an iteration with a draft.

  The function returns the list of measured jobs.
  """
  library.problem()  # The kernels are looked up once per process, in another folder.

  def set_cost(cost):
    jobs = []

    def times(job, params):
      jobs.append(job)
      drafts = (cost for _ in lengths_of(job.decoder.drafter)[1:])
      return {"seconds": (1.0, *drafts), "prepare": (0.5, 0.5)}

    api.compiled.cache_clear()  # Programs keep their tuned decoders.
    console.say_once.cache_clear()
    monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path_factory.mktemp("no_times")))
    monkeypatch.setattr(tuning, "measure", times)
    return jobs

  return set_cost


def test_a_given_gamma_is_drafted_at_any_cost(setup, timed_as):
  jobs = timed_as(9.0)
  generate = functools.partial(specdec_t5x.generate, INPUTS, *setup, **SIZES)
  with_gamma, fixed = generate(gamma=3), generate(gamma=3, policy="fixed")
  assert not jobs
  assert with_gamma == fixed
  assert all(o.drafted > 0 for o in with_gamma)
  unset, auto = generate(), generate(gamma=3, policy="auto")
  assert [job.decoder.drafter.depth for job in jobs] == [5, 3]
  for plain in (unset, auto):
    assert tokens(plain) == tokens(with_gamma)
    assert all(o.drafted == 0 and o.target_calls == len(o.tokens) for o in plain)


def test_a_decode_is_timed_once_and_drafts_if_drafts_pay(setup, timed_as):
  jobs = timed_as(1.0)
  generate = functools.partial(specdec_t5x.generate, target=setup[0], draft=setup[1])
  settings = {"vocabulary": setup[2], **SIZES}
  outputs = generate(INPUTS, **settings)
  assert all(o.drafted > 0 for o in outputs)
  assert outputs == generate(INPUTS, **settings)
  assert [job.rows for job in jobs] == [5]


@pytest.mark.parametrize(
  ("drafter", "policy"),
  [("draft_model", None), ("quantized", "fixed"), ("copy", None), ("sparse", None)],
)
def test_outputs_may_be_shorter_than_drafts(setup, drafter, policy, timed_as):
  """Classifiers' outputs have a few tokens, and a default draft has five and more."""
  timed_as(1.0)
  target, draft, vocabulary = setup
  draft = {"quantized": None, "copy": None}.get(drafter, draft)
  for length in (1, 2):
    settings = {"vocabulary": vocabulary, "max_length": length, "batch_size": 5}
    outputs = specdec_t5x.generate(
      INPUTS, target, draft, drafter=drafter, policy=policy, **settings
    )
    expected = specdec_t5x.generate(INPUTS, target, None, **settings)
    assert tokens(outputs) == tokens(expected)
    assert all(o.drafted < length * len(o.tokens) for o in outputs)


@pytest.mark.slow
def test_the_policy_s_state_is_kept_between_batches(setup):
  """Drafts of a random network fail, so only the first batches draft."""
  policy = CostAware((1.0, 1.9, 1.95), 0.8, prior_weight=0.1, decay=1.0)
  settings = {"max_length": 10, "batch_size": 1, "gamma": 2, "policy": policy}
  outputs = specdec_t5x.generate(tiny.sentences(20, seed=5), *setup, **settings)
  drafted = [sum(o.drafted for o in outputs[i : i + 8]) for i in (0, 8, 16)]
  assert drafted[0] > 0
  assert drafted[1:] == [0, 0]


def test_a_user_s_drafter_has_the_given_policy(setup):
  drafter = DraftModel(setup[1].network, 3)
  generate = functools.partial(specdec_t5x.generate, INPUTS, *setup, **SIZES)
  fixed = generate(drafter=drafter)
  shorter = {"policy": Fixed(1)}
  assert fixed == generate(gamma=3)
  outputs = generate(drafter=drafter, **shorter)
  assert outputs == generate(gamma=3, **shorter)
  assert tokens(outputs) == tokens(fixed)
  assert sum(o.drafted for o in outputs) < sum(o.drafted for o in fixed)


def test_samples_at_a_fixed_length_depend_on_the_seed_and_not_the_batch_size(setup):
  def sample(**words):
    return tokens(specdec_t5x.generate(INPUTS, *setup, **SAMPLED | words))

  samples = sample(seed=1)
  assert samples == sample(seed=1) == sample(seed=1, batch_size=2)
  assert samples != sample(seed=2)


def test_coupled_samples_under_auto_depend_on_the_seed_and_not_on_times_or_batches(
  setup, timed_as
):
  def sample(cost=None, **words):
    if cost:
      timed_as(cost)
    settings = {"sampling": Sampling(1.0), "rule": "coupled", "seed": 4, **SIZES}
    return specdec_t5x.generate(INPUTS, *setup, **settings | words)

  fast, dear = sample(1.0), sample(9.0)
  assert all(o.drafted > 0 for o in fast)
  assert all(o.drafted == 0 for o in dear)
  smaller = sample(1.0, batch_size=2)
  fixed = sample(policy="fixed", gamma=2)
  assert tokens(fast) == tokens(dear) == tokens(smaller) == tokens(fixed)
  assert tokens(fast) != tokens(sample(1.0, seed=5))


@pytest.mark.parametrize(
  ("words", "is_said"),
  [
    ({"sampling": Sampling(1.0)}, True),
    ({"sampling": Sampling(1.0), "policy": CostAware(decay=0.9)}, True),
    ({"sampling": Sampling(1.0), "rule": "block"}, True),
    ({}, False),
    ({"sampling": Sampling(1.0), "rule": "coupled"}, False),
    ({"sampling": Sampling(1.0, coupled=True)}, False),
    ({"sampling": Sampling(1.0), "policy": "fixed"}, False),
    ({"sampling": Sampling(1.0), "gamma": 3}, False),
  ],
  ids=str,
)
def test_a_run_says_if_its_samples_depend_on_times(
  setup, words, is_said, timed_as, capsys
):
  timed_as(9.0)
  specdec_t5x.generate(INPUTS, *setup, **words, **SIZES)
  printed = capsys.readouterr().err
  assert ("Samples depend on these times, besides the seed." in printed) == is_said


def test_a_rule_that_changes_the_distribution_gives_a_warning(setup):
  def decode(rule):
    return specdec_t5x.generate(INPUTS, *setup, rule=rule, gamma=3, **SIZES)

  with warnings.catch_warnings(record=True) as recorded:
    warnings.simplefilter("always", UserWarning)
    decode("token")
    assert not [w for w in recorded if "the outputs keep" in str(w.message)]
    decode(Lenient(0.5))
  (warning,) = (w for w in recorded if "the outputs keep" in str(w.message))
  assert str(warning.message).startswith("BOUNDED:")
  assert warning.filename == __file__


def with_nan_token(model, token):
  """Returns the model with a NaN token that is read as NaN and hardly ever emitted."""
  params = flax.core.unfreeze(model.params)
  table, head = params["token_embedder"], params["decoder"]["logits_dense"]
  table["embedding"] = table["embedding"].at[token].set(jnp.nan)
  head["kernel"] = head["kernel"].at[:, token].set(0.0)
  return api.Model(model.network, params)


def pickled(model):
  return pickle.loads(pickle.dumps(model))


def test_models_compare_hash_and_print_without_parameters(setup, paths):
  target, draft, _ = setup
  again = specdec_t5x.load_model(paths[0])
  assert target == target != again
  assert [draft, again].index(again) == 1
  assert len({target, draft, again, target}) == 3
  assert "array" not in repr(target).lower()


@pytest.mark.parametrize(
  ("weights", "copied"),
  [("float32", copy.copy), ("float32", copy.deepcopy), ("int8", pickled)],
)
def test_copies_of_models_decode_alike(paths, weights, copied):
  target = specdec_t5x.load_model(paths[0], weights=weights)

  def decode(target):
    drafter = Quantized(4, 0, gamma=3)
    return specdec_t5x.generate(
      INPUTS, target, None, paths[2], drafter=drafter, **SIZES
    )

  before = copied(target)
  expected = decode(target)
  assert decode(before) == decode(copied(target)) == expected


def test_a_relative_path_may_be_left(paths, monkeypatch, tmp_path):
  monkeypatch.chdir(os.path.dirname(paths[0]))
  target = specdec_t5x.load_model(os.path.basename(paths[0]), weights="int8")
  monkeypatch.chdir(tmp_path)
  drafter = Quantized(4, 0, gamma=3)  # Rounds the weights of the checkpoint.
  words = {"drafter": drafter, **SIZES}
  outputs = specdec_t5x.generate(INPUTS, target, None, paths[2], **words)
  assert sum(output.drafted for output in outputs) > 0


@pytest.mark.parametrize("drafter", ["quantized", None])
def test_a_model_with_other_parameters_derives_anew(setup, drafter):
  target, _, vocabulary = setup
  other = api.Model(target.network, table.drawn(tiny.TARGET))
  words = {"drafter": drafter, **({"gamma": 3} if drafter else {})}

  def decode(target):
    return specdec_t5x.generate(INPUTS, target, None, vocabulary, **words, **SIZES)

  decode(target)
  replaced = dataclasses.replace(target, params=other.params)
  assert decode(replaced) == decode(other)


UNKNOWN = 2
WITH_NAN = [*INPUTS[:3], "the @ dog", *INPUTS[3:], "the dog"]


@pytest.mark.parametrize(
  ("broken", "temperature", "words"),
  [
    ("target", 0.05, None),
    ("target", 0.0, {"rule": "token"}),
    ("target", 0.0, {"rule": "typical"}),
    ("draft", 0.05, {"rule": "block"}),
    ("draft", 0.05, {"rule": "kseq", "num_candidates": 2}),
    ("draft", 0.0, {"rule": "recursive", "num_candidates": 2}),
    ("draft", 0.0, {"rule": "lenient"}),
  ],
  ids=str,
)
def test_nan_logits_are_an_error_with_the_input(setup, broken, temperature, words):
  target, draft, vocabulary = setup
  settings = {"sampling": Sampling(temperature), "max_length": 6}
  if words is None:
    draft = None
  else:
    settings |= {"policy": "fixed", **words}  # The default policy may draft nothing.
  if broken == "target":
    target = with_nan_token(target, UNKNOWN)
    settings["batch_size"] = 2
    message = "input 3: expected numbers for logits, got NaN"
  else:
    draft = with_nan_token(draft, UNKNOWN)
    message = r"input 3: .* from the draft, in 1 of 7"
  with pytest.raises(ValueError, match=message):
    specdec_t5x.generate(WITH_NAN, target, draft, vocabulary, **settings)


@pytest.mark.parametrize("stream", damage.STREAMS)
def test_a_progress_bar_that_nobody_reads_loses_no_output(setup, stream, monkeypatch):
  words = {"batch_size": 2, "max_length": 10, "gamma": 3}
  expected = specdec_t5x.generate(INPUTS, *setup, **words)
  monkeypatch.setattr(api, "SHOWN_AFTER", 0.0)
  monkeypatch.setattr(sys, "stderr", stream())
  assert specdec_t5x.generate(INPUTS, *setup, **words) == expected


def test_names_are_offered_for_completion_and_imported_together():
  assert {"generate", "load_model", "Sampling", "serve"} <= set(dir(specdec_t5x))
  names = {}
  exec("from specdec_t5x import *", names)
  assert set(names) - {"__builtins__"} == set(dir(specdec_t5x))


def test_strict_promotion_of_ranks_and_dtypes_changes_no_output(setup):
  generate = functools.partial(specdec_t5x.generate, INPUTS, *setup, **SAMPLED)
  expected = generate()
  with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
    assert generate() == expected


def test_64_bits_change_no_output(paths, monkeypatch, tmp_path):
  generate = functools.partial(specdec_t5x.generate, INPUTS, vocabulary=paths[2])

  def sampled():
    models = map(specdec_t5x.load_model, paths[:2])
    return [(output.tokens, output.score) for output in generate(*models, **SAMPLED)]

  expected = sampled()
  target, draft = map(specdec_t5x.load_model, paths[:2])
  plain = generate(target, None, **SIZES)
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path))
  with jax.enable_x64(True):
    assert sampled() == expected
    # The draft lengths are measured here.
    assert tokens(generate(target, draft, **SIZES)) == tokens(plain)
  assert list(tmp_path.glob("seconds-*.json"))


def test_a_user_s_drafter_needs_networks_of_its_names(setup):
  target, draft, vocabulary = setup
  drafter = TreeDraft(draft.network, delayed(1, 2, 3))
  generate = functools.partial(specdec_t5x.generate, INPUTS, target, **SIZES)

  def decode(drafts):
    return generate(drafts, vocabulary, drafter=drafter, rule="traversal")

  outputs = decode({"draft": draft})
  expected = generate(None, vocabulary)
  assert tokens(outputs) == tokens(expected)
  with pytest.raises(
    ValueError, match=r"needs the networks \['draft'\], but draft has"
  ):
    decode({"other": draft})
  with pytest.raises(ValueError, match=r"Copy needs no draft model.* Set draft=None"):
    generate(draft, vocabulary, drafter="copy")


def test_settings_of_drafts_need_a_draft(setup, unchecked):
  target, _, vocabulary = setup
  for words in ({"rule": "block"}, {"gamma": 3}, {"policy": "fixed"}):
    with pytest.raises(ValueError, match="need a draft"):
      specdec_t5x.generate(INPUTS, target, None, vocabulary, **words)
  with pytest.raises(ValueError, match="Expected a T5"):
    config_from_shapes({"kernel": (2, 3)})
