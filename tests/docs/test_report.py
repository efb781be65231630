"""Tables on pages are rendered from the record JSON."""

import json
import re
import shutil

import pytest

from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.table import tables
from tests.real_data import ROOT


@pytest.fixture
def copy(tmp_path):
  """Returns a copy of the repository's pages and of the record JSON."""
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
