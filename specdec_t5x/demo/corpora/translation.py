"""The synthetic English-German corpus: sentences by tables/patterns.tsv."""

import functools
import random
from collections.abc import Set

from specdec_t5x.demo.corpora import english, german, phrases, splits, words
from specdec_t5x.demo.corpora.clauses import clause, relative
from specdec_t5x.demo.corpora.tree import Clause, Phrase

# Sentences of a text for language modelling: one alone is soon at its end.
_SENTENCES = 4
# Things that "it" may stand for.
_REFERRED = frozenset(("goods", "text", "picture", "topic", "art"))
_AGENTS = (["animal"], ["animal"], ["vehicle"], ["event"])


@functools.lru_cache(maxsize=4)
def rows(split: str, size: int, seed: int = 0) -> tuple[splits.Row, ...]:
  """Returns (English, German) pairs of a split, see `splits.generate`.

  They are kept: a task, its vocabulary and a repeated epoch ask for the same rows.
  """
  return tuple(splits.generate(pair, split, size, seed))


def english_texts(split: str, size: int, seed: int = 0) -> list[str]:
  """Returns texts of a split, each of four English sentences, in the rows' order."""
  sources = [source for source, _ in rows(split, _SENTENCES * size, seed)]
  return [" ".join(group) for group in zip(*[iter(sources)] * _SENTENCES, strict=True)]


def pair(rng: random.Random) -> tuple[str, str]:
  """Returns an English sentence and its German translation."""
  pattern = words.weighted(rng, words.PATTERNS)
  found, last = {}, None
  for name in "abc":
    if wanted := frozenset(getattr(pattern, name).split()):
      last = found[name] = _clause(rng, wanted, last)
  return english.sentence(pattern.en, found), german.sentence(pattern.de, found)


def _clause(rng: random.Random, wanted: Set[str], last: Clause | None) -> Clause:
  """Returns a clause that is as it is wanted, after the last one."""
  subject = _subject(rng, wanted, last)
  said = clause(rng, subject, wanted, last and last.verb)
  said.gap = "subject" if "who" in wanted else "accusative" if "what" in wanted else ""
  said.is_first = bool(said.time) and "first" in wanted and rng.random() < 0.4
  if "infinitive" not in wanted and not said.gap:
    _add_relatives(rng, said, 0.6 if "relative" in wanted else 0.18)
  return said


def _subject(rng: random.Random, wanted: Set[str], last: Clause | None) -> Phrase:
  """Returns a new subject, or a pronoun for one of the clause before, or its object."""
  if "infinitive" in wanted:
    return last.subject
  if "weather" in wanted:
    return Phrase(person="n")
  if "who" in wanted:
    # What is asked for has no gender: no possessive may stand for it.
    return Phrase(noun=words.BY_ENGLISH["child"])
  roll, is_again = rng.random(), "again" in wanted
  # A thing is something, but does nothing.
  if is_again and roll < 0.3 and "event" not in wanted and _is_told_apart(last):
    return phrases.refer(rng, last.accusative)
  if is_again and roll < 0.75 and phrases.can_refer(last.subject):
    return phrases.refer(rng, last.subject)
  if "person" in wanted or rng.random() < 0.84:
    return phrases.person(rng)
  return phrases.common(rng, words.pick(rng, _AGENTS))


def _is_told_apart(last: Clause) -> bool:
  """Whether "it" or "they" can only mean the clause's object."""
  subject, thing = last.subject, last.accusative
  return (
    thing is not None
    and not thing.is_pronoun
    and phrases.can_refer(thing)
    and "human" in subject.classes
    and bool(thing.classes & _REFERRED)
    and not (thing.plural and subject.head.plural)
  )


def _add_relatives(rng: random.Random, said: Clause, often: float) -> None:
  """Gives subject or object a relative clause; nothing else may follow the object."""
  if rng.random() < often and _can_take_relative(said.subject):
    said.subject.relative = relative(rng, said.subject)
  late = (said.goal, said.prepositional, said.manner, said.place)
  is_last = not any(late) and (said.is_first or not said.time)
  is_last = is_last and not (said.dative and "to" in said.verb.marks)
  if rng.random() < 1.5 * often and is_last and _can_take_relative(said.accusative):
    said.accusative.relative = relative(rng, said.accusative)


def _can_take_relative(phrase: Phrase | None) -> bool:
  if phrase is None or phrase.is_pronoun or phrase.of:
    return False
  return bool(words.DETERMINERS[phrase.determiner].relative)
