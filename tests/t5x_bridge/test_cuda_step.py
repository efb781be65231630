"""Under T5X the CUDA step of a draft is built when the pair is restored."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.native.cuda import handlers
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")

DRAFT = dataclasses.replace(
  tiny.DRAFT, dtype="bfloat16", emb_dim=128, num_heads=2, head_dim=64, mlp_dim=32
)
LENGTHS = {"inputs": 5, "targets": 6}
BATCH = {
  "encoder_input_tokens": jnp.array([[5, 6, 1, 0, 0], [9, 3, 8, 4, 1]]),
  "decoder_input_tokens": jnp.zeros((2, 6), jnp.int32),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_pair_decodes_with_the_kernel(
  vocabulary, tmp_path, monkeypatch, capsys, dtype
):
  plain = tiny.plain(vocabulary)
  paths = {
    "target": tiny.save_t5x(tmp_path / "target", tiny.TARGET, seed=1),
    "draft": tiny.save_t5x(tmp_path / "draft", DRAFT, seed=2),
  }
  handlers.install(monkeypatch, tmp_path)
  model = tiny.speculative(vocabulary, draft=DRAFT, gamma=2)
  params = tiny.restored(model, paths, dtype, lengths=LENGTHS).params
  assert set(params) == {"target", "draft", "draft_step"}
  assert set(params["draft_step"]) == {"weights", "embedding", "norms", "biases"}
  assert "Draft step of 2 rows: our kernel takes 0.16 ms" in capsys.readouterr().err

  def run(params):
    return model.predict_batch_with_aux(params, BATCH)[0]

  assert "specdec_step" in str(jax.make_jaxpr(run)(params))
  expected, _ = tiny.predict(plain, {"target": params["target"]}, BATCH)
  tokens, aux = tiny.predict(model, params, BATCH)
  np.testing.assert_array_equal(tokens, expected)
  assert aux["drafted"].sum() > 0
