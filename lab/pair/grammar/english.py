"""Writes trees in English."""

import re

from lab.pair.grammar import words
from lab.pair.grammar.tree import Adjunct, Clause, Phrase


def sentence(pattern: str, clauses: dict[str, Clause]) -> str:
  """Fills the slots of a pattern, such as "{a} to {b:infinitive}", with clauses."""

  def fill(slot):
    return clause(clauses[slot[1]], slot[2])

  text = re.sub(r"{(\w):?(\w*)}", fill, pattern).replace("can not ", "cannot ")
  text = re.sub(r"\ba(?= [aeiou])", "an", text)
  return text[0].upper() + text[1:]


def clause(node: Clause, form: str = "") -> str:
  """Returns a statement, a question without the question word, or an infinitive."""
  tense = node.tense
  subject = node.said("subject")
  who = noun_phrase(subject, "subject") if subject else ""
  often = node.often.en if node.often else ""
  plain = node.form(tense.plain, node.subject)
  auxiliary = node.form(tense.auxiliary, node.subject)
  main = node.form(tense.main, node.subject)
  if form == "infinitive":
    verb = [node.verb.base]
  elif form == "question":
    verb = [auxiliary, who, often, main]
  elif node.is_negated or not plain:
    verb = [who, auxiliary, "not" if node.is_negated else "", often, main]
  else:
    verb = [who, often, plain]
  time = None if node.is_first else node.time
  late = [node.predicate, node.said("prepositional"), node.goal, node.manner]
  late = [adjunct(part) for part in [*late, node.place, time] if part]
  text = " ".join(filter(None, [*verb, *_objects(node), *late]))
  return f"{node.time.en}, {text}" if node.is_first else text


def _objects(node: Clause) -> list[str]:
  """Returns the objects: the indirect object comes first, or last with "to"."""
  direct = node.said("accusative")
  indirect = node.said("dative")
  objects = [noun_phrase(phrase) for phrase in (indirect, direct) if phrase]
  is_last = "to" in node.verb.marks or (node.accusative and node.accusative.is_pronoun)
  if indirect and node.accusative and is_last:
    return [*objects[1:], f"to {objects[0]}"]
  return objects


def adjunct(part: Adjunct) -> str:
  """Returns the words, followed by the phrase if there is a phrase."""
  return f"{part.en} {noun_phrase(part.phrase)}".strip() if part.phrase else part.en


def noun_phrase(phrase: Phrase, use: str = "object") -> str:
  """Returns a phrase with the relative clause, as a subject or an object."""
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


def _relative(node: Clause, is_human: bool) -> str:
  start = "whom" if is_human else "that"
  if node.gap == "prepositional":
    start = f"{node.prepositional.en} {'whom' if is_human else 'which'}"
  elif node.gap == "subject" and is_human:
    start = "who"
  return f"{start.strip()} {clause(node)}"
