"""Descriptions of TPU slices without a TPU."""

import pytest

from lab.model.topologies import described


def test_a_missing_tpu_compiler_is_named():
  try:
    import libtpu  # noqa: F401
  except ImportError:
    with pytest.raises(ValueError, match="pip install libtpu"):
      described("v4:1x1x1")
  else:
    assert described("v4:1x1x1")[0].device_kind == "TPU v4"


@pytest.mark.parametrize("topology", ["v9:1x1", "v4", "v4:", "", "1x1x1"])
def test_an_unknown_slice_is_refused(topology):
  with pytest.raises(ValueError, match=r"such as v4:1x1x1 .* got '") as found:
    described(topology)
  assert repr(topology) in str(found.value)
