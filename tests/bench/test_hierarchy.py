"""The planner on a tiny pair: measures, plans, decodes with each plan."""

import json

import numpy as np
import pytest

from specdec_t5x.bench import hierarchy

SHORT = ("--max-length=96", "--num-inputs=3", "--gamma=3", "--levels=2")


@pytest.mark.usefixtures("processor_clock")
def test_every_plan_decodes_and_gives_the_same(files, tmp_path, capsys):
  flags = [f"--{name}={value}" for name, value in files.items() if name != "draft"]
  flags += ["--drafts", files["draft"], "copy", f"--output={tmp_path}"]
  assert hierarchy.COMMAND.main([*flags, *SHORT]) == 0
  found = json.loads((tmp_path / "hierarchy.json").read_text())
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


def test_a_draft_is_needed(files, tmp_path, capsys):
  flags = [f"--{name}={value}" for name, value in files.items() if name != "draft"]
  assert hierarchy.COMMAND.main([*flags, *SHORT, f"--output={tmp_path}"]) == 1
  assert "draft" in capsys.readouterr().err
