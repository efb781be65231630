"""Tables on pages are rendered from the kept JSON, which `make results` measures."""

import json
import os
import re
import shutil

import pytest

from benchmarks import report
from benchmarks.__main__ import COMMANDS, main
from benchmarks.table import tables
from lab.__main__ import COMMANDS as LAB
from tests.real_data import ROOT

PLAN = {
  "machine": "machine --megabytes 1 --runs 2 --rows 4",
  "pair": "rules --target nowhere",
  "theory": "table1",
}


@pytest.fixture
def copy(tmp_path):
  shutil.copytree(ROOT / "docs/results", tmp_path / "docs/results")
  shutil.copytree(ROOT / "docs/methods", tmp_path / "docs/methods")
  shutil.copy(ROOT / "README.md", tmp_path)
  return tmp_path


def test_every_page_matches_the_kept_tables():
  assert not [str(path) for path, _ in report.differing(ROOT)]


def test_a_changed_number_is_reported_until_the_page_is_rendered(copy, capsys):
  path = copy / report.DATA / "table1.json"
  record = json.loads(path.read_text())
  record["rows"][0]["paper_speed"] = 7.77
  path.write_text(json.dumps(record))
  assert report.main(["--check"], copy) == 1
  page = copy / "docs/results/paper.md"
  assert capsys.readouterr().out == f"{page}: differs from the kept tables\n"
  assert "7.77" not in page.read_text()
  assert report.main([], copy) == 0
  assert "| 7.77 " in page.read_text()
  assert report.main(["--check"], copy) == 0


def test_a_missing_table_is_named(copy, capsys):
  (copy / "README.md").write_text("<!-- table speeds -->\n<!-- end -->\n")
  assert report.main(["--check"], copy) == 1
  assert "speeds.json does not exist" in capsys.readouterr().err


def test_a_table_without_an_end_is_refused(copy, capsys):
  page = copy / "docs/results/paper.md"
  page.write_text(page.read_text().replace("<!-- end -->", ""))
  assert report.main(["--check"], copy) == 1
  assert re.search(r"begins \d tables and ends 0", capsys.readouterr().err)


def test_a_page_may_show_some_columns_of_some_rows(copy, monkeypatch):
  pages = tables("benchmarks")["pages"]

  def shown_by(**query):
    monkeypatch.setitem(pages, "fast", {"kept": "table1", **query})
    return report.rendered("<!-- table fast -->\n<!-- end -->\n", copy)

  where = {"gamma": ["5"], "alpha": ["0.7", "0.8"]}
  shown = shown_by(columns=["speed", "gamma"], where=where)
  assert [line for line in shown.splitlines() if line.startswith("|")] == [
    "| ours   | gamma |",
    "| ------ | ----- |",
    "| 3.6893 | 5     |",
  ]
  with pytest.raises(ValueError, match=r"columns \['c'\], expected"):
    shown_by(columns=["c"])
  with pytest.raises(ValueError, match="no row"):
    shown_by(where={"gamma": ["4"]})
  # A marker has a name, and no query.
  with pytest.raises(ValueError, match=r"queries in benchmarks/tables\.toml"):
    report.rendered("<!-- table table1 speed -->\n<!-- end -->\n", copy)


def test_a_command_keeps_the_measured_table(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert main(["table1", "--output=out", "--keep=theory"]) == 0
  record = json.loads((tmp_path / report.DATA / "theory.json").read_text())
  assert record["command"].startswith("python -m benchmarks table1 --output=out")
  assert {"code", "device", "date"} <= record["environment"].keys()
  (tmp_path / "README.md").write_text("<!-- table theory -->\n<!-- end -->\n")
  assert main(["report"]) == 0
  page = (tmp_path / "README.md").read_text()
  table = (tmp_path / "out" / "table1.md").read_text().split("\n\n")[1]
  assert table in page
  assert record["environment"]["date"] in page


# ---- `make results`, which continues a stopped run ----


def test_every_planned_measurement_is_a_known_command_and_may_lack_its_folder():
  commands = report.commands({"m30k": "DIR"})
  assert next(iter(commands)) == "machine"
  known_commands = {("benchmarks", name) for name in COMMANDS}
  known_commands |= {("lab", name) for name in LAB}
  for command in commands.values():
    assert tuple(command[:2]) in known_commands, command
  assert "DIR/target" in commands["m30k_methods"]
  incomplete = report.commands({})
  assert incomplete["m30k_methods"] is None
  assert incomplete["demo_methods"] == ["lab", "methods"]


@pytest.mark.slow
def test_failures_are_named_and_kept_tables_are_not_measured_again(
  tmp_path, capsys, monkeypatch
):
  # `python -m benchmarks` runs in the empty folder instead of a clone.
  monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
  (tmp_path / "README.md").write_text("<!-- table theory -->\n<!-- end -->\n")
  assert report.measure([], tmp_path, PLAN) == 1
  printed = capsys.readouterr().out
  assert "Failed: pair. Run the command again to measure the failed tables." in printed
  assert "theory: measuring" in printed
  log = (tmp_path / "runs/results/pair.log").read_text()
  assert "--vocabulary: expected a file" in log
  assert "| same digits |" in (tmp_path / "README.md").read_text()
  assert report.measure(["--only", "theory"], tmp_path, PLAN) == 0
  assert "theory: kept\n" in capsys.readouterr().out
  # Tables from different code or a different machine are measured again.
  path = tmp_path / report.DATA / "theory.json"
  record = json.loads(path.read_text())
  assert report.is_kept(tmp_path, "theory", ["benchmarks", "table1"])
  record["environment"]["code"] = "another"
  path.write_text(json.dumps(record))
  assert not report.is_kept(tmp_path, "theory", ["benchmarks", "table1"])


def test_an_unknown_table_and_a_folder_without_a_name_are_refused(tmp_path, capsys):
  assert report.measure(["--only", "table9"], tmp_path, PLAN) == 1
  assert "expected names among ['machine', 'pair', 'theory']" in capsys.readouterr().out
  with pytest.raises(SystemExit, match="2"):
    report.measure(["--data", "m30k"])
  assert "expected WORD=DIR, got 'm30k'" in capsys.readouterr().err
