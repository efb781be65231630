"""Samples clauses: a verb, its objects, adverbials, and relative clauses."""

import random

from specdec_t5x.demo.corpora import lexicon, phrases
from specdec_t5x.demo.corpora.phrases import pick
from specdec_t5x.demo.corpora.tree import Clause, Phrase, Relative
from specdec_t5x.demo.corpora.verbs import VERBS, Verb

_NO_CONTENT = set("CWZOI")
# Verbs with subject, objects and adverbials alone; the others take a clause.
_PLAIN = tuple(v for v in VERBS if not _NO_CONTENT & set(v.marks))
HUMAN_VERBS = tuple(v for v in _PLAIN if "h" in v.subject)
_BY_SUBJECT = {
  kind: tuple(v for v in _PLAIN if kind in v.subject) for kind in ("h", "a", "v", "e")
}
TAKES_THAT = tuple(v for v in VERBS if "C" in v.marks)
TAKES_WH = tuple(v for v in VERBS if "W" in v.marks)
TAKES_TO = tuple(v for v in VERBS if "Z" in v.marks)
WEATHER = tuple(v for v in VERBS if "I" in v.marks)
_ABOUT_PEOPLE = tuple(v for v in HUMAN_VERBS if v.accusative == "h" and not v.dative)
_TO_PEOPLE = tuple(v for v in HUMAN_VERBS if v.dative == "h" and not v.accusative)
_WITH_PEOPLE = tuple(
  v for v in HUMAN_VERBS if "h" in v.prepositional and v.preposition.en
)
_MODALS = ("can", "must", "want", "should", "may")
_PAST_MODALS = ("can", "must", "want", "may")


def agent(rng: random.Random) -> Phrase:
  """Returns a subject: mostly a person, sometimes an animal, vehicle or event."""
  roll = rng.random()
  if roll < 0.84:
    return phrases.person(rng)
  kind = "a" if roll < 0.91 else ("v" if roll < 0.95 else "e")
  noun = pick(rng, lexicon.BY_CLASS[kind])
  plural = rng.random() < 0.15
  return Phrase(noun=noun, adjectives=phrases.adjectives(rng, noun), plural=plural)


def plain(
  rng: random.Random, subject: Phrase, tense: str, details: float, relative: float = 0.0
) -> Clause:
  """Returns a clause with a verb that suits the subject.

  Args:
    rng: the source of randomness.
    subject: the subject, a pronoun perhaps.
    tense: past, pluperfect, present (which may become progressive, a modal or
      "since"), or future ("will").
    details: how likely each adverbial is.
    relative: how likely an object has a relative clause.
  """
  head = subject.head
  kinds = "h" if subject.human else next(iter(head.noun.classes & set(_BY_SUBJECT)), "")
  if not kinds or (rng.random() < 0.1 and tense in ("past", "present")):
    return predicate(rng, subject, tense)
  verb = pick(rng, _BY_SUBJECT[kinds])
  clause = Clause(verb=verb, subject=subject)
  set_tense(rng, clause, tense)
  fill(rng, clause, details)
  _negate(rng, clause)
  if rng.random() < relative:
    _add_relative(rng, clause)
  return clause


def predicate(rng: random.Random, subject: Phrase, tense: str) -> Clause:
  """Returns "is expensive", sometimes compared to something."""
  noun = subject.head.noun
  # Names have no noun; any human noun has the same adjectives.
  options = phrases.adjectives_for(noun or lexicon.BY_CLASS["h"][0])
  past = "past" if tense in ("past", "pluperfect") else "present"
  options = [a for a in options if a.de not in phrases.COLOURS]
  clause = Clause(subject=subject, predicate=pick(rng, options), tense=past)
  if clause.predicate.more and rng.random() < 0.3:
    if noun is None or "h" in noun.classes:
      other = phrases.person(rng, plain=True)
    else:
      other = Phrase(noun=noun, determiner="this", plural=rng.random() < 0.3)
      if subject.determiner == "this" or subject.is_pronoun:
        other = Phrase(noun=pick(rng, lexicon.BY_CLASS[sorted(noun.classes)[0]]))
    clause.than = other
  elif rng.random() < 0.2:
    clause.negated = True
  return clause


def set_tense(rng: random.Random, clause: Clause, tense: str) -> None:
  """Sets tense and modal of a clause for what is asked, see `plain`."""
  marks = clause.verb.marks
  roll = rng.random()
  clause.tense = tense
  if tense == "future":
    clause.tense = "present"
    clause.modal = "will" if "i" in marks or roll < 0.7 else pick(rng, _MODALS)
  elif tense == "past" and roll < 0.18 and "i" not in marks:
    clause.modal = pick(rng, _PAST_MODALS)
  elif tense == "present":
    if "p" in marks and roll < 0.5:
      clause.tense = "since"
    elif roll < 0.25 and "i" not in marks:
      clause.modal = pick(rng, _MODALS)
    elif ("s" not in marks and roll < 0.65) or _looks_past(clause):
      clause.tense = "progressive"
  head = clause.subject.head
  alive = clause.subject.human or "a" in head.noun.classes
  if clause.modal in ("want", "may") and not alive:
    clause.modal = "must"


def _looks_past(clause: Clause) -> bool:
  """Whether "they read" could be the past, which would leave German undecided."""
  return clause.verb.en[0] == clause.verb.en[2]


def fill(rng: random.Random, clause: Clause, details: float) -> None:
  """Adds the objects that the verb needs, and adverbials."""
  verb, subject = clause.verb, clause.subject
  if verb.accusative:
    possessor = None if "g" in verb.marks else subject
    clause.accusative = phrases.common(rng, verb.accusative, possessor)
    if verb.accusative == "h" and rng.random() < 0.5:
      clause.accusative = phrases.person(rng, plain=True)
  if verb.dative:
    clause.dative = phrases.person(rng, plain=True)
  if verb.prepositional:
    kind = pick(rng, verb.prepositional)
    clause.prepositional = (
      phrases.person(rng, plain=True)
      if kind == "h" and rng.random() < 0.5
      else phrases.common(rng, kind, subject)
    )
  _go(rng, clause)
  _adverbials(rng, clause, details)


def _go(rng: random.Random, clause: Clause) -> None:
  """Adds the direction, or the place that "live" and "stay" need."""
  marks = clause.verb.marks
  if "n" in marks:
    clause.direction = phrases.region(rng, going=True)
  elif "w" in marks:
    clause.direction = phrases.building(rng, going=True)
  elif "x" in marks:
    clause.direction = phrases.surface(rng)
  elif "H" in marks:
    clause.direction = phrases.region(rng, going=False)


def _adverbials(rng: random.Random, clause: Clause, details: float) -> None:
  """Adds time, manner and place, each with the probability `details`."""
  verb = clause.verb
  if clause.tense == "since":
    clause.time = phrases.since(rng)
    return
  if rng.random() < details and "g" not in verb.marks:
    _add_time(rng, clause)
  if verb.en[0] in ("buy", "sell") and rng.random() < details / 2:
    clause.manner = phrases.price(rng)
    return
  if verb.en[0] == "travel" and rng.random() < details:
    noun = pick(rng, lexicon.BY_CLASS["v"])
    clause.manner = phrases.Pair(f"by {noun.en}", f"mit {_dative_article(noun)}")
    return
  if verb.manners and rng.random() < 0.7 * details:
    clause.manner = phrases.manner(rng, verb)
  if "l" in verb.marks and rng.random() < 0.7 * details:
    clause.place = phrases.place(rng)


def _dative_article(noun: lexicon.Noun) -> str:
  return f"{'der' if noun.gender == 'f' else 'dem'} {noun.oblique}"


def _add_time(rng: random.Random, clause: Clause) -> None:
  verb, tense = clause.verb, clause.tense
  if clause.modal and tense == "present":
    clause.time = phrases.time(rng, "future")
  elif tense in ("pluperfect", "progressive"):
    # "had bought it yesterday" would need another time to look back from.
    if tense == "progressive":
      clause.time = phrases.time(rng, tense)
  elif tense == "past":
    lasting = "p" in verb.marks and "s" not in verb.marks and not clause.modal
    if lasting and rng.random() < 0.4:
      clause.time = phrases.duration(rng)
    elif rng.random() < 0.12 and not clause.modal and clause.subject is not None:
      clause.time, clause.often = pick(rng, phrases.OFTEN), True
    elif "i" not in verb.marks:
      clause.time = phrases.time(rng, "past")
  elif "s" not in verb.marks:
    if rng.random() < 0.6:
      clause.time, clause.often = pick(rng, phrases.OFTEN), True
    else:
      clause.time = phrases.time(rng, "present")


def _negate(rng: random.Random, clause: Clause) -> None:
  """Negates some clauses, where the place of "nicht" leaves no doubt."""
  if rng.random() >= 0.16 or clause.often or clause.manner or clause.tense == "since":
    return
  if clause.place is not None or clause.direction is not None:
    return
  if clause.time is not None and clause.tense == "present" and not clause.modal:
    return
  slots = (clause.accusative, clause.dative, clause.prepositional)
  objects = [phrase for phrase in slots if phrase is not None]
  if any(
    o.determiner in ("number", "some", "many", "all", "every", "")
    for o in objects
    if not o.is_pronoun
  ):
    return
  if clause.dative is not None and clause.dative.determiner == "a":
    return
  prepositional = clause.prepositional
  if prepositional is not None and prepositional.determiner == "a":
    return
  if clause.time is not None and clause.time.de.endswith("lang"):
    return
  clause.negated = True
  if clause.accusative is not None and clause.accusative.determiner == "a":
    clause.accusative.determiner = "no"


def _add_relative(rng: random.Random, clause: Clause) -> None:
  """Gives the direct object a relative clause, where nothing follows it in English."""
  phrase = clause.accusative
  if phrase is None or phrase.noun is None or phrase.is_pronoun or clause.negated:
    return
  if clause.direction or clause.prepositional or "t" in clause.verb.marks:
    return
  if phrase.of is not None or phrase.determiner in ("", "'s", "my", "all"):
    return
  clause.manner = clause.place = None
  if clause.time is not None and not clause.often:
    if "g" in clause.verb.marks:
      clause.time = None
    else:
      clause.time_first = True
  phrase.relative = relative(rng, phrase)


def relative(rng: random.Random, phrase: Phrase) -> Relative:
  """Returns a relative clause for a phrase with a noun."""
  tense = "past" if rng.random() < 0.6 else "present"
  roll = rng.random()
  if phrase.human:
    if roll < 0.4:
      return _subject_relative(rng, phrase, tense)
    if roll < 0.55:
      return _object_relative(
        rng, phrase, "accusative", pick(rng, _ABOUT_PEOPLE), tense
      )
    if roll < 0.7:
      return _object_relative(rng, phrase, "dative", pick(rng, _TO_PEOPLE), tense)
    if roll < 0.83:
      verb = pick(rng, _WITH_PEOPLE)
      return _object_relative(rng, phrase, "prepositional", verb, tense)
    return _whose(rng, phrase, tense)
  verbs = [
    v
    for v in HUMAN_VERBS
    if set(v.accusative) & phrase.noun.classes and not set("gx") & set(v.marks)
  ]
  if not verbs or roll < 0.3:
    gap = Phrase(pronoun_of=phrase)
    clause = predicate(rng, gap, tense)
    # Or the hot tea that is cold.
    clause.than, phrase.adjectives = None, ()
    return Relative("subject", clause, gap)
  return _object_relative(rng, phrase, "accusative", pick(rng, verbs), tense)


def _subject_relative(rng: random.Random, phrase: Phrase, tense: str) -> Relative:
  # A possessive in the clause refers to the phrase, so the gap may be an owner.
  gap = Phrase(pronoun_of=phrase)
  clause = plain(rng, gap, tense, details=0.35)
  if clause.verb is not None and "g" in clause.verb.marks:
    clause = predicate(rng, gap, tense)
  return Relative("subject", clause, gap)


def _object_relative(
  rng: random.Random, phrase: Phrase, role: str, verb: Verb, tense: str
) -> Relative:
  subject = phrases.person(rng)
  subject.adjectives = ()
  clause = Clause(verb=verb, subject=subject)
  set_tense(rng, clause, tense)
  gap = Phrase(pronoun_of=phrase)
  if role == "accusative":
    clause.accusative = gap
    if verb.dative:
      clause.dative = phrases.person(rng, plain=True)
  elif role == "dative":
    clause.dative = gap
  else:
    clause.prepositional = gap
  if clause.tense == "since" or rng.random() < 0.45:
    _adverbials(rng, clause, 0.4)
    if clause.tense == "since":
      clause.time = phrases.since(rng)
  return Relative(role, clause, gap)


def _whose(rng: random.Random, phrase: Phrase, tense: str) -> Relative:
  noun = pick(rng, lexicon.BY_CLASS["y"])
  owned = Phrase(noun=noun, adjectives=phrases.adjectives(rng, noun, 0.2))
  owned.determiner = ""
  clause = plain(rng, owned, tense, details=0.35)
  if clause.verb is not None and "g" in clause.verb.marks:
    clause = predicate(rng, owned, tense)
  return Relative("whose", clause, owned)


def infinitive(rng: random.Random, subject: Phrase) -> Clause:
  """Returns a clause without a subject of its own, for "to" and "in order to"."""
  while True:
    verb = pick(rng, HUMAN_VERBS)
    if not set("gs") & set(verb.marks) and verb.auxiliary == "haben":
      break
  clause = Clause(verb=verb, subject=subject)
  fill(rng, clause, 0.3)
  clause.time, clause.often = None, False
  return clause
