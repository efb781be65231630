"""Samples whole sentences and writes them in both languages."""

import random

from specdec_t5x.demo.corpora import clauses, english, german_clause, lexicon, phrases
from specdec_t5x.demo.corpora.phrases import pick
from specdec_t5x.demo.corpora.tree import Clause, Link, Phrase

_PAST = "past"
# Subordinate, English first; the tense of the second clause after the main's.
_BECAUSE = ("because", "weil")
_ALTHOUGH = (", although", "obwohl")


def pair(rng: random.Random) -> tuple[str, str]:
  """Returns an English sentence and its German translation."""
  roll = rng.random()
  question = None
  if roll < 0.36:
    clause = _with_subordinate(rng)
  elif roll < 0.52:
    clause = _with_content(rng)
  elif roll < 0.66:
    clause = _coordinated(rng)
  elif roll < 0.73:
    clause = _with_purpose(rng)
  elif roll < 0.80:
    clause = _with_infinitive(rng)
  elif roll < 0.88:
    clause, question = _question(rng)
  else:
    clause = _main(
      rng, pick(rng, ("past", "present", "future")), relative=0.9, details=0.8
    )
  return english.sentence(clause, question), german_clause.sentence(clause, question)


def _main(
  rng: random.Random, tense: str, relative: float = 0.25, details: float = 0.6
) -> Clause:
  """Returns a main clause, perhaps with the time first or a relative subject."""
  subject = clauses.agent(rng)
  clause = clauses.plain(rng, subject, tense, details, relative)
  if clause.time and not clause.often and clause.verb and rng.random() < 0.35:
    clause.time_first = "g" not in clause.verb.marks
  if _takes_relative(subject) and rng.random() < relative:
    subject.relative = clauses.relative(rng, subject)
  return clause


def _takes_relative(subject: Phrase) -> bool:
  return (
    subject.noun is not None
    and not subject.is_pronoun
    and subject.origin is None
    and subject.determiner in ("the", "a", "this", "some", "many", "number")
  )


def _again(rng: random.Random, main: Clause) -> Phrase:
  """Returns the subject of a second clause: a pronoun for the first's, or another.

  "it" and "they" stand for the first clause's object where its subject is a person.
  """
  subject, thing = main.subject, main.accusative
  roll = rng.random()
  if subject is None:  # "it rained" is nobody's subject
    return clauses.agent(rng)
  if roll < 0.3 and _is_told_apart(subject, thing):
    return phrases.refer(rng, thing)
  if roll < 0.75 and phrases.can_refer(subject):
    return phrases.refer(rng, subject)
  return clauses.agent(rng)


def _is_told_apart(subject: Phrase, thing: Phrase | None) -> bool:
  """Whether "it" or "they" can only mean the object."""
  if thing is None or thing.noun is None or thing.human or thing.determiner == "no":
    return False
  if not subject.human or not thing.noun.classes & set("grfiqt"):
    return False
  return not (thing.plural and subject.head.plural)


def _second(rng: random.Random, main: Clause, tense: str) -> Clause:
  """Returns a clause about the main clause's subject or object, or another."""
  if rng.random() < 0.06:
    return _weather(rng, tense)
  subject = _again(rng, main)
  clause = clauses.plain(rng, subject, tense, details=0.45, relative=0.2)
  while clause.verb is not None and clause.verb is main.verb:
    clause = clauses.plain(rng, subject, tense, details=0.45)
  clause.time_first = False
  thing = main.accusative
  if (
    subject.human
    and subject.is_pronoun
    and clause.accusative is not None
    and not clause.negated
    and clause.accusative.relative is None
    and main.subject is not None
    and _is_told_apart(main.subject, thing)
    and _suits(clause, thing)
    and rng.random() < 0.6
  ):
    clause.accusative = phrases.refer(rng, thing)
  return _without_fronting(clause)


def _without_fronting(clause: Clause) -> Clause:
  """Drops a time that a relative clause would separate from its verb."""
  if clause.accusative is not None and clause.accusative.relative is not None:
    if not clause.often:
      clause.time = None
    clause.time_first = False
  return clause


def _suits(clause: Clause, thing: Phrase) -> bool:
  return bool(set(clause.verb.accusative) & thing.noun.classes)


def _weather(rng: random.Random, tense: str) -> Clause:
  """Returns "it rained" or "the weather was bad"."""
  past = tense in ("past", "pluperfect")
  if rng.random() < 0.5:
    verb = pick(rng, clauses.WEATHER)
    return Clause(verb=verb, tense="past" if past else "progressive")
  subject = Phrase(noun=lexicon.BY_ENGLISH["weather"])
  clause = clauses.predicate(rng, subject, tense)
  clause.than = None
  return clause


def _with_subordinate(rng: random.Random) -> Clause:
  """Returns a sentence with because, although, when, before, after, while or if."""
  roll = rng.random()
  if roll < 0.55:
    tense = "past"
    links = (
      (_BECAUSE, _PAST),
      (_ALTHOUGH, _PAST),
      (("when", "als"), _PAST),
      (("before", "bevor"), _PAST),
      (("after", "nachdem"), "pluperfect"),
      (("while", "während"), _PAST),
      (_BECAUSE, _PAST),
    )
  elif roll < 0.8:
    tense = "present"
    links = (
      (_BECAUSE, "present"),
      (_ALTHOUGH, "present"),
      (("when", "wenn"), "habit"),
      (_BECAUSE, _PAST),
    )
  else:
    tense = "future"
    links = (
      (("if", "wenn"), "habit"),
      (_BECAUSE, "present"),
      (("before", "bevor"), "habit"),
    )
  (en, de), second = pick(rng, links)
  main = _main(rng, tense, relative=0.25)
  sequence = (en, de) not in (_BECAUSE, _ALTHOUGH)
  clause = _second(rng, main, "present" if second == "habit" else second)
  while sequence and not _is_event(clause, main):
    clause = _second(rng, main, "present" if second == "habit" else second)
  if second == "habit":
    _make_habit(clause)
    if en == "when":
      _make_habit(main)
  if sequence:
    _drop_time(clause)
  link = Link("sub", en, de, clause)
  if rng.random() < 0.4 and not _mentions(clause, main.accusative):
    main.opening, main.time_first = link, False
    _unfront(main)
  else:
    main.links = (link,)
  return main


def _is_event(clause: Clause, main: Clause) -> bool:
  """Whether "before", "after", "when" and "if" make sense with the clause."""
  verb = clause.verb
  if clause.subject is None or verb is None:
    return verb is not None or not clause.negated
  return not (clause.negated or "i" in verb.marks or verb is main.verb or clause.modal)


def _mentions(clause: Clause, thing: Phrase | None) -> bool:
  """Whether a pronoun stands for the thing, which must then come before it."""
  said = [p.head for p in (clause.subject, clause.accusative) if p is not None]
  return any(head is thing for head in said)


def _unfront(main: Clause) -> None:
  """Drops a time whose place the opening clause has taken, if an object needs it."""
  if main.accusative is not None and main.accusative.relative is not None:
    main.time, main.often = None, False


def _make_habit(clause: Clause) -> None:
  """Makes a clause simple present: what "if" and "when" ask for."""
  verb = clause.verb
  if verb is not None and verb.en[0] == verb.en[2]:
    return  # "they read" would look like the past
  if clause.tense in ("progressive", "since") and clause.subject is not None:
    clause.tense = "present"
    clause.time, clause.often, clause.time_first = None, False, False
  if clause.modal in ("should", "may"):
    clause.modal = "must"


def _with_content(rng: random.Random) -> Clause:
  """Returns "says that", "believes that" or "knows why", mostly about a third thing."""
  past = rng.random() < 0.6
  asks = rng.random() < 0.3
  verb = pick(rng, clauses.TAKES_WH if asks else clauses.TAKES_THAT)
  subject = phrases.person(rng)
  main = Clause(verb=verb, subject=subject, tense="past" if past else "present")
  if past and rng.random() < 0.4:
    main.time = phrases.time(rng, "past")
    main.time_first = rng.random() < 0.4
  if asks:
    word = pick(rng, (("whether", "ob"), ("why", "warum"), ("when", "wann")))
    if word[0] == "whether" and "O" not in verb.marks:
      word = ("why", "warum")
  else:
    word = ("that", "dass")
  inner_tense = "past" if past else pick(rng, ("past", "present", "future"))
  inner = _second(rng, main, inner_tense)
  if word[0] == "when":
    _drop_time(inner)
  elif word[0] != "why" and rng.random() < 0.5 and inner.subject is not None:
    inner.links = (_reason(rng, inner, "past" if past else "present"),)
  main.links = (Link("sub", *word, inner),)
  return main


def _drop_time(clause: Clause) -> None:
  """Takes out what answers "when"."""
  if clause.tense == "since":
    clause.tense = "present"
  clause.time, clause.often, clause.time_first = None, False, False


def _coordinated(rng: random.Random) -> Clause:
  """Returns two main clauses with and, but or so."""
  tense = pick(rng, ("past", "past", "present", "future"))
  main = _main(rng, tense, relative=0.2)
  second = _second(rng, main, tense)
  kind, en, de, comma = pick(
    rng,
    (
      ("main", ", and", "und", False),
      ("main", ", but", "aber", True),
      ("inverted", ", so", "deshalb", True),
    ),
  )
  if en != ", so" and rng.random() < 0.45:
    second.links = (_reason(rng, second, tense),)
  main.links = (Link(kind, en, de, second, comma),)
  return main


def _reason(rng: random.Random, clause: Clause, tense: str) -> Link:
  """Returns why the clause is so; what has a future has a present reason."""
  reason = _second(rng, clause, "past" if tense == "past" else "present")
  return Link("sub", *_BECAUSE, reason)


def _with_purpose(rng: random.Random) -> Clause:
  """Returns "went to the market in order to buy ..."."""
  while True:
    tense = pick(rng, ("past", "future"))
    main = _main(rng, tense, relative=0.2)
    verb = main.verb
    if verb is None or main.negated or main.often or not main.subject.human:
      continue
    if not set("gs") & set(verb.marks):
      break
  purpose = clauses.infinitive(rng, main.subject)
  main.links = (Link("purpose", "in order to", "um", purpose),)
  if rng.random() < 0.3:
    main.links = (*main.links, _reason(rng, main, tense))
  return main


def _with_infinitive(rng: random.Random) -> Clause:
  """Returns "tried to ..." or "promised to ..."."""
  subject = phrases.person(rng)
  past = rng.random() < 0.7
  verb = pick(rng, clauses.TAKES_TO)
  main = Clause(verb=verb, subject=subject, tense="past" if past else "present")
  if past and rng.random() < 0.6:
    main.time, main.time_first = phrases.time(rng, "past"), True
  if _takes_relative(subject) and rng.random() < 0.3:
    subject.relative = clauses.relative(rng, subject)
  to = Link("infinitive", "to", "", clauses.infinitive(rng, subject))
  main.links = (to,)
  if rng.random() < 0.6:
    main.links = (to, _reason(rng, main, "past" if past else "present"))
  return main


def _question(rng: random.Random) -> tuple[Clause, str]:
  """Returns a question's clause and its question word."""
  word = pick(rng, ("", "", "why", "when", "where", "who", "what"))
  tense = pick(rng, ("past", "past", "present", "future"))
  while True:
    if word == "who":
      # What is asked for has no gender: no possessive may stand for it.
      child = lexicon.BY_ENGLISH["child"]
      subject = Phrase(noun=child)
    else:
      subject = phrases.person(rng)
    clause = clauses.plain(rng, subject, tense, details=0.5, relative=0.15)
    if _can_ask(word, clause):
      break
  clause.time_first = False
  _without_fronting(clause)
  if word == "when":
    _drop_time(clause)
  if not word and rng.random() < 0.4:
    clause.links = (_reason(rng, clause, tense),)
  return clause, word


def _can_ask(word: str, clause: Clause) -> bool:
  """Whether the clause has what is asked for, and no more."""
  if clause.negated or clause.verb is None:
    return word == "" and not clause.negated
  if "g" in clause.verb.marks:
    return word == ""
  if word == "where":
    return "l" in clause.verb.marks and clause.place is None and not clause.direction
  if word == "what":
    thing = clause.accusative
    return thing is not None and not thing.human and thing.relative is None
  return True
