"""Short ways to build trees for the golden sentences."""

from specdec_t5x.demo.corpora import lexicon, verbs
from specdec_t5x.demo.corpora.tree import Clause, Link, Pair, Phrase

ANNA = Phrase(name=next(n for n in lexicon.NAMES if n.en == "Anna"))
PETER = Phrase(name=next(n for n in lexicon.NAMES if n.en == "Peter"))
WEBER = Phrase(name=next(n for n in lexicon.NAMES if n.en == "Mr Weber"))
YESTERDAY = Pair("yesterday", "gestern")
I = Phrase(first_person=True)  # noqa: E741
WE = Phrase(first_person=True, plural=True)
ADJECTIVES = {a.en: a for group in lexicon.ADJECTIVES.values() for a in group}


def np(noun, determiner="the", adjectives="", **fields):
  chosen = tuple(ADJECTIVES[word] for word in adjectives.split())
  return Phrase(
    noun=lexicon.BY_ENGLISH[noun], determiner=determiner, adjectives=chosen, **fields
  )


def he(phrase):
  return Phrase(pronoun_of=phrase)


def say(infinitive, subject, english_verb="", **fields):
  return Clause(verb=verbs.find(infinitive, english_verb), subject=subject, **fields)


def be(subject, adjective, **fields):
  return Clause(subject=subject, predicate=ADJECTIVES[adjective], **fields)


def linked(clause, kind, en, de, other, comma=True):
  clause.links = (Link(kind, en, de, other, comma),)
  return clause
