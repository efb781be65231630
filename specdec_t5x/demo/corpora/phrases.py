"""Samples noun phrases and adverbials."""

import random
from collections.abc import Sequence
from typing import TypeVar

from specdec_t5x.demo.corpora import english, german, lexicon, number_words
from specdec_t5x.demo.corpora.tree import Pair, Phrase
from specdec_t5x.demo.corpora.verbs import MANNERS, Verb

_T = TypeVar("_T")

# The first of a noun's classes found here says which adjectives suit it.
_ADJECTIVE_CLASSES = (
  ("h", "h"),
  ("a", "a"),
  ("r", "r"),
  ("q", "q"),
  ("t", "r"),
  ("e", "e"),
  ("f", "f"),
  ("d", "d"),
  ("p", "p"),
  ("u", "u"),
)
COLOURS = ("rot", "blau", "grün", "schwarz", "weiß", "braun")
_SURFACES = {
  "table": ("on", "auf"),
  "shelf": ("on", "in"),
  "cupboard": ("in", "in"),
  "box": ("in", "in"),
}
_WEEKDAYS = (
  ("Monday", "Montag"),
  ("Tuesday", "Dienstag"),
  ("Wednesday", "Mittwoch"),
  ("Thursday", "Donnerstag"),
  ("Friday", "Freitag"),
  ("Saturday", "Samstag"),
  ("Sunday", "Sonntag"),
)
_TIMES = {
  "past": (
    Pair("yesterday", "gestern"),
    Pair("last week", "letzte Woche"),
    Pair("last month", "letzten Monat"),
    Pair("last year", "letztes Jahr"),
    Pair("this morning", "heute Morgen"),
    Pair("last night", "gestern Abend"),
    Pair("the day before yesterday", "vorgestern"),
  ),
  "progressive": (
    Pair("now", "jetzt"),
    Pair("today", "heute"),
    Pair("at the moment", "im Moment"),
    Pair("this week", "diese Woche"),
  ),
  "present": (
    Pair("every day", "jeden Tag"),
    Pair("every week", "jede Woche"),
    Pair("every morning", "jeden Morgen"),
    Pair("in summer", "im Sommer"),
    Pair("in winter", "im Winter"),
  ),
  "future": (
    Pair("tomorrow", "morgen"),
    Pair("next week", "nächste Woche"),
    Pair("next month", "nächsten Monat"),
    Pair("next year", "nächstes Jahr"),
    Pair("tomorrow morning", "morgen früh"),
    Pair("tonight", "heute Abend"),
    Pair("soon", "bald"),
  ),
}
OFTEN = (
  Pair("often", "oft"),
  Pair("always", "immer"),
  Pair("sometimes", "manchmal"),
  Pair("usually", "normalerweise"),
  Pair("rarely", "selten"),
  Pair("never", "nie"),
)
_UNITS = (
  ("days", "Tagen", "Tage"),
  ("weeks", "Wochen", "Wochen"),
  ("months", "Monaten", "Monate"),
  ("years", "Jahren", "Jahre"),
)


def pick(rng: random.Random, options: Sequence[_T]) -> _T:
  """Returns one of the options; several times faster than random.choice."""
  return options[int(rng.random() * len(options))]


def number(rng: random.Random, limit: int = 99) -> Pair:
  """Returns a number from two, mostly small, as words or as digits."""
  value = 2 + int((limit - 1) * rng.random() ** 3)
  if value > 12 and rng.random() < 0.4:
    return Pair(str(value), str(value))
  return Pair(number_words.english(value), number_words.german(value))


def adjectives(
  rng: random.Random, noun: lexicon.Noun, often: float = 0.4
) -> tuple[lexicon.Adjective, ...]:
  """Returns no, one or two different adjectives that suit a noun."""
  if rng.random() >= often:
    return ()
  options = adjectives_for(noun)
  first = pick(rng, options)
  if rng.random() >= 0.4:
    return (first,)
  # A colour after another adjective: "the big red car", never "the old new car".
  second = pick(rng, options)
  both = second.de in COLOURS and first.de not in COLOURS
  return (first, second) if both else (first,)


def adjectives_for(noun: lexicon.Noun) -> tuple[lexicon.Adjective, ...]:
  """Returns the adjectives that suit a noun."""
  for kind, key in _ADJECTIVE_CLASSES:
    if kind in noun.classes:
      return lexicon.ADJECTIVES[key]
  return lexicon.ADJECTIVES["g"]


def person(rng: random.Random, plain: bool = False) -> Phrase:
  """Returns a human phrase; a plain one is a name or has the definite article."""
  roll = rng.random()
  if roll < 0.4:
    return Phrase(name=pick(rng, lexicon.NAMES))
  if roll < 0.5 and not plain:
    return Phrase(first_person=True, plural=rng.random() < 0.4)
  if roll < 0.54 and not plain:
    return two_people(rng)
  phrase = common(rng, "h", possessor=None)
  if plain:
    phrase.determiner, phrase.number = "the", None
  elif rng.random() < 0.06:
    phrase.origin = pick(rng, lexicon.CITIES)
  return phrase


def two_people(rng: random.Random) -> Phrase:
  """Returns two names joined by "and"."""
  first, second = pick(rng, lexicon.NAMES), pick(rng, lexicon.NAMES)
  while second.en == first.en:
    second = pick(rng, lexicon.NAMES)
  return Phrase(members=(Phrase(name=first), Phrase(name=second)), plural=True)


def common(rng: random.Random, classes: str, possessor: Phrase | None) -> Phrase:
  """Returns a phrase with a noun of one of the classes.

  Args:
    rng: the source of randomness.
    classes: letters of `lexicon`.
    possessor: whose it may be ("her"), usually the clause's subject; or None.
  """
  noun = pick(rng, lexicon.BY_CLASS[pick(rng, classes)])
  phrase = Phrase(noun=noun, adjectives=adjectives(rng, noun))
  roll = rng.random()
  ownable = "h" not in noun.classes or noun.classes & set("yz")
  if not ownable and roll < 0.24:
    phrase.determiner = "the"
  elif possessor is not None and can_own(possessor) and roll < 0.18:
    phrase.determiner, phrase.possessor = "my", possessor
    refer(rng, possessor)
  elif roll < 0.24:
    phrase.determiner = "'s"
    phrase.possessor = Phrase(name=pick(rng, lexicon.NAMES))
    if " " in phrase.possessor.name.en:  # "the key of Mrs Weber" needs no genitive s
      phrase.determiner, phrase.possessor = "the", None
  elif "u" in noun.classes:
    phrase.determiner = "" if roll > 0.8 and "d" in noun.classes else "the"
    return phrase
  elif roll < 0.60:
    phrase.determiner = "the"
  elif roll < 0.82:
    phrase.determiner = "a"
  elif roll < 0.88:
    phrase.determiner = "this"
  elif roll < 0.95:
    phrase.determiner, phrase.number, phrase.plural = "number", number(rng), True
    return phrase
  else:
    phrase.determiner, phrase.plural = pick(rng, ("some", "many", "all")), True
    return phrase
  owned = phrase.determiner in ("my", "'s")
  # Nobody has several mothers, and nobody drinks teas.
  if not (owned and "y" in noun.classes) and "u" not in noun.classes:
    phrase.plural = rng.random() < 0.22
  if phrase.determiner == "the" and rng.random() < 0.08 and "h" not in noun.classes:
    phrase.of = common_owner(rng)
  return phrase


def common_owner(rng: random.Random) -> Phrase:
  """Returns a person for a genitive ("of the old teacher")."""
  noun = pick(rng, lexicon.BY_CLASS["h"])
  return Phrase(noun=noun, adjectives=adjectives(rng, noun), plural=rng.random() < 0.2)


def can_own(subject: Phrase) -> bool:
  """Whether a possessive pronoun may stand for the phrase."""
  head = subject.head
  return can_refer(head) and (
    head.human or (head.noun is not None and "a" in head.noun.classes)
  )


def can_refer(phrase: Phrase) -> bool:
  """Whether a pronoun may stand for the phrase.

  German has "es" for das Mädchen and das Kind where English has "she" or "he", so they
  are left out.
  """
  head = phrase.head
  if head.noun is None or head.plural:
    return True
  return "j" not in head.noun.classes and head.determiner in ("the", "a", "this", "my")


def refer(rng: random.Random, phrase: Phrase) -> Phrase:
  """Returns a pronoun for a phrase; the first decides whether a role is a woman's."""
  head = phrase.head
  if head.first_person:
    return head
  singular_role = head.noun is not None and head.noun.feminine and not head.plural
  if singular_role and not head.referenced:
    head.female = rng.random() < 0.5
  head.referenced = True
  return Phrase(pronoun_of=head)


def time(rng: random.Random, tense: str) -> Pair:
  """Returns when: for a tense, or "future" (also with modal verbs)."""
  roll = rng.random()
  if tense in ("past", "future") and roll < 0.55:
    return _calendar(rng, tense)
  return pick(rng, _TIMES[tense])


def _calendar(rng: random.Random, tense: str) -> Pair:
  """Returns a weekday, date, year, clock time or distance in time."""
  roll = rng.random()
  weekday_en, weekday_de = pick(rng, _WEEKDAYS)
  if roll < 0.2:
    return Pair(f"on {weekday_en}", f"am {weekday_de}")
  if roll < 0.35:
    hour_en, hour_de = number_words.clock(1 + int(12 * rng.random()), roll < 0.28)
    return Pair(f"on {weekday_en} {hour_en}", f"am {weekday_de} {hour_de}")
  if roll < 0.65:
    return _date(rng)
  if roll < 0.8:
    unit_en, unit_de, _ = pick(rng, _UNITS)
    count = number(rng, 30)
    if tense == "past":
      return Pair(f"{count.en} {unit_en} ago", f"vor {count.de} {unit_de}")
    return Pair(f"in {count.en} {unit_en}", f"in {count.de} {unit_de}")
  if tense == "future":
    return pick(rng, _TIMES["future"])
  return Pair(
    *(f"{word}{year}" for word, year in zip(("in ", ""), _year(rng), strict=True))
  )


def _date(rng: random.Random) -> Pair:
  month_en, month_de = pick(rng, number_words.MONTHS)
  day = 1 + int(28 * rng.random())
  if rng.random() < 0.3:
    day_en, day_de = number_words.ordinals(day)
    return Pair(f"on the {day_en} of {month_en}", f"am {day_de} {month_de}")
  return Pair(f"on {day} {month_en}", f"am {day}. {month_de}")


def _year(rng: random.Random) -> tuple[str, str]:
  value = 1950 + int(75 * rng.random())
  if rng.random() < 0.7:
    return str(value), str(value)
  return number_words.english_year(value), number_words.german_year(value)


def since(rng: random.Random) -> Pair:
  """Returns "since 1998" or "for three years", which German says in the present."""
  if rng.random() < 0.5:
    year_en, year_de = _year(rng)
    return Pair(f"since {year_en}", f"seit {year_de}")
  unit_en, unit_de, _ = pick(rng, _UNITS)
  count = number(rng, 40)
  return Pair(f"for {count.en} {unit_en}", f"seit {count.de} {unit_de}")


def duration(rng: random.Random) -> Pair:
  """Returns how long something took, in the past."""
  unit_en, _, unit_de = pick(rng, _UNITS)
  count = number(rng, 40)
  return Pair(f"for {count.en} {unit_en}", f"{count.de} {unit_de} lang")


def manner(rng: random.Random, verb: Verb) -> Pair:
  """Returns one of the verb's manners."""
  word = pick(rng, verb.manners)
  return Pair(word, MANNERS[word])


def price(rng: random.Random) -> Pair:
  """Returns "for 45.50 euros"."""
  euros = 3 + int(4000 * rng.random() ** 4)
  cents = pick(rng, (0, 0, 50, 90, 20)) if euros < 200 else 0
  price_en, price_de = number_words.price(100 * euros + cents)
  return Pair(f"for {price_en}", f"für {price_de}")


def place(rng: random.Random, going: bool = False) -> Pair:
  """Returns where something is, or where it goes."""
  roll = rng.random()
  if roll < 0.25:
    region = pick(rng, lexicon.CITIES if roll < 0.17 else lexicon.COUNTRIES)
    if going:
      return Pair(f"to {region.en}", region.to)
    return Pair(f"in {region.en}", region.at)
  if roll < 0.29:
    return Pair("home", "nach Hause") if going else Pair("at home", "zu Hause")
  return building(rng, going)


def building(rng: random.Random, going: bool) -> Pair:
  """Returns a place with an article; a German direction is in the accusative."""
  entry = pick(rng, lexicon.PLACES)
  phrase = Phrase(noun=entry.noun, adjectives=adjectives(rng, entry.noun, 0.3))
  phrase.determiner = "a" if phrase.adjectives and rng.random() < 0.4 else "the"
  words = english.noun_phrase(phrase)
  if not going:
    return Pair(
      f"{entry.en_at} {words}", german.prepositional(entry.de_at, phrase, "D")
    )
  # "zu" is the one direction that takes the dative.
  case = "D" if entry.de_to == "zu" else "A"
  return Pair(f"{entry.en_to} {words}", german.prepositional(entry.de_to, phrase, case))


def region(rng: random.Random, going: bool) -> Pair:
  """Returns a city or country to be in or to go to."""
  entry = pick(rng, lexicon.CITIES if rng.random() < 0.6 else lexicon.COUNTRIES)
  if going:
    return Pair(f"to {entry.en}", entry.to)
  return Pair(f"in {entry.en}", entry.at)


def surface(rng: random.Random) -> Pair:
  """Returns where something is put, in the accusative."""
  noun = lexicon.BY_ENGLISH[pick(rng, tuple(_SURFACES))]
  preposition_en, preposition_de = _SURFACES[noun.en]
  phrase = Phrase(noun=noun, adjectives=adjectives(rng, noun, 0.3))
  return Pair(
    f"{preposition_en} {english.noun_phrase(phrase)}",
    german.prepositional(preposition_de, phrase, "A"),
  )
