"""Settings out of range are refused by name; learning rates."""

import numpy as np
import pytest

from specdec_t5x.contrib.online.learner import Online
from specdec_t5x.contrib.online.rejections import KeepRejections
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.training.batches import TaskData
from specdec_t5x.training.heads import HeadDistillation
from specdec_t5x.training.ngrams import estimate
from specdec_t5x.training.objectives import Supervised, check_comparable
from specdec_t5x.training.optimizers import Optimizer, Schedule
from specdec_t5x.training.trainer import Loop
from tests.t5x_bridge import tiny

SMALL, LARGE = (Transformer(T5Config(vocab_size=size)) for size in (64, 128))
LENGTHS = {"inputs": 8, "targets": 8}


def keeping(kept):
  KeepRejections(kept).check(Transformer(tiny.TARGET), num_decodes=1)


@pytest.mark.parametrize(
  ("make", "arguments", "message"),
  [
    (TaskData, ("task", LENGTHS, 0), "BATCH_SIZE must be at least 1, got 0"),
    (TaskData, ("task", {"inputs": 8}, 2), "TASK_FEATURE_LENGTHS"),
    (TaskData, ("task", LENGTHS, 2, -1), "SEED"),
    (Loop, (0,), "STEPS must be a whole number of at least 1, got 0"),
    (Loop, (1, -1), "LOG_PERIOD.*never"),
    (Schedule, ("linear",), "Unknown SCHEDULE 'linear'"),
    (Schedule, ("constant", 0.0), "LEARNING_RATE"),
    (Schedule, ("constant", 0.1, -1), "WARMUP_STEPS"),
    (Schedule, ("cosine", 0.1, 1000, 1000), "STEPS above WARMUP_STEPS"),
    (Optimizer, (Schedule(), "sgd"), "Unknown OPTIMIZER 'sgd'"),
    (Supervised, (-1.0,), "Z_LOSS"),
    (
      check_comparable,
      (LARGE, SMALL),
      "vocab_size is 128, and the student's is 64",
    ),
    (HeadDistillation, (SMALL, 0.0), "HEAD_DECAY must be above 0"),
    (estimate, ([[2]], 7, 0), "ORDER must be a whole number of at least 1, got 0"),
    (estimate, ([[2, 5]], 5), "VOCAB_SIZE is 5, but the targets have a token 5"),
    (estimate, ([], 7), "got empty sequences"),
    (Online, (0,), "interval must be a whole number of at least 1, got 0"),
    (Online, (2, 3, "kl"), "Unknown distillation loss 'kl'"),
    (keeping, (1.5,), "kept must be a whole number from 1 to 63"),
    (keeping, (64,), "kept must be a whole number from 1 to 63"),
  ],
)
def test_settings_out_of_range_are_refused(make, arguments, message):
  with pytest.raises(ValueError, match=message):
    make(*arguments)


# ---- Learning rates. ----


@pytest.mark.parametrize(
  ("schedule", "expected"),
  [
    # Linear warmup, then an inverse square root.
    (
      Schedule("inverse_sqrt", peak=0.1, warmup_steps=4),
      {1: 0.025, 2: 0.05, 3: 0.075, 4: 0.1, 16: 0.05, 400: 0.01},
    ),
    # The cosine ends at 0.
    (
      Schedule("cosine", 2.0, warmup_steps=10, decay_steps=110),
      {5: 1.0, 10: 2.0, 60: 1.0, 110: 0.0, 500: 0.0},
    ),
    (Schedule("constant", peak=0.5, warmup_steps=0), {1: 0.5, 2: 0.5, 1000: 0.5}),
  ],
)
def test_rates_by_hand(schedule, expected):
  rates = [schedule(step - 1) for step in expected]  # Step t, counted from 1.
  np.testing.assert_allclose(rates, list(expected.values()), 1e-6)


def test_only_cosine_depends_on_the_last_step():
  assert Schedule(decay_steps=100) == Schedule(decay_steps=200)
  assert Schedule("cosine", decay_steps=1100) != Schedule("cosine", decay_steps=1200)
