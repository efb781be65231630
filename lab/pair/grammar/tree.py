"""The syntax trees of both languages: phrases and clauses.

A phrase has the meaning only: `english` and `german` determine gender, case and order.
Rows are the rows of tables/*.tsv.
"""

import dataclasses
from typing import Any, NamedTuple

from lab.pair.grammar import words

Row = Any


@dataclasses.dataclass(slots=True, eq=False)
class Phrase:
  """A noun phrase, a name, or a pronoun.

  Attributes:
    noun: the head, which may be a name; or None.
    pronoun_of: the phrase that the pronoun refers to.
    person: "1" (I), "1p" (we), or "n" (the "it" of the weather).
    plural: whether the phrase is plural.
    determiner: a name in determiners.tsv.
    owner: the owner, for the determiners my and 's.
    count: the number, for the determiner number.
    adjectives: the adjectives before the noun, in order.
    of: a genitive ("of the teacher").
    relative: a relative clause with a gap for the phrase.
    is_woman: whether a role means a woman; None before the first pronoun.
  """

  noun: Row = None
  pronoun_of: "Phrase | None" = None
  person: str = ""
  plural: bool = False
  determiner: str = "the"
  owner: "Phrase | None" = None
  count: "Adjunct | None" = None
  adjectives: tuple[Row, ...] = ()
  of: "Phrase | None" = None
  relative: "Clause | None" = None
  is_woman: bool | None = None

  @property
  def head(self) -> "Phrase":
    """The phrase, or the phrase that a pronoun refers to."""
    return self.pronoun_of.head if self.pronoun_of else self

  @property
  def classes(self) -> frozenset[str]:
    """The noun's classes; "I" and "we" are people."""
    noun = self.head.noun
    return noun.classes if noun else frozenset(("human", "person"))

  @property
  def is_pronoun(self) -> bool:
    """Whether the phrase is a pronoun."""
    return self.pronoun_of is not None or bool(self.person)

  @property
  def is_definite(self) -> bool:
    """Whether a German object precedes the adverbials."""
    return self.is_pronoun or bool(words.DETERMINERS[self.determiner].definite)

  @property
  def gender(self) -> str:
    """The column of German endings: m, f, n, or p for plural."""
    head = self.head
    if head.plural:
      return "p"
    return "f" if head.is_woman else head.noun.gender

  @property
  def pronoun(self) -> Row:
    """The German pronoun; see `en_pronoun` for English."""
    return words.PRONOUNS[self.head.person or self.gender]

  @property
  def en_pronoun(self) -> Row:
    """The English pronoun: "it" for a singular phrase that is not human."""
    is_it = not self.head.plural and "human" not in self.classes
    return words.PRONOUNS["n"] if is_it else self.pronoun


class Adjunct(NamedTuple):
  """Words of a clause, or a preposition with a phrase.

  Attributes:
    en: the English words.
    de: the German words.
    phrase: the phrase after the words, or None.
    case: the German case of the phrase.
  """

  en: str
  de: str
  phrase: Phrase | None = None
  case: str = ""


@dataclasses.dataclass(slots=True, eq=False)
class Clause:
  """A clause.

  Attributes:
    verb: the verb. "be" has a `predicate`.
    subject: the subject, which is silent in infinitive clauses.
    tense: a tense, which may have a modal verb.
    accusative: the direct object.
    dative: the indirect object.
    prepositional: the object of the verb's preposition.
    predicate: an adjective, or a comparative with "than".
    goal: the place that the verb needs.
    manner: the adverbial of manner.
    place: the adverbial of place.
    time: the adverbial of time.
    often: the adverbial of frequency, before the English verb.
    is_first: whether the time opens the clause.
    is_negated: whether the clause is negated.
    gap: the silent part: the head of a relative clause, or the unknown of a question.
  """

  verb: Row
  subject: Phrase
  tense: Row
  accusative: Phrase | None = None
  dative: Phrase | None = None
  prepositional: Adjunct | None = None
  predicate: Adjunct | None = None
  goal: Adjunct | None = None
  manner: Adjunct | None = None
  place: Adjunct | None = None
  time: Adjunct | None = None
  often: Adjunct | None = None
  is_first: bool = False
  is_negated: bool = False
  gap: str = ""

  def said(self, role: str) -> "Phrase | Adjunct | None":
    """Returns a part, or None if the part is the gap."""
    return None if role == self.gap else getattr(self, role)

  def form(self, forms: str, actor: Phrase) -> str:
    """Returns a tense's form for this verb, which depends on the actor's person."""
    options = forms.format(v=self.verb).split("/")
    return options[actor.pronoun.person % len(options)]
