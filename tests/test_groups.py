"""Inputs of similar length are decoded together, and samples are unchanged."""

import functools

import jax
import numpy as np
import pytest

import specdec_t5x
from specdec_t5x import Sampling, api, groups
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.decoding.state import keys_at, row_keys
from specdec_t5x.groups import Group, grouped, rows_for
from specdec_t5x.network.functional import network_for
from specdec_t5x.vocabularies.opening import open_vocabulary
from specdec_t5x.ways import assembled
from tests import table
from tests.t5x_bridge import tiny, tiny_gpt

slow = pytest.mark.slow
TEXTS = tiny.sentences(4, seed=6)
# The lengths are far apart and unordered; a prompt may be empty.
MIXED = [TEXTS[0], " ".join(TEXTS * 5), TEXTS[1], " ".join(TEXTS[:3]), *TEXTS[2:]]
DECODERS = {
  "plain": ("gpt", {}),
  "fixed": ("t5", {"gamma": 2}),
  "copies": ("gpt", {"drafter": "copy"}),
  "several": ("t5", {"gamma": 2, "num_candidates": 2, "rule": "recursive"}),
}


@functools.cache
def models(kind):
  configs = (
    (tiny.TARGET, tiny.DRAFT) if kind == "t5" else (tiny_gpt.TARGET, tiny_gpt.DRAFT)
  )
  return [api.Model(network_for(config), table.drawn(config)) for config in configs]


def shapes_of(monkeypatch):
  """Returns a list that collects the slots and input shapes of decodes."""
  shapes = []
  compiled = api.compiled

  def watched(*settings):
    run = compiled(*settings)
    return lambda params, inputs, *args, **state: (
      shapes.append((settings[0].slots, inputs.shape))
      or run(params, inputs, *args, **state)
    )

  monkeypatch.setattr(api, "compiled", watched)
  return shapes


@pytest.mark.parametrize(
  ("lengths", "widths"),
  [
    ([], {}),
    ([0, 0], {0: 2}),
    ([3, 16, 0], {16: 3}),
    ([10] * 63 + [2260], {2304: 1, 16: 63}),
    ([2260] + [10] * 7, {2304: 8}),
    ([2260] + [10] * 8, {2304: 1, 16: 8}),
    ([300, 10, 300], {320: 3}),  # 304 tokens of padding cost less than a program.
    ([*range(1, 513)] * 16, {512: 4096, 256: 2048, 128: 1024, 64: 512, 32: 512}),
    ([40] * 1000, {64: 1000}),
    ([65], {128: 1}),
  ],
  ids=lambda x: str(x)[:20],
)
def test_groups_have_few_widths_and_little_padding(lengths, widths):
  found = grouped(lengths)
  assert {group.width: len(group.numbers) for group in found} == widths
  numbers = [number for group in found for number in group.numbers]
  assert sorted(numbers) == list(range(len(lengths)))
  assert [group.width for group in found] == sorted(widths, reverse=True)
  for group in found:
    assert list(group.numbers) == sorted(group.numbers)
    assert all(lengths[number] <= group.width for number in group.numbers)


def test_inputs_of_any_number_and_length_have_few_shapes():
  widths = {grouped([length])[0].width for length in range(1, 513)}
  assert widths == {16, 32, *range(64, 513, 64)}
  assert {rows_for(count, 16) for count in range(200)} == {1, 2, 3, 4, *range(6, 17, 2)}
  assert {rows_for(count, 6) for count in range(200)} == {1, 2, 3, 4, 6}


def test_an_incomplete_batch_repeats_its_first_input():
  found = list(Group(3, (4, 0, 1)).batches([[1], [2, 2], [], [], [3, 3, 3]], 2))
  assert [numbers for numbers, _ in found] == [[4, 0], [1]]
  assert [x.tolist() for _, x in found] == [[[3] * 3, [1, -1, -1]], [[2, 2, -1]] * 2]


@pytest.mark.parametrize(
  "name",
  ["plain", "fixed", *(pytest.param(x, marks=slow) for x in ("copies", "several"))],
)
def test_samples_equal_samples_of_single_inputs(name, vocabulary_path, monkeypatch):
  kind, words = DECODERS[name]
  target, draft = models(kind)
  draft = draft if "gamma" in words else None
  inputs = [*MIXED, ""] if kind == "gpt" else MIXED
  sampling = Sampling(1.0)
  room = 8
  seed = 5
  monkeypatch.setattr(groups, "WORTH", 1)
  shapes = shapes_of(monkeypatch)
  generate = functools.partial(
    specdec_t5x.generate,
    target=target,
    draft=draft,
    vocabulary=vocabulary_path,
    sampling=sampling,
    max_length=room,
    batch_size=3,
    seed=seed,
    **words,
  )
  found = open_vocabulary(vocabulary_path)
  decoder, params = assembled(target, draft, **words)
  alone = api.compiled(decoder, sampling, room, found.eos_id)
  for texts in (inputs, inputs[::-1], [*inputs[3:], *inputs[:3]]):
    outputs = generate(texts)
    for number, ids in enumerate(api.encoded(texts, target.network, found)):
      [(_, row)] = Group(-(-max(len(ids), 1) // 16) * 16, (0,)).batches([ids], 1)
      decoded = alone(params, row, keys_at(jax.random.key(seed), np.array([number])))
      length = int(decoded.statistics.emitted[0])
      assert outputs[number].tokens == decoded.tokens[0, :length].tolist()
  assert len({width for _, (_, width) in shapes}) > 2


@pytest.mark.parametrize("at", [0, 31, 63])
def test_a_long_input_does_not_pad_short_inputs(at, vocabulary_path, monkeypatch):
  texts = [TEXTS[0]] * 63
  texts.insert(at, " ".join(TEXTS * 60))
  shapes = shapes_of(monkeypatch)
  generate = functools.partial(
    specdec_t5x.generate, vocabulary=vocabulary_path, max_length=4, batch_size=16
  )
  outputs = generate(texts, *models("t5"), gamma=2)
  (slots, (rows, width)), (few, (many, narrow)) = shapes
  assert (slots, rows, few, many) == (0, 1, 16, 128)
  assert narrow == 16
  assert width > 1000
  alone = generate([texts[at], TEXTS[0]], models("t5")[0], None)
  others = outputs[:at] + outputs[at + 1 :]
  assert outputs[at].tokens == alone[0].tokens
  assert all(each.tokens == alone[1].tokens for each in others)


@pytest.mark.parametrize(
  "words", [{}, pytest.param({"gamma": 2}, marks=slow)], ids=["plain", "fixed"]
)
def test_calls_of_any_size_share_programs_and_keep_their_samples(
  words, vocabulary_path, monkeypatch
):
  target, draft = models("t5")
  texts = tiny.sentences(21, seed=9)
  shapes = shapes_of(monkeypatch)

  def sampled(count):
    return specdec_t5x.generate(
      texts[:count],
      target,
      draft if words else None,
      vocabulary_path,
      sampling=Sampling(1.0),
      max_length=6,
      batch_size=4,
      **words,
    )

  everything = sampled(21)
  for count in (1, 2, 3, 4, 5, 9, 17):
    assert sampled(count) == everything[:count]
  assert {shape for _, shape in shapes} == {(rows, 16) for rows in (1, 2, 3, 4, 32)}


def test_rows_without_an_input_change_no_estimate(vocabulary_path):
  """Of three inputs in four rows, the fourth neither drafts nor counts."""
  target, draft = models("t5")
  policy = CostAware((1.0, 1.01, 1.02), prior_alpha=0.9)
  decoder, params = assembled(target, draft, gamma=2, policy=policy)
  found = open_vocabulary(vocabulary_path)
  ids = api.encoded(TEXTS[:3], target.network, found)
  run = api.compiled(decoder, Sampling(1.0), 6, found.eos_id)
  decoded = []
  for rows in (3, 4):
    [(_, inputs)] = Group(16, (0, 1, 2)).batches(ids, rows)
    keys = row_keys(jax.random.key(3), rows)
    decoded.append(run(params, inputs, keys, np.arange(rows) < 3))
  few, more = decoded
  np.testing.assert_array_equal(few.tokens, more.tokens[:3])
  np.testing.assert_allclose(few.policy_state.tried, more.policy_state.tried[:3])
  assert few.statistics.drafted.sum() == more.statistics.drafted.sum() > 0
  assert not more.policy_state.tried[3]
