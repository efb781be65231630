import pytest

from specdec_t5x.native import library


@pytest.fixture(params=["native", "xla"])
def either_probs(request, monkeypatch):
  """Distributions by our kernel, where there is one, and by XLA."""
  if request.param == "xla":
    monkeypatch.setattr(library, "problem", lambda: "not wanted")
  elif reason := library.problem():
    pytest.skip(f"no kernels: {reason}")
