"""German noun phrases: articles, adjective endings, noun cases, pronouns."""

from specdec_t5x.demo.corpora import lexicon
from specdec_t5x.demo.corpora.tree import Phrase


def _table(rows: str) -> dict[tuple[str, str], str]:
  """Reads endings: a line for each case, columns masculine feminine neuter plural."""
  table = {}
  for line in rows.strip().splitlines():
    case, *endings = line.split()
    for gender, ending in zip("mfnp", endings, strict=True):
      table[case, gender] = ending.replace("-", "")
  return table


_DER = _table(
  "N der die das die\nA den die das die\nD dem der dem den\nG des der des der"
)
_DIESER = _table("N er e es e\nA en e es e\nD em er em en\nG es er es er")
_EIN = _table("N - e - e\nA en e - e\nD em er em en\nG es er es er")
_WEAK = _table("N e e e en\nA en e e en\nD en en en en\nG en en en en")
_MIXED = _table("N er e es en\nA en e es en\nD en en en en\nG en en en en")
_STRONG = _table("N er e es e\nA en e es e\nD em er em en\nG en er en er")
_RELATIVE = {
  **_DER,
  ("D", "p"): "denen",
  ("G", "m"): "dessen",
  ("G", "n"): "dessen",
  ("G", "f"): "deren",
  ("G", "p"): "deren",
}
_PRONOUNS = _table("N er sie es sie\nA ihn sie es sie\nD ihm ihr ihm ihnen")
_FIRST = {"N": ("ich", "wir"), "A": ("mich", "uns"), "D": ("mir", "uns")}
_REFLEXIVE = {"A": "sich"}
_DIESER_WORDS = {"this": "dies", "every": "jed", "all": "all"}
_FIXED = {"some": "einige", "many": "viele"}
_CONTRACTED = {
  "in dem": "im",
  "in das": "ins",
  "an dem": "am",
  "an das": "ans",
  "zu dem": "zum",
  "zu der": "zur",
  "von dem": "vom",
  "bei dem": "beim",
}


def agreement(phrase: Phrase) -> str:
  """Returns the column of the tables: m, f, n, or p for plural."""
  return "p" if phrase.plural else phrase.gender


def noun_form(noun: lexicon.Noun, case: str, plural: bool) -> str:
  """Declines a noun."""
  if plural:
    if case == "D" and not noun.de_plural.endswith(("n", "s")):
      return f"{noun.de_plural}n"
    return noun.de_plural
  if case == "N":
    return noun.de
  return noun.genitive if case == "G" else noun.oblique


def pronoun(phrase: Phrase, case: str) -> str:
  """Returns the personal pronoun for a phrase, case N, A or D."""
  if phrase.head.first_person:
    return _FIRST[case][phrase.head.plural]
  return _PRONOUNS[case, agreement(phrase.head)]


def reflexive(subject: Phrase | None) -> str:
  """Returns the accusative reflexive pronoun for a subject."""
  if subject is not None and subject.head.first_person:
    return _FIRST["A"][subject.head.plural]
  return _REFLEXIVE["A"]


def relative_pronoun(phrase: Phrase, case: str) -> str:
  """Returns the relative pronoun; the genitive is "whose"."""
  return _RELATIVE[case, agreement(phrase)]


def noun_phrase(phrase: Phrase, case: str) -> str:
  """Returns the phrase in a case, without its relative clause."""
  if phrase.is_pronoun:
    return pronoun(phrase, case)
  if phrase.members:
    return " und ".join(noun_phrase(member, case) for member in phrase.members)
  if phrase.name:
    return phrase.name.de if case == "N" else phrase.name.oblique
  column = agreement(phrase)
  noun = phrase.noun.feminine if phrase.female else phrase.noun
  article, endings = _determiner(phrase, case, column)
  words = [article] if article else []
  words += [adjective.stem + endings[case, column] for adjective in phrase.adjectives]
  words.append(noun_form(noun, case, phrase.plural))
  if phrase.of is not None:
    words.append(noun_phrase(phrase.of, "G"))
  if phrase.origin is not None:
    words.append(phrase.origin.of)
  return " ".join(words)


def _determiner(phrase: Phrase, case: str, column: str) -> tuple[str, dict]:
  """Returns the word before the adjectives, and the adjectives' table of endings."""
  kind = phrase.determiner
  if kind == "the":
    return _DER[case, column], _WEAK
  if kind in _DIESER_WORDS:
    return _DIESER_WORDS[kind] + _DIESER[case, column], _WEAK
  if kind == "a" and not phrase.plural:
    return f"ein{_EIN[case, column]}", _MIXED
  if kind == "no":
    return f"kein{_EIN[case, column]}", _MIXED
  if kind == "my":
    return _possessive(phrase.possessor.head) + _EIN[case, column], _MIXED
  if kind == "number":
    return phrase.number.de, _STRONG
  if kind == "'s":
    name = phrase.possessor.name.de
    return (f"{name}'" if name.endswith(("s", "x", "z")) else f"{name}s"), _STRONG
  if kind in _FIXED:
    ending = {"D": "n", "G": "r"}.get(case, "")
    return _FIXED[kind] + ending, _STRONG
  return "", _STRONG


def _possessive(owner: Phrase) -> str:
  """Returns the possessive without ending, after the owner's person and gender."""
  if owner.first_person:
    return "unser" if owner.plural else "mein"
  return "ihr" if owner.plural or owner.gender == "f" else "sein"


def prepositional(preposition: str, phrase: Phrase, case: str) -> str:
  """Returns preposition and phrase, contracted where German does ("im", "zur")."""
  text = f"{preposition} {noun_phrase(phrase, case)}"
  if phrase.determiner != "the" or phrase.noun is None or phrase.is_pronoun:
    return text
  first = " ".join(text.split(" ", 2)[:2])
  return text.replace(first, _CONTRACTED.get(first, first), 1)
