"""Samples noun phrases and adverbials."""

import random
import re
from collections.abc import Collection

from lab.pair.grammar import words
from lab.pair.grammar.tree import Adjunct, Phrase, Row
from lab.pair.grammar.words import NOUNS, pick


def person(rng: random.Random, plain: bool = False) -> Phrase:
  """Returns a human phrase; a plain phrase is a name or has the definite article."""
  roll = rng.random()
  if roll < 0.4:
    return Phrase(noun=pick(rng, NOUNS["name"]), determiner="name")
  if roll < 0.5 and not plain:
    return Phrase(person="1") if roll < 0.46 else Phrase(person="1p", plural=True)
  phrase = common(rng, ["person"])
  if plain:
    phrase.determiner = "the"
  return phrase


def common(
  rng: random.Random, classes: Collection[str], owner: Phrase | None = None
) -> Phrase:
  """Returns a phrase with a noun of one of the classes.

  Args:
    rng: the source of randomness.
    classes: the classes of nouns.
    owner: the possible owner ("her"), usually the clause's subject; or None.
  """
  noun = pick(rng, NOUNS[pick(rng, sorted(classes))])
  phrase = Phrase(noun=noun, adjectives=adjectives(rng, noun))
  can_own = owner and can_refer(owner) and {"human", "animal"} & owner.classes
  has = noun.classes | {"owner"} if can_own else noun.classes
  options = [row for row in words.DETERMINERS.values() if row.needs <= has]
  determiner = words.weighted(rng, options)
  phrase.determiner = determiner.name
  if determiner.name == "my":
    phrase.owner = owner
    refer(rng, owner)
  elif determiner.name == "'s":
    phrase.owner = Phrase(noun=pick(rng, NOUNS["first_name"]))
  elif determiner.name == "number":
    phrase.count = adverbial(rng, "count")
  # Nobody has several mothers.
  may_be_plural = "countable" in noun.classes and not (phrase.owner and "kin" in has)
  phrase.plural = bool(determiner.plural) or (may_be_plural and rng.random() < 0.22)
  if phrase.plural and determiner.name == "a":
    phrase.determiner = "bare"
  if determiner.name == "the" and "human" not in has and rng.random() < 0.08:
    of = pick(rng, NOUNS["person"])
    phrase.of = Phrase(noun=of, adjectives=adjectives(rng, of))
  return phrase


def adjectives(rng: random.Random, noun: Row, often: float = 0.36) -> tuple[Row, ...]:
  """Returns up to two different adjectives that suit a noun."""
  if rng.random() >= often:
    return ()
  options = words.ADJECTIVES[noun.adjectives]
  first = pick(rng, options)
  second = pick(rng, options)
  # A colour after another adjective: "the big red car", never "the old new car".
  both = second.colour and not first.colour and rng.random() < 0.6
  return (first, second) if both else (first,)


def can_refer(phrase: Phrase) -> bool:
  """Whether a pronoun may stand for the phrase."""
  head = phrase.head
  is_told_apart = head.plural or "unreferred" not in head.classes
  return head.person != "n" and head.determiner != "no" and is_told_apart


def refer(rng: random.Random, phrase: Phrase) -> Phrase:
  """Returns a pronoun for a phrase; the first pronoun fixes the gender of a role."""
  head = phrase.head
  if head.person:
    return head
  if head.is_woman is None:
    may_be = not head.plural and bool(head.noun.feminine)
    head.is_woman = may_be and rng.random() < 0.5
  return Phrase(pronoun_of=head)


def adverbial(rng: random.Random, kind: str) -> Adjunct:
  """Returns an adverbial of a kind, with filled slots or a noun phrase."""
  chosen = words.weighted(rng, words.ADVERBIALS[kind])
  if chosen.noun:
    noun = words.BY_ENGLISH[chosen.noun]
    phrase = Phrase(noun=noun, adjectives=adjectives(rng, noun, 0.3))
    phrase.determiner = "a" if phrase.adjectives and rng.random() < 0.4 else "the"
    return Adjunct(chosen.en, chosen.de, phrase, chosen.case)
  en = {}
  de = {}
  for slot in re.findall(r"{(\w+)}", chosen.en):
    rows = words.SLOTS[slot]
    # The first words of a slot are likelier, as small numbers are.
    _, en[slot], de[slot] = rows[int(len(rows) * rng.random() ** 3)]
  return Adjunct(chosen.en.format(**en), chosen.de.format(**de))
