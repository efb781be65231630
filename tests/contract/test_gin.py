"""The runtime's reading of gin: homes in paths, and messages with the fix first."""

import gin
import pytest

from tests.contract.conftest import IS_RUNTIME

if not IS_RUNTIME:
  pytest.skip("upstream T5X reports errors in its own way", allow_module_level=True)

from t5x import gin_utils


@pytest.fixture(autouse=True)
def _no_configuration():
  gin.clear_config()
  yield
  gin.clear_config()


@pytest.mark.parametrize(
  ("value", "expected"),
  [
    ("'~/out'", "{home}/out"),
    ("{'test': ('~/a.en', None)}", {"test": ("{home}/a.en", None)}),
    ("['~/a', '/b']", ["{home}/a", "/b"]),
    ("'a ~/b'", "a ~/b"),
    ("'~'", "~"),
    ("3", 3),
  ],
)
def test_a_text_may_begin_with_the_home(monkeypatch, value, expected):
  monkeypatch.setenv("HOME", "/home/of me")

  def filled(x):
    if isinstance(x, dict):
      return {key: filled(each) for key, each in x.items()}
    if isinstance(x, list | tuple):
      return type(x)(map(filled, x))
    return x.replace("{home}", "/home/of me") if isinstance(x, str) else x

  gin.parse_config("X = 1")
  gin_utils.parse_gin_flags([], [], [f"X = {value}"])
  assert gin_utils.macros() == {"X": filled(expected)}


def test_gin_files_and_folders_may_begin_with_the_home(monkeypatch, tmp_path):
  monkeypatch.setenv("HOME", str(tmp_path))
  (tmp_path / "a.gin").write_text("A = 1\n")
  (tmp_path / "folder").mkdir()
  (tmp_path / "folder" / "b.gin").write_text("B = 2\n")
  gin_utils.parse_gin_flags(["~/folder"], ["~/a.gin", "b.gin"], [])
  assert gin_utils.macros() == {"A": 1, "B": 2}
