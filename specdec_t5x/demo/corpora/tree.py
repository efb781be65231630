"""The trees that both languages are written from: phrases and clauses.

A phrase says what is talked about, not how: gender, case and order belong to
`english` and `german`.
"""

import dataclasses
from typing import NamedTuple

from specdec_t5x.demo.corpora import lexicon
from specdec_t5x.demo.corpora.verbs import Verb


class Pair(NamedTuple):
  """An adverbial, the same in every sentence."""

  en: str
  de: str


@dataclasses.dataclass(slots=True, eq=False)
class Phrase:
  """A noun phrase, a name, or a pronoun.

  Attributes:
    noun: the head, or None.
    name: the person, where there is no noun.
    pronoun_of: the phrase that a pronoun stands for.
    members: the two phrases of a coordination.
    first_person: "I", or "we" where plural.
    plural: whether the phrase is plural.
    determiner: the, a, this, every, all, some, many, my (a possessive), no, number,
      or "" (bare).
    possessor: whose it is, for the determiners my and 's.
    number: the number's words, for the determiner number.
    adjectives: before the noun, in order.
    of: a genitive ("of the teacher").
    origin: where a person is from.
    relative: a relative clause.
    female: whether a role noun means a woman; told by a pronoun only.
    referenced: whether a pronoun or possessive stands for it.
  """

  noun: lexicon.Noun | None = None
  name: lexicon.Name | None = None
  pronoun_of: "Phrase | None" = None
  members: "tuple[Phrase, Phrase] | None" = None
  first_person: bool = False
  plural: bool = False
  determiner: str = "the"
  possessor: "Phrase | None" = None
  number: Pair | None = None
  adjectives: tuple[lexicon.Adjective, ...] = ()
  of: "Phrase | None" = None
  origin: lexicon.Region | None = None
  relative: "Relative | None" = None
  female: bool = False
  referenced: bool = False

  @property
  def head(self) -> "Phrase":
    """The phrase itself, or what a pronoun stands for."""
    return self.pronoun_of.head if self.pronoun_of else self

  @property
  def gender(self) -> str:
    """Grammatical gender in German, m, f or n."""
    head = self.head
    if head.noun is None:
      return head.name.gender if head.name else "m"
    return "f" if head.female else head.noun.gender

  @property
  def human(self) -> bool:
    """Whether English says "he", "she", "who"."""
    head = self.head
    return head.noun is None or "h" in head.noun.classes

  @property
  def is_pronoun(self) -> bool:
    """Whether it is realised as a pronoun."""
    return self.pronoun_of is not None or self.first_person

  @property
  def definite(self) -> bool:
    """Whether a German object stands before the adverbials."""
    return self.determiner not in ("a", "number", "some", "many", "", "no")


@dataclasses.dataclass(slots=True, eq=False)
class Clause:
  """A clause.

  Attributes:
    verb: None for "to be" with a predicate.
    subject: the subject; None in infinitive clauses, and for "it rains".
    accusative: the direct object.
    dative: the indirect object.
    prepositional: the object of the verb's preposition.
    time: when, or how often.
    time_first: whether the time opens the sentence.
    often: whether `time` is an adverb of frequency (before the English verb).
    manner: how.
    place: where.
    direction: where to.
    tense: present, progressive, past, pluperfect or since.
    modal: can, must, want, should, may, will, or "".
    negated: whether the clause is negated.
    predicate: an adjective, where `verb` is None.
    than: what the comparative is compared to.
    links: clauses that follow, each with its conjunction.
    opening: a subordinate clause that opens the sentence.
  """

  verb: Verb | None = None
  subject: Phrase | None = None
  accusative: Phrase | None = None
  dative: Phrase | None = None
  prepositional: Phrase | None = None
  time: Pair | None = None
  time_first: bool = False
  often: bool = False
  manner: Pair | None = None
  place: Pair | None = None
  direction: Pair | None = None
  tense: str = "present"
  modal: str = ""
  negated: bool = False
  predicate: lexicon.Adjective | None = None
  than: Phrase | None = None
  links: "tuple[Link, ...]" = ()
  opening: "Link | None" = None


class Link(NamedTuple):
  """A clause joined to another by a conjunction.

  Attributes:
    kind: sub (German verb last), main (verb second), inverted (verb first after the
      conjunction), purpose ("in order to"), infinitive ("to").
    en: the English conjunction, with its comma where it has one.
    de: the German conjunction, without comma.
    clause: the clause.
    comma: whether German sets a comma before the conjunction.
  """

  kind: str
  en: str
  de: str
  clause: Clause
  comma: bool = True


class Relative(NamedTuple):
  """A relative clause; `gap` is the phrase inside it that the pronoun replaces.

  Attributes:
    role: subject, accusative, dative, prepositional or whose (the subject's owner).
    clause: the clause.
    gap: the phrase of the clause that is not said, or is said with "whose".
  """

  role: str
  clause: Clause
  gap: Phrase
