"""The trees that both languages are written from: phrases and clauses.

A phrase says what is talked about, not how: gender, case and order belong to
`english` and `german`. Rows are those of tables/*.tsv.
"""

import dataclasses
from typing import Any, NamedTuple

from specdec_t5x.demo.corpora import words

Row = Any


@dataclasses.dataclass(slots=True, eq=False)
class Phrase:
  """A noun phrase, a name, or a pronoun.

  Attributes:
    noun: the head, a name perhaps; or None.
    pronoun_of: the phrase that a pronoun stands for.
    person: "1" (I), "1p" (we), or "n" (the "it" of the weather).
    plural: whether the phrase is plural.
    determiner: a name of determiners.tsv.
    owner: whose it is, for the determiners my and 's.
    count: the number, for the determiner number.
    adjectives: before the noun, in order.
    of: a genitive ("of the teacher").
    relative: a relative clause, whose gap the phrase fills.
    is_woman: whether a role means a woman; None where no pronoun tells.
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
    """The phrase itself, or what a pronoun stands for."""
    return self.pronoun_of.head if self.pronoun_of else self

  @property
  def classes(self) -> frozenset[str]:
    """The noun's classes; "I" and "we" are people."""
    noun = self.head.noun
    return noun.classes if noun else frozenset(("human", "person"))

  @property
  def is_pronoun(self) -> bool:
    """Whether it is said as a pronoun."""
    return self.pronoun_of is not None or bool(self.person)

  @property
  def is_definite(self) -> bool:
    """Whether a German object stands before the adverbials."""
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
    """The pronoun; the English one may be another."""
    return words.PRONOUNS[self.head.person or self.gender]

  @property
  def en_pronoun(self) -> Row:
    """The English pronoun: "it" for what is not human, nor several."""
    is_it = not self.head.plural and "human" not in self.classes
    return words.PRONOUNS["n"] if is_it else self.pronoun


class Adjunct(NamedTuple):
  """Words of a clause; before a phrase they are its prepositions.

  Attributes:
    en: the English words.
    de: the German words.
    phrase: what follows them, or None.
    case: the German case of that phrase.
  """

  en: str
  de: str
  phrase: Phrase | None = None
  case: str = ""


@dataclasses.dataclass(slots=True, eq=False)
class Clause:
  """A clause.

  Attributes:
    verb: with "be", `predicate` is what the subject is.
    subject: the subject; not said in infinitive clauses.
    tense: a tense, perhaps with a modal verb.
    accusative: the direct object.
    dative: the indirect object.
    prepositional: the object of the verb's preposition.
    predicate: an adjective, or its comparative with "than".
    goal: the place that the verb needs.
    manner: how.
    place: where.
    time: when.
    often: how often, before the English verb.
    is_first: whether the time opens the clause.
    is_negated: whether the clause is negated.
    gap: the part that is not said: in a relative clause what it is about, in a
      question what is asked for.
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
    """Returns a part, or None where it is the gap."""
    return None if role == self.gap else getattr(self, role)

  def form(self, forms: str, actor: Phrase) -> str:
    """Returns a tense's form for this verb; one of three by who acts."""
    options = forms.format(v=self.verb).split("/")
    return options[actor.pronoun.person % len(options)]
