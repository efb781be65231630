"""The synthetic English-German corpus: sentences from tables/patterns.tsv."""

import random
from collections.abc import Set

from lab.pair.grammar import english, german, phrases, splits, words
from lab.pair.grammar.clauses import clause, relative
from lab.pair.grammar.tree import Clause, Phrase

# Classes of things that "it" may refer to.
_REFERRED = frozenset(("goods", "text", "picture", "topic", "art"))
_AGENTS = (["animal"], ["animal"], ["vehicle"], ["event"])


def rows(split: str, size: int, seed: int = 0) -> tuple[splits.Row, ...]:
  """Returns (English, German) pairs of a split; see `splits.generate`."""
  return tuple(splits.generate(pair, split, size, seed))


def pair(rng: random.Random) -> tuple[str, str]:
  """Returns an English sentence and its German translation."""
  pattern = words.weighted(rng, words.PATTERNS)
  clauses = {}
  last = None
  for name in "abc":
    if wanted := frozenset(getattr(pattern, name).split()):
      last = _clause(rng, wanted, last)
      clauses[name] = last
  return english.sentence(pattern.en, clauses), german.sentence(pattern.de, clauses)


def _clause(rng: random.Random, wanted: Set[str], last: Clause | None) -> Clause:
  """Returns a clause with the wanted marks, after the last clause."""
  subject = _subject(rng, wanted, last)
  node = clause(rng, subject, wanted, last and last.verb)
  node.gap = "subject" if "who" in wanted else "accusative" if "what" in wanted else ""
  node.is_first = bool(node.time) and "first" in wanted and rng.random() < 0.4
  if "infinitive" not in wanted and not node.gap:
    _add_relatives(rng, node, 0.6 if "relative" in wanted else 0.18)
  return node


def _subject(rng: random.Random, wanted: Set[str], last: Clause | None) -> Phrase:
  """Returns a new subject, or a pronoun for the last clause's subject or object."""
  if "infinitive" in wanted:
    return last.subject
  if "weather" in wanted:
    return Phrase(person="n")
  if "who" in wanted:
    # The unknown person has no gender, so no possessive may refer to the subject.
    return Phrase(noun=words.BY_ENGLISH["child"])
  roll = rng.random()
  is_again = "again" in wanted
  # A thing may have a state, but does not act.
  if is_again and roll < 0.3 and "event" not in wanted and _is_told_apart(last):
    return phrases.refer(rng, last.accusative)
  if is_again and roll < 0.75 and phrases.can_refer(last.subject):
    return phrases.refer(rng, last.subject)
  if "person" in wanted or rng.random() < 0.84:
    return phrases.person(rng)
  return phrases.common(rng, words.pick(rng, _AGENTS))


def _is_told_apart(last: Clause) -> bool:
  """Whether "it" or "they" can only mean the clause's object."""
  subject = last.subject
  thing = last.accusative
  return (
    thing is not None
    and not thing.is_pronoun
    and phrases.can_refer(thing)
    and "human" in subject.classes
    and bool(thing.classes & _REFERRED)
    and not (thing.plural and subject.head.plural)
  )


def _add_relatives(rng: random.Random, node: Clause, often: float) -> None:
  """Adds relative clauses to the subject, and to an object at the clause's end."""
  if rng.random() < often and _can_take_relative(node.subject):
    node.subject.relative = relative(rng, node.subject)
  late = (node.goal, node.prepositional, node.manner, node.place)
  is_last = not any(late) and (node.is_first or not node.time)
  is_last = is_last and not (node.dative and "to" in node.verb.marks)
  if rng.random() < 1.5 * often and is_last and _can_take_relative(node.accusative):
    node.accusative.relative = relative(rng, node.accusative)


def _can_take_relative(phrase: Phrase | None) -> bool:
  if phrase is None or phrase.is_pronoun or phrase.of:
    return False
  return bool(words.DETERMINERS[phrase.determiner].relative)
