"""Writes trees in German: the verb's two places, and the order between them.

A German clause is: subject or what else opens it, finite verb, middle field, rest of
the verb. In a subordinate clause the finite verb is the last of the verb. The middle
field orders pronouns, definite objects, time, manner, place, indefinite objects, and
what belongs to the verb. A relative clause at its end goes behind the verb.
"""

import re

from specdec_t5x.demo.corpora import words
from specdec_t5x.demo.corpora.tree import Adjunct, Clause, Phrase


def sentence(pattern: str, clauses: dict[str, Clause]) -> str:
  """Fills the slots of a pattern, such as "{a:second}, weil {b:last}"."""
  text = re.sub(
    r"{(\w):(\w+)}", lambda slot: clause(clauses[slot[1]], slot[2]), pattern
  )
  # A relative clause writes both its commas: another, or the end, may follow.
  text = re.sub(r"(?: ?,)+([.?])?", lambda commas: commas[1] or ",", text)
  return text[0].upper() + text[1:]


def clause(said: Clause, form: str) -> str:
  """Returns a clause with its verb second, first (inverted) or last, or with "zu"."""
  verb, subject, middle = said.verb, said.said("subject"), _middle(said)
  who = noun_phrase(subject, "D" if "swapped" in verb.marks else "N") if subject else ""
  if form == "zu":
    zu = f"{verb.prefix}zu" if verb.prefix else "zu "
    return " ".join([*middle, zu + verb.infinitive])
  actor = said.accusative if "swapped" in verb.marks else said.subject
  finite, rest = (said.form(x, actor) for x in (said.tense.finite, said.tense.rest))
  last, comma, late = middle.pop().partition(" ,") if middle else ("", "", "")
  middle, late = [*middle, last], comma.strip() + late
  if form == "last" and rest == verb.prefix:
    parts = [who, *middle, rest + finite, late]
  elif form == "last":
    parts = [who, *middle, rest, finite, late]
  elif form == "second" and not said.is_first:
    parts = [who, finite, *middle, rest, late]
  else:
    # A reflexive goes before a subject's noun.
    is_late = "reflexive" in verb.marks and subject and not subject.is_pronoun
    middle = [*middle[:1], who, *middle[1:]] if is_late else [who, *middle]
    parts = [said.time.de if said.is_first else "", finite, *middle, rest, late]
  return " ".join(filter(None, parts))


def _middle(said: Clause) -> list[str]:
  """Returns the middle field in its order."""
  found = []
  if "reflexive" in said.verb.marks:
    found.append((0, said.subject.pronoun.reflexive))
  case = "N" if "swapped" in said.verb.marks else "A"
  for role, case_, ranks in (
    ("dative", "D", (2, 3, 8)),
    ("accusative", case, (1, 4, 9 if case == "A" else 4)),
  ):
    if phrase := said.said(role):
      rank = ranks[0 if phrase.is_pronoun else 1 if phrase.is_definite else 2]
      found.append((rank, noun_phrase(phrase, case_)))
  if said.is_negated and not (said.accusative and said.accusative.determiner == "no"):
    found.append((10, "nicht"))
  time = None if said.is_first else said.time
  adjuncts = (time, said.often, said.manner, said.place)
  found += [(rank, adjunct(part)) for rank, part in enumerate(adjuncts, 5) if part]
  adjuncts = (said.said("prepositional"), said.goal, said.predicate)
  found += [(rank, adjunct(part)) for rank, part in enumerate(adjuncts, 11) if part]
  return [text for _, text in sorted(found)]


def adjunct(part: Adjunct) -> str:
  """Returns the words and the phrase after them, contracted as in "im", "zur"."""
  if part.phrase is None:
    return part.de
  text = f"{part.de} {noun_phrase(part.phrase, part.case)}"
  if part.phrase.is_pronoun or part.phrase.determiner != "the":
    return text
  preposition, article, rest = text.split(" ", 2)
  first = f"{preposition} {article}"
  return f"{words.CONTRACTIONS.get(first, first)} {rest}"


def noun_phrase(phrase: Phrase, case: str) -> str:
  """Returns a phrase in the case N, A, D or G, with its relative clause."""
  if phrase.is_pronoun:
    return getattr(phrase.pronoun, case)
  determiner = words.DETERMINERS[phrase.determiner]
  stem = (determiner.de_plural if phrase.plural else determiner.de).format(x=phrase)
  ending = lambda table: getattr(words.ENDINGS[table, case], phrase.gender)
  adjectives = [a.stem + ending(determiner.adjectives) for a in phrase.adjectives]
  parts = [stem + ending(determiner.endings), *adjectives, _noun(phrase, case)]
  if phrase.of:
    parts.append(noun_phrase(phrase.of, "G"))
  if phrase.relative:
    parts.append(f", {_relative(phrase)},")
  return " ".join(parts).strip()


def _noun(phrase: Phrase, case: str) -> str:
  noun = phrase.noun
  if phrase.is_woman:
    return noun.feminine
  if phrase.plural:
    is_dative = case == "D" and not noun.de_plural.endswith(("n", "s"))
    return f"{noun.de_plural}n" if is_dative else noun.de_plural
  return {"N": noun.de, "G": noun.genitive}.get(case, noun.oblique)


def _relative(phrase: Phrase) -> str:
  said, before = phrase.relative, ""
  case = {"subject": "N", "accusative": "A", "dative": "D"}.get(said.gap)
  if "swapped" in said.verb.marks:
    case = {"subject": "D", "accusative": "N"}[said.gap]
  elif said.gap == "prepositional":
    before, case = f"{said.prepositional.de} ", said.prepositional.case
  pronoun = getattr(words.ENDINGS["relative", case], phrase.gender)
  return f"{before}{pronoun} {clause(said, 'last')}"
