"""Golden phrases and sentences, with German checked by hand: golden.json.

An entry has a sentence in both languages, the clauses, and the start of the English
pattern unless the sentence is a single clause. Fields are fields of `corpora.tree`. A
phrase in words is a name in "phrases", or the gap of the surrounding clause.
"""

import functools
import json
import pathlib

import pytest

from specdec_t5x.demo.corpora import english, german, words
from specdec_t5x.demo.corpora.clauses import prepositional
from specdec_t5x.demo.corpora.tree import Adjunct, Clause, Phrase

GOLDEN = json.loads(pathlib.Path(__file__).with_name("golden.json").read_text("utf-8"))
ADJECTIVES = {row.en: row for group in words.ADJECTIVES.values() for row in group}
TENSES = [row for group in words.TENSES.values() for row in group]
OBJECTS = {"accusative", "dative", "prepositional"}
PHRASES = OBJECTS | {"pronoun_of", "owner", "of", "subject"}


@functools.cache
def named(name):
  return phrase(GOLDEN["phrases"][name])


def phrase(description, outer=None):
  """Returns a phrase; `outer` is the phrase that the surrounding clause describes."""
  if description == "gap":
    return Phrase(pronoun_of=outer)
  if isinstance(description, str):
    return named(description)
  made = Phrase()
  for name, value in description.items():
    setattr(made, name, part(name, value, made))
  return made


def clause(description, outer=None):
  verb = next(v for v in words.VERBS if v.prefix + v.infinitive == description["verb"])
  name = description.get("tense", "past")
  is_be = "be" in verb.marks
  tense = next(t for t in TENSES if t.name == name and ("be" in t.needs) == is_be)
  made = Clause(verb, None, tense)
  for name in description.keys() - {"verb", "tense"}:
    value = part(name, description[name], outer)
    if name == "prepositional":
      value = prepositional(verb, value)
    setattr(made, name, value)
  return made


def part(name, description, outer):
  """Returns the value of a field of a phrase or a clause."""
  if name == "noun":
    return words.BY_ENGLISH[description]
  if name == "adjectives":
    return tuple(ADJECTIVES[word] for word in description.split())
  if name == "relative":
    return clause(description, outer)
  if name in PHRASES:
    return phrase(description, outer)
  if name == "predicate" and isinstance(description, str):
    return Adjunct(ADJECTIVES[description].en, ADJECTIVES[description].de)
  if isinstance(description, list):
    return Adjunct(*(phrase(x) if isinstance(x, dict) else x for x in description))
  return description


@pytest.mark.parametrize("golden", GOLDEN["sentences"], ids=lambda x: x["en"])
def test_golden_sentences(golden):
  forms = "{a}.", "{a:second}."
  if "pattern" in golden:
    start = golden["pattern"]
    pattern = next(row for row in words.PATTERNS if row.en.startswith(start))
    forms = pattern.en, pattern.de
  clauses = dict(zip("abc", map(clause, golden["clauses"]), strict=False))
  assert english.sentence(forms[0], clauses) == golden["en"]
  assert german.sentence(forms[1], clauses) == golden["de"]


@pytest.mark.parametrize("description", GOLDEN["declined"])
def test_declension_in_four_cases(description):
  determiner, noun, *plural = description.split()
  made = Phrase(words.BY_ENGLISH[noun], determiner=determiner, plural=bool(plural))
  made.adjectives = (ADJECTIVES["old"],)
  made.owner = Phrase(person="1")
  forms = [german.noun_phrase(made, case) for case in "NADG"]
  assert forms == GOLDEN["declined"][description]
