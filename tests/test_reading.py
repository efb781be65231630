"""The measures of scripts/reading.py are within the limits (CONTRIBUTING.md)."""

import pathlib
import tomllib

import pytest

from scripts import reading

LIMITS = tomllib.loads((reading.ROOT / "tests" / "reading.toml").read_text())


@pytest.fixture(scope="module")
def texts():
  """Returns the texts of the repository."""
  return [
    text for file in reading.files_of(reading.FOLDERS) for text in reading.texts(file)
  ]


def test_no_folder_has_more_pro_forms_than_its_limit(texts):
  limits = LIMITS["words"]
  measured = reading.densities(texts)
  assert {*limits} - {*measured} == {"folder"}
  for key, (pro, free) in measured.items():
    most_pro, most_free = limits.get(key, limits["folder"])
    assert pro <= most_pro, key
    assert free <= most_free, key


@pytest.mark.parametrize("folder", LIMITS["packed"])
def test_no_folder_packs_more_than_its_limit(folder):
  measured = reading.packed([folder])
  for name, most in LIMITS["packed"][folder].items():
    assert measured[name] <= most, name


def test_patterns_to_avoid_are_not_used_more_often(texts):
  counts = dict.fromkeys(LIMITS["patterns"], 0)
  for text in texts:
    # Messages are separate sentences, and pages have headings.
    if text.kind in ("docstring", "comment"):
      for sentence in text.sentences():
        for pattern in reading.matches(sentence):
          counts[pattern] += 1
  for pattern, most in LIMITS["patterns"].items():
    assert counts[pattern] <= most, pattern


@pytest.mark.parametrize(("pattern", "planted"), LIMITS["planted"])
def test_a_planted_sentence_is_found(pattern, planted):
  assert pattern in reading.PATTERNS
  assert pattern in reading.matches(planted)


def test_every_pattern_has_a_planted_sentence():
  assert {pattern for pattern, _ in LIMITS["planted"]} == set(reading.PATTERNS)


@pytest.mark.parametrize("page", LIMITS["pages"])
def test_cells_of_tables_written_by_hand_are_counted(page, tmp_path):
  file = tmp_path / "page.md"
  file.write_text(page["text"])
  sentences = [s for text in reading.texts(file) for s in text.sentences()]
  assert sorted(sentences) == sorted(page["counted"])


def test_packed_statements_are_found(tmp_path):
  file = tmp_path / "packed.py"
  file.write_text(LIMITS["packing"])
  counts = reading.packing(pathlib.Path(file))
  assert counts == {"splats": 1, "tuples": 1, "lambdas": 1, "parameters": 3}
