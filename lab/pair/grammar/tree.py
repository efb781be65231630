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
  """A noun phrase, a name, or a pronoun."""

  noun: Row = None  # The head, which may be a name; or None.
  pronoun_of: "Phrase | None" = None  # The phrase that the pronoun refers to.
  person: str = ""  # "1" (I), "1p" (we), or "n" (the "it" of the weather).
  plural: bool = False  # Whether the phrase is plural.
  determiner: str = "the"  # A name in determiners.tsv.
  owner: "Phrase | None" = None  # The owner, for the determiners my and 's.
  count: "Adjunct | None" = None  # The number, for the determiner number.
  adjectives: tuple[Row, ...] = ()  # The adjectives before the noun, in order.
  of: "Phrase | None" = None  # A genitive ("of the teacher").
  relative: "Clause | None" = None  # A relative clause with a gap for the phrase.
  # Whether a role means a woman; None before the first pronoun.
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
  """Words of a clause, or a preposition with a phrase."""

  en: str  # The English words.
  de: str  # The German words.
  phrase: Phrase | None = None  # The phrase after the words, or None.
  case: str = ""  # The German case of the phrase.


@dataclasses.dataclass(slots=True, eq=False)
class Clause:
  """A clause."""

  verb: Row  # The verb. "be" has a `predicate`.
  subject: Phrase  # The subject, which is silent in infinitive clauses.
  tense: Row  # A tense, which may have a modal verb.
  accusative: Phrase | None = None  # The direct object.
  dative: Phrase | None = None  # The indirect object.
  prepositional: Adjunct | None = None  # The object of the verb's preposition.
  predicate: Adjunct | None = None  # An adjective, or a comparative with "than".
  goal: Adjunct | None = None  # The place that the verb needs.
  manner: Adjunct | None = None  # The adverbial of manner.
  place: Adjunct | None = None  # The adverbial of place.
  time: Adjunct | None = None  # The adverbial of time.
  often: Adjunct | None = None  # The adverbial of frequency, before the English verb.
  is_first: bool = False  # Whether the time opens the clause.
  is_negated: bool = False  # Whether the clause is negated.
  # The silent part: the head of a relative clause, or the unknown of a question.
  gap: str = ""

  def said(self, role: str) -> "Phrase | Adjunct | None":
    """Returns a part, or None if the part is the gap."""
    return None if role == self.gap else getattr(self, role)

  def form(self, forms: str, actor: Phrase) -> str:
    """Returns a tense's form for this verb, which depends on the actor's person."""
    options = forms.format(v=self.verb).split("/")
    return options[actor.pronoun.person % len(options)]
