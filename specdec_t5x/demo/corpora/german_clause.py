"""Writes trees in German: the verb's two places, and the order between them.

A German clause is: opening, finite verb, middle field, rest of the verb, what is put
after it. In a subordinate clause the finite verb is the last of the verb. The middle
field orders pronouns, definite objects, time, manner, place; an indefinite object
comes after the place. A relative clause whose noun is last in the middle field moves
behind the verb.

Words are gathered in lists where "," marks a comma that `_join` writes or drops.
"""

import re

from specdec_t5x.demo.corpora import german
from specdec_t5x.demo.corpora.tree import Clause, Link, Phrase, Relative

_PRESENT = {
  "sein": ("ist", "bin", "sind"),
  "haben": ("hat", "habe", "haben"),
  "wissen": ("weiß", "weiß", "wissen"),
  "can": ("kann", "kann", "können"),
  "must": ("muss", "muss", "müssen"),
  "want": ("will", "will", "wollen"),
  "should": ("soll", "soll", "sollen"),
  "may": ("darf", "darf", "dürfen"),
  "will": ("wird", "werde", "werden"),
}
_PAST = {
  "sein": ("war", "war", "waren"),
  "haben": ("hatte", "hatte", "hatten"),
  "can": ("konnte", "konnte", "konnten"),
  "must": ("musste", "musste", "mussten"),
  "want": ("wollte", "wollte", "wollten"),
  "may": ("durfte", "durfte", "durften"),
}
_QUESTION_WORDS = {
  "why": "warum",
  "when": "wann",
  "where": "wo",
  "who": "wer",
  "what": "was",
  "": "",
}


def sentence(clause: Clause, question: str | None = None) -> str:
  """Returns a whole sentence; the arguments are those of `english.sentence`."""
  if question is None:
    words = statement(clause)
  else:
    # The gap is asked for, so it is not said; a statement's verb comes second anyway.
    gap = {"who": clause.subject, "what": clause.accusative}.get(question)
    subject = [] if question == "who" else _subject(clause)
    finite, middle, rest, after = _parts(clause, gap)
    inverted = _behind_verb(clause, subject, middle)
    words = [_QUESTION_WORDS[question], *finite, *inverted, *rest, *after]
  return _join(words) + ("." if question is None else "?")


def statement(clause: Clause) -> list[str]:
  """Returns a main clause: what opens it, then the finite verb."""
  subject = _subject(clause)
  finite, middle, rest, after = _parts(clause, None)
  if clause.opening is not None:
    opening = [*_link(clause.opening), ","]
    return [*opening, *finite, *_behind_verb(clause, subject, middle), *rest, *after]
  if clause.time_first:
    inverted = _behind_verb(clause, subject, middle)
    return [clause.time.de, *finite, *inverted, *rest, *after]
  return [*subject, *finite, *middle, *rest, *after]


def _behind_verb(clause: Clause, subject: list[str], middle: list[str]) -> list[str]:
  """Returns subject and middle field; a reflexive goes before a subject's noun."""
  reflexive = clause.verb is not None and "r" in clause.verb.marks
  if reflexive and subject and not clause.subject.is_pronoun:
    return [middle[0], *subject, *middle[1:]]
  return [*subject, *middle]


def subordinate(clause: Clause, gap: Phrase | None = None) -> list[str]:
  """Returns a clause with its verb last, without conjunction; `gap` is not said."""
  subject = [] if clause.subject is gap is not None else _subject(clause)
  finite, middle, rest, after = _parts(clause, gap, verb_last=True)
  return [*subject, *middle, *rest, *finite, *after]


def infinitive(clause: Clause) -> list[str]:
  """Returns a clause of "zu" with the infinitive, separable prefixes around it."""
  middle, _ = _middle(clause, None)
  verb = clause.verb
  if verb.prefix:
    return [*middle, f"{verb.prefix}zu{verb.infinitive}"]
  return [*middle, "zu", verb.infinitive]


def _parts(
  clause: Clause, gap: Phrase | None, verb_last: bool = False
) -> tuple[list[str], list[str], list[str], list[str]]:
  """Returns finite verb, middle field, rest of the verb, and what comes after."""
  finite, rest = _verb(clause)
  verb = clause.verb
  if verb_last and not rest and verb is not None and verb.prefix:
    finite = verb.prefix + finite
  elif not rest and verb is not None and verb.prefix:
    rest = [verb.prefix]
  middle, moved = _middle(clause, gap)
  if not rest and not verb_last:
    middle, moved = [*middle, *moved], []
  after = list(moved)
  for link in clause.links:
    after += _link(link)
  return [finite], middle, rest, after


def _verb(clause: Clause) -> tuple[str, list[str]]:
  """Returns the finite verb and the verbs that stay at the end."""
  person = _person(clause)
  verb = clause.verb
  infinitive_ = "sein" if verb is None else verb.prefix + verb.infinitive
  if clause.modal:
    forms = _PAST if clause.tense == "past" else _PRESENT
    # "must not" forbids: darf nicht. "did not have to" is musste nicht.
    forbids = clause.modal == "must" and clause.negated and clause.tense != "past"
    return forms["may" if forbids else clause.modal][person], [infinitive_]
  if verb is None:
    if clause.tense == "pluperfect":
      return _PAST["sein"][person], ["gewesen"]
    return (_PAST if clause.tense == "past" else _PRESENT)["sein"][person], []
  if clause.tense == "past":
    return _PRESENT[verb.auxiliary][person], [verb.participle]
  if clause.tense == "pluperfect":
    return _PAST[verb.auxiliary][person], [verb.participle]
  if verb.infinitive in _PRESENT:
    return _PRESENT[verb.infinitive][person], []
  first = f"{verb.infinitive.removesuffix('n').removesuffix('e')}e"
  return (verb.third, first, verb.infinitive)[person], []


def _nominative(clause: Clause) -> Phrase | None:
  """Returns what the verb agrees with: "gefallen" has the English object as subject."""
  swapped = clause.verb is not None and "g" in clause.verb.marks
  return clause.accusative if swapped else clause.subject


def _person(clause: Clause) -> int:
  """Returns the column of the verb tables: third singular, first singular, plural."""
  subject = _nominative(clause)
  if subject is None:
    return 0
  head = subject.head
  if head.plural or head.members:
    return 2
  return 1 if head.first_person else 0


def _subject(clause: Clause) -> list[str]:
  """Returns what stands where subjects stand, its relative clause included."""
  if clause.subject is None:
    return ["es"]
  if _nominative(clause) is clause.subject:
    return [*_phrase(clause.subject, "N"), *_relative(clause.subject)]
  # The one who likes is in the dative, and what is liked follows as the subject.
  return [*_phrase(clause.subject, "D"), *_relative(clause.subject)]


def _phrase(phrase: Phrase, case: str) -> list[str]:
  return [german.noun_phrase(phrase, case)]


def _relative(phrase: Phrase) -> list[str]:
  return relative(phrase, phrase.relative) if phrase.relative is not None else []


def _middle(clause: Clause, gap: Phrase | None) -> tuple[list[str], list[str]]:
  """Returns the middle field, and the relative clause that moves behind the verb."""
  pronouns, definite, indefinite = _sorted_objects(clause, gap)
  time = [clause.time.de] if clause.time and not clause.time_first else []
  manner = [clause.manner.de] if clause.manner else []
  place = [clause.place.de] if clause.place else []
  says_no = any(phrase.determiner == "no" for phrase, _ in indefinite)
  not_ = ["nicht"] if clause.negated and not says_no else []
  words = list(pronouns)
  last = None
  for phrase, case in definite:
    words += [*_phrase(phrase, case), *_relative(phrase)]
    last = phrase
  tail = [*time, *place, *manner] if indefinite or not_ else [*time, *manner, *place]
  words += tail
  for phrase, case in indefinite:
    words += [*_phrase(phrase, case), *_relative(phrase)]
    last = phrase
  end = [*not_, *_late(clause, gap)]
  if last is None or last.relative is None or end or (tail and not indefinite):
    return [*words, *end], []
  moved = _relative(last)
  return words[: -len(moved)], moved


def _sorted_objects(
  clause: Clause, gap: Phrase | None
) -> tuple[list[str], list[tuple[Phrase, str]], list[tuple[Phrase, str]]]:
  """Returns pronouns as words, then definite and indefinite objects with their cases.

  Pronouns have the accusative first, other objects the dative.
  """
  verb = clause.verb
  if verb is None:
    return [], [], []
  pronouns = [german.reflexive(clause.subject)] if "r" in verb.marks else []
  direct_case = "N" if "g" in verb.marks else "A"
  objects = [(clause.dative, "D"), (clause.accusative, direct_case)]
  objects = [(p, c) for p, c in objects if p is not None and p is not gap]
  pronouns += [german.pronoun(p, c) for p, c in reversed(objects) if p.is_pronoun]
  full = [(p, c) for p, c in objects if not p.is_pronoun]
  definite = [(p, c) for p, c in full if p.definite or c == "N"]
  return pronouns, definite, [o for o in full if o not in definite]


def _late(clause: Clause, gap: Phrase | None) -> list[str]:
  """Returns what stays next to the end: prepositional object, direction, predicate."""
  words = []
  phrase = clause.prepositional
  if phrase is not None and phrase is not gap:
    _, preposition, case = clause.verb.preposition
    words.append(german.prepositional(preposition, phrase, case))
  if clause.direction:
    words.append(clause.direction.de)
  if clause.predicate is not None:
    if clause.than is None:
      words.append(clause.predicate.de)
    else:
      than = german.noun_phrase(clause.than, "N")
      words.append(f"{clause.predicate.more[1]} als {than}")
  return words


def relative(phrase: Phrase, clause: Relative) -> list[str]:
  """Returns a relative clause between commas."""
  if clause.role == "whose":
    owned = clause.gap
    pronoun = f"{german.relative_pronoun(phrase, 'G')} {german.noun_phrase(owned, 'N')}"
  elif clause.role == "prepositional":
    _, preposition, case = clause.clause.verb.preposition
    pronoun = f"{preposition} {german.relative_pronoun(phrase, case)}"
  else:
    case = {"subject": "N", "accusative": "A", "dative": "D"}[clause.role]
    pronoun = german.relative_pronoun(phrase, case)
  return [",", pronoun, *subordinate(clause.clause, clause.gap), ","]


def _link(link: Link) -> list[str]:
  """Returns a linked clause with its conjunction, between commas where German wants."""
  if link.kind == "sub":
    body = [link.de, *subordinate(link.clause)]
  elif link.kind in ("purpose", "infinitive"):
    body = [*([link.de] if link.de else []), *infinitive(link.clause)]
  elif link.kind == "inverted":
    finite, middle, rest, after = _parts(link.clause, None)
    inverted = _behind_verb(link.clause, _subject(link.clause), middle)
    return [",", link.de, *finite, *inverted, *rest, *after]
  else:
    comma = [","] if link.comma else []
    return [*comma, link.de, *statement(link.clause)]
  return [",", *body, ","]


def _join(words: list[str]) -> str:
  """Joins words and comma marks, without doubled commas or one at the end."""
  text = " ".join(word for word in words if word)
  text = re.sub(r"( ,)+", ",", text).strip(", ")
  return text[0].upper() + text[1:]
