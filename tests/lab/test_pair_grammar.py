"""Declension, agreement, tables and splits of the pair's synthetic sentences."""

import hashlib
import random
import re

import pytest

from lab.pair.grammar import german, splits, translation, words
from lab.pair.grammar.tree import Adjunct, Phrase

# Checked by hand: nominative, accusative, dative, genitive.
DECLINED = {
  "the man": "der alte Mann, den alten Mann, dem alten Mann, des alten Mannes",
  "a student": (
    "ein alter Student, einen alten Studenten, einem alten Studenten, "
    "eines alten Studenten"
  ),
  "my woman": "meine alte Frau, meine alte Frau, meiner alten Frau, meiner alten Frau",
  "this book": (
    "dieses alte Buch, dieses alte Buch, diesem alten Buch, dieses alten Buches"
  ),
  "no book": "kein altes Buch, kein altes Buch, keinem alten Buch, keines alten Buches",
  "the child s": (
    "die alten Kinder, die alten Kinder, den alten Kindern, der alten Kinder"
  ),
  "bare car s": "alte Autos, alte Autos, alten Autos, alter Autos",
  "some man s": (
    "einige alte Männer, einige alte Männer, einigen alten Männern, "
    "einiger alter Männer"
  ),
  "all woman s": (
    "alle alten Frauen, alle alten Frauen, allen alten Frauen, aller alten Frauen"
  ),
}


@pytest.mark.parametrize("description", DECLINED)
def test_declension_in_four_cases(description):
  determiner, noun, *plural = description.split()
  made = Phrase(words.BY_ENGLISH[noun], determiner=determiner, plural=bool(plural))
  adjectives = (row for group in words.ADJECTIVES.values() for row in group)
  made.adjectives = (next(row for row in adjectives if row.en == "old"),)
  made.owner = Phrase(person="1")
  forms = [german.noun_phrase(made, case) for case in "NADG"]
  assert ", ".join(forms) == DECLINED[description]


def test_prepositions_contract_with_the_definite_article_only():
  garden = Phrase(words.BY_ENGLISH["garden"])
  assert german.adjunct(Adjunct("in", "in", garden, "D")) == "im Garten"
  garden.determiner = "a"
  assert german.adjunct(Adjunct("in", "in", garden, "D")) == "in einem Garten"


def test_names_in_tables_exist():
  """A class, kind or mark without rows would never be drawn, or would fail late."""
  classes = set(words.NOUNS) | {"owner"}
  kinds = set(words.ADVERBIALS)
  for verb in words.VERBS:
    objects = verb.accusative | verb.dative | verb.prepositional
    assert verb.subject | objects <= classes, verb
    assert verb.manners <= kinds, verb
    assert not verb.goal or verb.goal in kinds, verb
    assert bool(verb.en_preposition or verb.de_preposition) == bool(verb.prepositional)
  for determiner in words.DETERMINERS.values():
    assert determiner.needs <= classes
  for row in (row for rows in words.ADVERBIALS.values() for row in rows):
    slots = re.findall(r"{(\w+)}", row.en)
    assert slots == re.findall(r"{(\w+)}", row.de), row
    assert set(slots) <= set(words.SLOTS)
    assert not row.noun or row.noun in words.BY_ENGLISH
  marks = {"person", "again", "first", "no_time", "relative", "asked", "who", "what"}
  for pattern in words.PATTERNS:
    for name in "abc":
      time, *wanted = getattr(pattern, name).split() or ["past"]
      assert time in words.TENSES
      assert set(wanted) <= marks | set(words.MARKED), pattern
      has = bool(getattr(pattern, name))
      for text in (pattern.en, pattern.de):
        assert bool(re.search(rf"{{{name}\b", text)) == has, pattern


def test_numbers_and_dates():
  slots = {(row.slot, row.en): row.de for rows in words.SLOTS.values() for row in rows}
  assert slots["number", "seventy-seven"] == "siebenundsiebzig"
  assert slots["ordinal", "third"] == "dritten"
  assert slots["half", "twelve"] == "eins"  # German counts to the next hour.
  assert slots["hour", "one"] == "ein"
  swapped = str.maketrans(",.", ".,")
  for row in words.SLOTS["price"]:
    assert row.en.removesuffix(" euros").translate(swapped) + " Euro" == row.de


@pytest.fixture(scope="module")
def rows():
  return translation.rows("train", 4_000)


# SHA-256 of the sentences that the pair in the package was trained with.
DIGESTS = {
  "train": "97bba5ac2848a495c5759111bea4ab55af4b7ce0162df096e51683eb13056e18",
  "validation": "32334c33e8e331a93bb05f81a67c6a854bc5435d9a39fe07b52486e4a0bb9af4",
}


@pytest.mark.parametrize("split", DIGESTS)
def test_the_sentences_are_the_pair_s(split, rows):
  found = rows if split == "train" else translation.rows(split, 500)
  text = "\n".join("\t".join(row) for row in found)
  assert hashlib.sha256(text.encode()).hexdigest() == DIGESTS[split]


def test_the_corpus_is_a_function_of_the_seed(rows):
  again = splits.generate(translation.pair, "train", 300, seed=0)
  assert list(rows[:300]) == again
  assert splits.generate(translation.pair, "train", 300, seed=1) != again


def test_splits_are_disjoint_for_any_seed(rows):
  held_out = {en for seed in (0, 1) for en, _ in translation.rows("test", 100, seed)}
  validation = {en for en, _ in translation.rows("validation", 100)}
  assert not held_out & {en for en, _ in rows}
  assert not validation & (held_out | {en for en, _ in rows})
  assert len({en for en, _ in rows}) == len(rows)


def test_german_is_a_function_of_english():
  rng = random.Random(5)
  seen = {}
  for _ in range(8_000):
    en, de = translation.pair(rng)
    assert seen.setdefault(en, de) == de


def test_sentences_are_well_formed(rows):
  for text in (text for row in rows for text in row):
    assert re.fullmatch(r"[A-ZÄÖÜ0-9].*[.?]", text), text
    assert not re.search(r"  |,,| [,.?]|,[.?]|None|_|[{}]|\ba [aeiou]", text), text


def test_german_verbs_close_their_clauses(rows):
  """Clauses after weil, nachdem, obwohl and während end in a known verb form."""
  last = set()
  for tense in (row for rows in words.TENSES.values() for row in rows):
    for verb in words.VERBS:
      finite = tense.finite.format(v=verb).split("/")
      last |= {f"{prefix}{form}" for form in finite for prefix in ("", verb.prefix)}
  checked = 0
  for _, de in rows:
    clause = re.search(r"\b(?:weil|nachdem|obwohl|während) ([^,]*)[,.?]", de)
    if clause:
      checked += 1
      # A relative clause inside would cut the clause before the verb.
      is_complete = "," not in de[clause.start() :]
      assert not is_complete or clause[1].split()[-1] in last, de
  assert checked > 500


def test_sentences_have_the_intended_lengths(rows):
  lengths = [len(en.split()) for en, _ in rows]
  assert 14 < sum(lengths) / len(lengths) < 20
  assert max(lengths) < 70


def test_too_many_examples_are_an_error():
  split = splits.split_of("a")
  with pytest.raises(ValueError, match="Found only 1 distinct"):
    splits.generate(lambda rng: ("a", "b"), split, 2, seed=0)
