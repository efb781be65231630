"""Golden phrases and sentences, the German checked by hand: golden.json.

It has a sentence in both languages, its clauses, and the start of the English pattern
that it is of, where that is not a clause alone. Fields are those of `corpora.tree`; a
phrase in words is one of "phrases", or the gap of the clause around it.
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


def phrase(said, outer=None):
  """Returns a phrase; `outer` is what the clause that it stands in is about."""
  if said == "gap":
    return Phrase(pronoun_of=outer)
  if isinstance(said, str):
    return named(said)
  made = Phrase()
  for name, value in said.items():
    setattr(made, name, part(name, value, made))
  return made


def clause(said, outer=None):
  verb = next(v for v in words.VERBS if v.prefix + v.infinitive == said["verb"])
  name, is_be = said.get("tense", "past"), "be" in verb.marks
  tense = next(t for t in TENSES if t.name == name and ("be" in t.needs) == is_be)
  made = Clause(verb, None, tense)
  for name in said.keys() - {"verb", "tense"}:
    value = part(name, said[name], outer)
    if name == "prepositional":
      value = prepositional(verb, value)
    setattr(made, name, value)
  return made


def part(name, said, outer):
  """Returns what a field of a phrase or a clause holds."""
  if name == "noun":
    return words.BY_ENGLISH[said]
  if name == "adjectives":
    return tuple(ADJECTIVES[word] for word in said.split())
  if name == "relative":
    return clause(said, outer)
  if name in PHRASES:
    return phrase(said, outer)
  if name == "predicate" and isinstance(said, str):
    return Adjunct(ADJECTIVES[said].en, ADJECTIVES[said].de)
  if isinstance(said, list):
    return Adjunct(*(phrase(x) if isinstance(x, dict) else x for x in said))
  return said


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


@pytest.mark.parametrize("said", GOLDEN["declined"])
def test_declension_in_four_cases(said):
  determiner, noun, *plural = said.split()
  made = Phrase(words.BY_ENGLISH[noun], determiner=determiner, plural=bool(plural))
  made.adjectives, made.owner = (ADJECTIVES["old"],), Phrase(person="1")
  found = [german.noun_phrase(made, case) for case in "NADG"]
  assert found == GOLDEN["declined"][said]
