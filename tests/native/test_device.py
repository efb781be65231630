"""The checks of `make test-gpu` at tiny sizes on a CPU: right and planted results."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.sizes import t5_1_1
from specdec_t5x.native.cuda import few
from specdec_t5x.network.transformer import Transformer
from tests.native import device as checks

pytestmark = pytest.mark.slow

CHECK = checks.Check("lines", checks.PASSED, "0 of 2 lines differ")


@pytest.mark.parametrize("how", [("float32", None), ("bfloat16", True)], ids=str)
def test_greedy_lines_agree(how):
  passed, found = checks.agreement("tiny", *how)
  assert passed
  assert found.startswith("GAMMA=5 0 of 64 differ, ")
  assert "auto 0 of 64 differ, " in found
  # Some drafts are accepted and some drafts are rejected.
  assert 1.2 < float(found.split("differ, ")[1].split()[0]) < 5.8


def test_samples_have_the_targets_distribution():
  assert checks.sampled()[0]
  passed, found = checks.sampled("typical")  # A lossy rule.
  assert not passed
  assert found.startswith("p = ")


@pytest.mark.parametrize(
  ("verdict", "status"), [(checks.PASSED, 0), (checks.LEFT_OUT, 0), (checks.FAILED, 1)]
)
def test_a_failed_check_sets_the_exit_status(monkeypatch, capsys, verdict, status):
  found = [CHECK, checks.Check("kernels", verdict, "so: it is")]
  monkeypatch.setattr(checks, "checks", lambda size: iter(found))
  assert checks.main([]) == status
  lines = capsys.readouterr().out.splitlines()
  assert lines == [
    "passed: lines: 0 of 2 lines differ",
    f"{verdict}: kernels: so: it is",
  ]


class StepByXla:
  """Stands in for `DraftStep`: XLA's network with a planted fault."""

  fault = None

  def __init__(self, layout):
    config = t5_1_1("small", "bfloat16")
    layers = {"num_encoder_layers": 1, "num_decoder_layers": layout.layers}
    self.network = Transformer(checks.dataclasses.replace(config, **layers))

  def problem(self, rows):
    return None

  def prepared(self, params):
    return params

  def scratch(self, rows):
    return jnp.zeros(1, jnp.uint32)

  def __call__(
    self, params, tokens, cache, scratch, steps=1, noise=None, temperature=1.0
  ):
    logits = []
    chosen = []
    for i in range(steps):
      found, _, cache = self.network.apply(
        {"params": params}, cache, tokens[:, None], method="extend"
      )
      found = found[:, 0]
      if self.fault == "logits":
        found = found.at[:, ::2].mul(1.1)
      if self.fault == "second step" and i == 1:
        found += 0.5
      perturbed = found
      if noise is not None and self.fault != "noise":
        perturbed = found / temperature + noise[i]
      tokens = perturbed.argmax(-1).astype(jnp.int32)
      logits.append(found)
      chosen.append(tokens + (self.fault == "argmax"))
    return jnp.stack(chosen), jnp.stack(logits), None, cache, scratch


@pytest.mark.parametrize("fault", [None, "logits", "argmax", "noise", "second step"])
def test_a_faulty_draft_step_fails(monkeypatch, fault):
  monkeypatch.setattr(checks, "DraftStep", StepByXla)
  monkeypatch.setattr(StepByXla, "fault", fault)
  passed, found = checks.draft_step("small")
  assert passed == (fault is None), found


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("fault", [None, "scale", "row"])
def test_faulty_products_of_few_rows_fail(monkeypatch, bits, fault):
  def multiply(x, weights):
    codes = weights["codes"]
    if bits == 4:
      low, high = ((codes >> shift & 15).astype(jnp.int8) for shift in (0, 4))
      halves = jnp.stack([low, high], -1).reshape(len(codes), -1)
      codes = jnp.where(halves > 7, halves - 16, halves)
    # Rows are multiplied one by one, so a row's sum doesn't depend on the batch.
    wide = codes.astype(jnp.float32)
    sums = jax.lax.map(lambda row: row.astype(jnp.float32) @ wide, x)
    sums *= 1.02 if fault == "scale" else weights["scales"].astype(jnp.float32)
    if fault == "row" and len(x) > 1:
      sums *= 1.004
    return (sums.astype(jnp.bfloat16),)

  monkeypatch.setattr(few, "multiply", multiply)
  passed, found = checks.few_rows(256, 64, bits)
  assert passed == (fault is None), found
