"""Writes trees in German: the verb's two places, and the order between them.

A German clause consists of the subject or another opening, the finite verb, the middle
field, and the other verb forms. In a subordinate clause the finite verb comes last. The
middle field has the order pronouns, definite objects, time, manner, place, indefinite
objects, complements of the verb. A relative clause at the end moves behind the verb.
"""

import re

from lab.pair.grammar import words
from lab.pair.grammar.tree import Adjunct, Clause, Phrase


def sentence(pattern: str, clauses: dict[str, Clause]) -> str:
  """Fills the slots of a pattern, such as "{a:second}, weil {b:last}"."""
  text = re.sub(
    r"{(\w):(\w+)}", lambda slot: clause(clauses[slot[1]], slot[2]), pattern
  )
  # A relative clause has a comma on both sides; a comma or the end may follow.
  text = re.sub(r"(?: ?,)+([.?])?", lambda commas: commas[1] or ",", text)
  return text[0].upper() + text[1:]


def clause(node: Clause, form: str) -> str:
  """Returns a clause with the verb second, first (inverted) or last, or with "zu"."""
  verb = node.verb
  subject = node.said("subject")
  middle = _middle(node)
  who = noun_phrase(subject, "D" if "swapped" in verb.marks else "N") if subject else ""
  if form == "zu":
    zu = f"{verb.prefix}zu" if verb.prefix else "zu "
    return " ".join([*middle, zu + verb.infinitive])
  actor = node.accusative if "swapped" in verb.marks else node.subject
  finite = node.form(node.tense.finite, actor)
  rest = node.form(node.tense.rest, actor)
  last, comma, late = middle.pop().partition(" ,") if middle else ("", "", "")
  middle = [*middle, last]
  late = comma.strip() + late
  if form == "last" and rest == verb.prefix:
    parts = [who, *middle, rest + finite, late]
  elif form == "last":
    parts = [who, *middle, rest, finite, late]
  elif form == "second" and not node.is_first:
    parts = [who, finite, *middle, rest, late]
  else:
    # A reflexive goes before a subject's noun.
    is_late = "reflexive" in verb.marks and subject and not subject.is_pronoun
    middle = [*middle[:1], who, *middle[1:]] if is_late else [who, *middle]
    parts = [node.time.de if node.is_first else "", finite, *middle, rest, late]
  return " ".join(filter(None, parts))


def _middle(node: Clause) -> list[str]:
  """Returns the parts of the middle field in order."""
  parts = []
  if "reflexive" in node.verb.marks:
    parts.append((0, node.subject.pronoun.reflexive))
  case = "N" if "swapped" in node.verb.marks else "A"
  for role, case_, ranks in (
    ("dative", "D", (2, 3, 8)),
    ("accusative", case, (1, 4, 9 if case == "A" else 4)),
  ):
    if phrase := node.said(role):
      rank = ranks[0 if phrase.is_pronoun else 1 if phrase.is_definite else 2]
      parts.append((rank, noun_phrase(phrase, case_)))
  if node.is_negated and not (node.accusative and node.accusative.determiner == "no"):
    parts.append((10, "nicht"))
  time = None if node.is_first else node.time
  adjuncts = (time, node.often, node.manner, node.place)
  parts += [(rank, adjunct(part)) for rank, part in enumerate(adjuncts, 5) if part]
  adjuncts = (node.said("prepositional"), node.goal, node.predicate)
  parts += [(rank, adjunct(part)) for rank, part in enumerate(adjuncts, 11) if part]
  return [text for _, text in sorted(parts)]


def adjunct(part: Adjunct) -> str:
  """Returns the words and the phrase, contracted as in "im" and "zur"."""
  if part.phrase is None:
    return part.de
  text = f"{part.de} {noun_phrase(part.phrase, part.case)}"
  if part.phrase.is_pronoun or part.phrase.determiner != "the":
    return text
  preposition, article, rest = text.split(" ", 2)
  first = f"{preposition} {article}"
  return f"{words.CONTRACTIONS.get(first, first)} {rest}"


def noun_phrase(phrase: Phrase, case: str) -> str:
  """Returns a phrase in the case N, A, D or G, with the relative clause."""
  if phrase.is_pronoun:
    return getattr(phrase.pronoun, case)
  determiner = words.DETERMINERS[phrase.determiner]
  stem = (determiner.de_plural if phrase.plural else determiner.de).format(x=phrase)

  def ending(table):
    return getattr(words.ENDINGS[table, case], phrase.gender)

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
  node = phrase.relative
  before = ""
  case = {"subject": "N", "accusative": "A", "dative": "D"}.get(node.gap)
  if "swapped" in node.verb.marks:
    case = {"subject": "D", "accusative": "N"}[node.gap]
  elif node.gap == "prepositional":
    before = f"{node.prepositional.de} "
    case = node.prepositional.case
  pronoun = getattr(words.ENDINGS["relative", case], phrase.gender)
  return f"{before}{pronoun} {clause(node, 'last')}"
