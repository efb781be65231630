"""Real data and checkpoints for tests, if present.

The data are not in the repository. Set SPECDEC_TEST_DATA to the folder of the data, or
use ../shared/data. Tests that miss data are skipped with a message.
"""

import os
import pathlib

import pytest

from specdec_t5x.network.config import T5Config

ROOT = pathlib.Path(__file__).parents[1]
DATA = pathlib.Path(
  os.environ.get("SPECDEC_TEST_DATA", ROOT.parent / "shared" / "data")
)

M30K_TARGET = T5Config(
  vocab_size=8064,
  emb_dim=320,
  num_heads=5,
  num_encoder_layers=3,
  num_decoder_layers=6,
  head_dim=64,
  mlp_dim=832,
  mlp_activations=("gelu", "linear"),
)


def path(*parts: str) -> pathlib.Path:
  """Returns a path below the data's folder, or skips the test."""
  data_path = DATA.joinpath(*parts)
  if not data_path.exists():
    pytest.skip(
      f"{data_path} is not there (set SPECDEC_TEST_DATA)", allow_module_level=True
    )
  return data_path
