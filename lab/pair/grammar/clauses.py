"""Samples clauses: a verb, its objects, adverbials, and relative clauses."""

import random
from collections.abc import Set

from lab.pair.grammar import phrases, words
from lab.pair.grammar.tree import Adjunct, Clause, Phrase, Row
from lab.pair.grammar.words import VERBS, pick

# Marks of verbs with a clause as object, or without a subject.
_TAKING = frozenset(("that", "why", "whether", "to_do", "weather"))
_OF_PEOPLE = [v for v in words.MARKED["plain"] if "human" in v.subject]


def clause(
  rng: random.Random, subject: Phrase, wanted: Set[str], other: Row = None
) -> Clause:
  """Returns a clause.

  Args:
    rng: the source of randomness.
    subject: the subject, which may be a pronoun.
    wanted: the clause's time and further marks (tables/README.md).
    other: a verb that the clause must not have.
  """
  marks = wanted & words.MARKED.keys()
  marks = marks if marks & _TAKING else marks | {"plain"}
  classes = subject.classes
  verbs = [v for v in VERBS if marks <= v.marks and classes & v.subject]
  verbs = [verb for verb in verbs if verb is not other]
  if not verbs or (marks == {"plain"} and rng.random() < 0.1):
    verbs = words.MARKED["be"]
  verb = pick(rng, verbs)
  node = Clause(verb, subject, _tense(rng, verb, subject, wanted))
  return _filled(rng, node, wanted)


def _tense(rng: random.Random, verb: Row, subject: Phrase, wanted: Set[str]) -> Row:
  """Returns a tense or modal verb for the verb, the subject and the time."""
  has = {
    "be" if "be" in verb.marks else "acts",
    "stative" if "stative" in verb.marks else "dynamic",
    "timeless" if "timeless" in verb.marks else "active",
    # "They read" may be past or present, so the German tense would be undetermined.
    "ambiguous" if verb.base == verb.past else "distinct",
    "alive" if {"human", "animal"} & subject.classes else "dead",
    "event" if "event" in wanted else "free",
    *verb.marks,
  }
  (time,) = wanted & words.TENSES.keys()
  return words.weighted(rng, [row for row in words.TENSES[time] if row.needs <= has])


def _filled(rng: random.Random, node: Clause, wanted: Set[str]) -> Clause:
  """Adds the objects that the verb needs, and adverbials or a negation."""
  verb = node.verb
  owner = None if "swapped" in verb.marks else node.subject
  if verb.accusative and not node.accusative:
    node.accusative = _object(rng, verb.accusative, owner)
  if verb.dative and not node.dative:
    node.dative = phrases.person(rng, plain=True)
  if verb.prepositional and not node.prepositional:
    node.prepositional = prepositional(verb, _object(rng, verb.prepositional, owner))
  if verb.goal:
    node.goal = phrases.adverbial(rng, verb.goal)
  if "be" in verb.marks:
    node.predicate = _predicate(rng, node.subject)
  # "Did she not" is ambiguous, and "must not" is "darf nicht" in German.
  can_negate = node.tense.name not in ("must", "since", "infinitive")
  if can_negate and not wanted & {"asked", "event"} and rng.random() < 0.07:
    _negate(node)
  else:
    _add_adverbials(rng, node, wanted)
  return node


def _object(rng: random.Random, classes: frozenset[str], owner: Phrase | None):
  if "person" in classes and rng.random() < 0.5:
    return phrases.person(rng, plain=True)
  return phrases.common(rng, classes, owner)


def prepositional(verb: Row, phrase: Phrase) -> Adjunct:
  """Returns the verb's preposition with a phrase."""
  return Adjunct(verb.en_preposition, verb.de_preposition, phrase, verb.case)


def _predicate(rng: random.Random, subject: Phrase) -> Adjunct:
  """Returns "expensive", or "more expensive than this car"."""
  noun = subject.head.noun
  options = words.ADJECTIVES[noun.adjectives if noun else "person"]
  chosen = pick(rng, [row for row in options if not row.colour])
  if not chosen.en_more or rng.random() < 0.7:
    return Adjunct(chosen.en, chosen.de)
  than = Phrase(noun=noun, determiner="this")
  if "human" in subject.classes:
    than = phrases.person(rng, plain=True)
  return Adjunct(f"{chosen.en_more} than", f"{chosen.de_more} als", than, "N")


def _negate(node: Clause) -> None:
  """Negates a clause: the clause's objects become definite or get "no"."""
  node.is_negated = True
  thing = node.prepositional.phrase if node.prepositional else None
  for phrase in (node.accusative, node.dative, thing):
    if phrase and not phrase.is_definite:
      is_no = phrase is node.accusative and phrase.determiner == "a"
      phrase.determiner = "no" if is_no else "the"


def _add_adverbials(rng: random.Random, node: Clause, wanted: Set[str]) -> None:
  """Adds time, manner and place to some clauses."""
  verb = node.verb
  times = node.tense.adverbials.split()
  is_since = node.tense.name == "since"
  may_have_time = times and not (wanted & {"no_time"} or "timeless" in verb.marks)
  if is_since or (may_have_time and rng.random() < 0.55):
    kind = pick(rng, times)
    setattr(node, "often" if kind == "often" else "time", phrases.adverbial(rng, kind))
  if verb.manners and not is_since and rng.random() < 0.35:
    node.manner = phrases.adverbial(rng, pick(rng, sorted(verb.manners)))
  if "where" in verb.marks - wanted and rng.random() < 0.35:
    node.place = phrases.adverbial(rng, "at")


def relative(rng: random.Random, phrase: Phrase) -> Clause:
  """Returns a clause with a gap that the phrase fills."""
  wanted = {pick(rng, ("past", "past", "present"))}
  gap = Phrase(pronoun_of=phrase)
  role = pick(rng, ("subject", "accusative", "accusative", "dative", "prepositional"))
  verbs = [verb for verb in _OF_PEOPLE if getattr(verb, role) & phrase.classes]
  if role == "dative":
    verbs = [verb for verb in verbs if not verb.accusative]
  if role == "subject" or not verbs:
    node = clause(rng, gap, wanted)
    node.gap = "subject"
    return node
  verb = pick(rng, verbs)
  subject = phrases.person(rng)
  node = Clause(verb, subject, _tense(rng, verb, subject, wanted), gap=role)
  setattr(node, role, prepositional(verb, gap) if role == "prepositional" else gap)
  return _filled(rng, node, wanted)
