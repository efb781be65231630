"""The command that plans and measures hierarchies."""

import numpy as np
import pytest

from tests.lab.conftest import ran

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("counted_clock")
def test_every_plan_gives_the_plain_outputs(pair, tmp_path, capsys):
  flags = "--draft=copy --max-length=24 --num-inputs=3 --gamma=2 --levels=2"
  found = ran("hierarchy", tmp_path, *pair, *flags.split())
  assert [row["levels"] for row in found["rows"]] == [0, 1, 2]
  assert found["rows"][2]["plan"].startswith("copy")
  assert {row["identical"] for row in found["rows"]} == {"3/3"}
  for row in found["rows"]:
    assert row["ms_predicted"] > 0
    assert row["speed"] == pytest.approx(found["rows"][0]["ms"] / row["ms"])
    assert row["tokens_per_call"]["value"] >= 1
  stand = np.array(list(found["survival"].values()))
  assert ((stand >= 0) & (stand <= 1)).all()
  assert (np.diff(stand, axis=1) <= 0).all()
  assert "ms a token predicted" in capsys.readouterr().out
