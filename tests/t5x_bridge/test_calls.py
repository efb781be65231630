"""How many inputs T5X hands over together, and which of them are decoded."""

import jax
import jax.numpy as jnp
import t5x

from specdec_t5x.t5x_bridge.examples import is_first
from specdec_t5x.t5x_bridge.layout import inputs_a_call


def test_inputs_are_read_ahead_where_rows_take_them(monkeypatch, capsys):
  assert inputs_a_call(16, 8, slots=16) == 128
  assert inputs_a_call(16, 1, slots=16) == 16
  assert inputs_a_call(16, 8, slots=0) == 16
  monkeypatch.setattr(jax, "device_count", lambda: 2)
  monkeypatch.setattr(t5x, "PROVIDER", "specdec-t5x-runtime", raising=False)
  assert inputs_a_call(16, 8, slots=16) == 128
  monkeypatch.delattr(t5x, "PROVIDER")
  assert inputs_a_call(16, 8, slots=16) == 16
  assert "READ_AHEAD=1" in capsys.readouterr().err


def test_copies_that_fill_a_batch_are_not_wanted():
  examples = jnp.array([[7, 3], [7, 4], [8, 4], [7, 3], [7, 3]])
  assert is_first(examples).tolist() == [True, True, True, False, False]
