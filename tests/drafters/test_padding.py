"""Networks with different numbers of padding rows draft for the target."""

import dataclasses
import re

import pytest

import specdec_t5x
from specdec_t5x.build import Model
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from tests import networks
from tests.t5x_bridge import tiny

IDS = [[5, 9, 7, 1], [8, 1], [6, 6, 4, 1], [12, 3, 1]]
LENGTH = 10
ROWS = 64


def model(config, vocab_size, seed=3):
  """Returns a model that seldom ends an output."""
  network = network_for(dataclasses.replace(config, vocab_size=vocab_size))
  params = networks.drawn(network.config, seed)
  return Model(network, params, generation=Generation((ROWS - 1,)))


def heads(vocab_size):
  config = HeadsConfig("medusa", 3, tiny.TARGET.emb_dim, vocab_size=vocab_size)
  return Model(network_for(config), networks.sharp(network_for(config)))


# Maps the kind of draft to a function of the draft's rows.
DRAFTS = {
  "draft model": lambda rows: {"draft": model(tiny.DRAFT, rows)},
  "itself": lambda rows: {"draft": model(tiny.TARGET, rows)},
  "a tree": lambda rows: {"draft": model(tiny.DRAFT, rows), "num_candidates": 2},
  "heads": lambda rows: {"draft": heads(rows)},
}


@pytest.mark.parametrize(
  ("how", "rows"),
  [
    ("draft model", ROWS - 3),
    *(
      pytest.param(how, ROWS + added, marks=pytest.mark.slow)
      for how, added in zip(DRAFTS, (4, -3, 4, -3), strict=True)
    ),
  ],
)
def test_outputs_equal_plain_decoding(how, rows):
  target = model(tiny.TARGET, ROWS)
  words = DRAFTS[how](rows)
  gamma = {"policy": "fixed"} if how == "heads" else {"gamma": 3}
  for sampling in (GREEDY, Sampling(1.0, coupled=True)):
    if words.get("num_candidates") and not sampling.greedy:
      continue
    rule = "recursive" if "num_candidates" in words else "token"
    rule = rule if sampling.greedy else "coupled"
    known = {"sampling": sampling, "max_length": LENGTH}
    plain = specdec_t5x.generate(IDS, target, None, **known)
    found = specdec_t5x.generate(IDS, target, rule=rule, **known, **gamma, **words)
    assert [x.tokens for x in found] == [x.tokens for x in plain]
    assert any(x.drafted for x in found)


@pytest.mark.parametrize(("rows", "most"), [(ROWS - 5, 4), (2 * ROWS, 8)])
def test_a_draft_of_another_vocabulary_is_refused(rows, most):
  target = model(tiny.TARGET, ROWS)
  draft = model(tiny.DRAFT, rows)
  message = (
    f"Target and draft must share a vocabulary, but the target's vocab_size is {ROWS} "
    f"and the draft's is {rows}. Use a draft with the target's vocabulary; padding "
    f"rows may differ by up to {most}."
  )
  with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
    specdec_t5x.generate(IDS, target, draft, max_length=LENGTH)
