"""Writes trees in English."""

import re

from specdec_t5x.demo.corpora import words
from specdec_t5x.demo.corpora.tree import Adjunct, Clause, Phrase


def sentence(pattern: str, clauses: dict[str, Clause]) -> str:
  """Fills the slots of a pattern, such as "{a} to {b:infinitive}", with clauses."""
  said = lambda slot: clause(clauses[slot[1]], slot[2])
  text = re.sub(r"{(\w):?(\w*)}", said, pattern).replace("can not ", "cannot ")
  text = re.sub(r"\ba(?= [aeiou])", "an", text)
  return text[0].upper() + text[1:]


def clause(said: Clause, form: str = "") -> str:
  """Returns a statement, a question (without question word), or what follows "to"."""
  tense, subject = said.tense, said.said("subject")
  who = noun_phrase(subject, "subject") if subject else ""
  often = said.often.en if said.often else ""
  forms = (tense.plain, tense.auxiliary, tense.main)
  plain, auxiliary, main = (said.form(each, said.subject) for each in forms)
  if form == "infinitive":
    verb = [said.verb.base]
  elif form == "question":
    verb = [auxiliary, who, often, main]
  elif said.is_negated or not plain:
    verb = [who, auxiliary, "not" if said.is_negated else "", often, main]
  else:
    verb = [who, often, plain]
  time = None if said.is_first else said.time
  late = [said.predicate, said.said("prepositional"), said.goal, said.manner]
  late = [adjunct(part) for part in [*late, said.place, time] if part]
  text = " ".join(filter(None, [*verb, *_objects(said), *late]))
  return f"{said.time.en}, {text}" if said.is_first else text


def _objects(said: Clause) -> list[str]:
  """Returns the objects; the indirect one first, or with "to"."""
  direct, indirect = said.said("accusative"), said.said("dative")
  objects = [noun_phrase(phrase) for phrase in (indirect, direct) if phrase]
  is_last = "to" in said.verb.marks or (said.accusative and said.accusative.is_pronoun)
  if indirect and said.accusative and is_last:
    return [*objects[1:], f"to {objects[0]}"]
  return objects


def adjunct(part: Adjunct) -> str:
  """Returns the words, with the phrase after them where there is one."""
  return f"{part.en} {noun_phrase(part.phrase)}".strip() if part.phrase else part.en


def noun_phrase(phrase: Phrase, use: str = "object") -> str:
  """Returns a phrase with its relative clause, as a subject or an object."""
  if phrase.is_pronoun:
    return getattr(phrase.en_pronoun, f"en_{use}")
  determiner = words.DETERMINERS[phrase.determiner]
  text = (determiner.en_plural if phrase.plural else determiner.en).format(x=phrase)
  noun = phrase.noun.en_plural if phrase.plural else phrase.noun.en
  text = " ".join([text, *(adjective.en for adjective in phrase.adjectives), noun])
  if phrase.of:
    text += f" of {noun_phrase(phrase.of)}"
  if phrase.relative:
    text += f" {_relative(phrase.relative, 'human' in phrase.classes)}"
  return text.strip()


def _relative(said: Clause, is_human: bool) -> str:
  start = "whom" if is_human else "that"
  if said.gap == "prepositional":
    start = f"{said.prepositional.en} {'whom' if is_human else 'which'}"
  elif said.gap == "subject" and is_human:
    start = "who"
  return f"{start.strip()} {clause(said)}"
