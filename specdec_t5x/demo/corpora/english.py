"""Writes trees in English."""

from specdec_t5x.demo.corpora.tree import Clause, Link, Phrase, Relative

_PRONOUNS = {"m": ("he", "him", "his"), "f": ("she", "her", "her")}
_IT = ("it", "it", "its")
_THEY = ("they", "them", "their")
_FIRST = {False: ("I", "me", "my"), True: ("we", "us", "our")}
_VOWEL_SOUNDS = ("a", "e", "i", "o", "u", "hour", "honest")
_NOT_VOWEL_SOUNDS = ("uni", "use", "euro", "one")


def with_article(words: str) -> str:
  """Puts "a" or "an" before words."""
  vowel = words.startswith(_VOWEL_SOUNDS) and not words.startswith(_NOT_VOWEL_SOUNDS)
  return f"{'an' if vowel else 'a'} {words}"


def pronoun(phrase: Phrase, column: int) -> str:
  """Returns a pronoun: 0 subject, 1 object, 2 possessive."""
  head = phrase.head
  if head.first_person:
    return _FIRST[head.plural][column]
  if head.plural:
    return _THEY[column]
  return _PRONOUNS[head.gender][column] if head.human else _IT[column]


def noun_phrase(phrase: Phrase, is_object: bool = True) -> str:
  """Returns a phrase with its relative clause."""
  if phrase.is_pronoun:
    return pronoun(phrase, int(is_object))
  if phrase.members:
    return " and ".join(noun_phrase(member) for member in phrase.members)
  if phrase.name:
    words = phrase.name.en
  else:
    noun = phrase.noun.en_plural if phrase.plural else phrase.noun.en
    words = _determined(phrase, " ".join([*(a.en for a in phrase.adjectives), noun]))
  if phrase.of is not None:
    words += f" of {noun_phrase(phrase.of)}"
  if phrase.origin is not None:
    words += f" from {phrase.origin.en}"
  if phrase.relative is not None:
    words += f" {relative(phrase, phrase.relative)}"
  return words


def _determined(phrase: Phrase, words: str) -> str:
  """Puts the determiner before adjectives and noun."""
  kind = phrase.determiner
  if kind == "a":
    return words if phrase.plural else with_article(words)
  if kind == "this":
    return f"{'these' if phrase.plural else 'this'} {words}"
  if kind == "my":
    return f"{pronoun(phrase.possessor, 2)} {words}"
  if kind == "'s":
    return f"{phrase.possessor.name.en}'s {words}"
  if kind == "number":
    return f"{phrase.number.en} {words}"
  # "no" is said by the verb ("did not buy a book", "did not buy books").
  if kind == "no":
    return f"any {words}" if phrase.plural else with_article(words)
  if kind == "all":
    return f"all the {words}"
  return f"{kind} {words}" if kind else words


def relative(phrase: Phrase, clause: Relative) -> str:
  """Returns a relative clause with its pronoun."""
  who = phrase.human
  if clause.role == "whose":
    return f"whose {_statement(clause.clause, None)}"
  if clause.role == "subject":
    pronoun_ = "who" if who else "that"
  elif clause.role == "prepositional":
    before = clause.clause.verb.preposition.en
    pronoun_ = f"{before} {'whom' if who else 'which'}"
  else:
    pronoun_ = "whom" if who else "that"
  return f"{pronoun_} {_statement(clause.clause, clause.gap)}"


def sentence(clause: Clause, question: str | None = None) -> str:
  """Returns a whole sentence.

  Args:
    clause: the main clause.
    question: None for a statement, "" for a yes-no question, or a question word
      ("why"; "who" asks for the subject and "what" for the direct object).
  """
  if question is None:
    text = clause_text(clause)
  elif question == "who":
    text = f"who {_statement(clause, clause.subject)}"
  else:
    gap = clause.accusative if question == "what" else None
    text = f"{question} {_statement(clause, gap, inverted=True)}".strip()
  end = "." if question is None else "?"
  return text[0].upper() + text[1:] + end


def clause_text(clause: Clause) -> str:
  """Returns a statement with what opens it."""
  text = _statement(clause, None)
  if clause.time_first:
    text = f"{clause.time.en}, {text}"
  if clause.opening is not None:
    opening = clause.opening
    text = f"{opening.en.lstrip(', ')} {clause_text(opening.clause)}, {text}"
  return text


def _statement(clause: Clause, gap: Phrase | None, inverted: bool = False) -> str:
  """Returns subject, verb, objects, manner, place, time, and the linked clauses."""
  words = _opening_words(clause, gap, inverted)
  words += _objects(clause, gap)
  words += [part.en for part in (clause.direction, clause.manner, clause.place) if part]
  if clause.time and not clause.time_first and not clause.often:
    words.append(clause.time.en)
  text = " ".join(words)
  for link in clause.links:
    text += _link(link)
  return text


def _opening_words(clause: Clause, gap: Phrase | None, inverted: bool) -> list[str]:
  """Returns subject, adverb of frequency and verb, in their order."""
  if clause.subject is None:
    subject_words = ["it"]
  elif clause.subject is gap:
    subject_words = []
  else:
    subject_words = [noun_phrase(clause.subject, is_object=False)]
  auxiliary, main = verb_group(clause, do_support=inverted)
  often = [clause.time.en] if clause.often and clause.time else []
  if inverted:
    words = [auxiliary, *subject_words, *often, main]
  elif clause.verb is None and not clause.modal and not auxiliary:
    words = [*subject_words, main.split()[0], *often, *main.split()[1:]]
  else:
    words = [*subject_words, auxiliary, *often, main]
  return [word for word in words if word]


def _objects(clause: Clause, gap: Phrase | None) -> list[str]:
  """Returns the predicate, or the objects in English order."""
  if clause.verb is None:
    if clause.than is None:
      return [clause.predicate.en]
    return [clause.predicate.more[0], "than", noun_phrase(clause.than)]
  words = []
  direct, indirect = clause.accusative, clause.dative
  with_to = "t" in clause.verb.marks or (direct is not None and direct.is_pronoun)
  if direct is gap is not None and indirect is not None:
    with_to = True
  if indirect is not None and indirect is gap:
    indirect = None
  if indirect is not None and (direct is None or not with_to):
    words.append(noun_phrase(indirect))
  if direct is not None and direct is not gap:
    words.append(noun_phrase(direct))
  if indirect is not None and direct is not None and with_to:
    words.append(f"to {noun_phrase(indirect)}")
  if clause.prepositional is not None and clause.prepositional is not gap:
    preposition = clause.verb.preposition.en
    words.append(f"{preposition} {noun_phrase(clause.prepositional)}".strip())
  return words


def _link(link: Link) -> str:
  """Returns a linked clause with its conjunction and a leading space or comma."""
  if link.kind in ("purpose", "infinitive"):
    body = " ".join(infinitive_words(link.clause))
  else:
    body = clause_text(link.clause)
  start = link.en if link.en.startswith(",") else f" {link.en}"
  return f"{start} {body}"


def infinitive_words(clause: Clause) -> list[str]:
  """Returns the words after "to": the verb, its objects and adverbials."""
  words = [clause.verb.en[0], *_objects(clause, None)]
  words += [part.en for part in (clause.direction, clause.manner, clause.place) if part]
  return words


def verb_group(clause: Clause, do_support: bool) -> tuple[str, str]:
  """Returns (auxiliary or "", the rest of the verb), the negation in the right one."""
  subject = clause.subject
  person = "3s"
  if subject is not None and (subject.head.plural or subject.head.members):
    person = "p"
  elif subject is not None and subject.head.first_person:
    person = "1s"
  negation = " not" if clause.negated else ""
  if clause.modal:
    return _modal(clause, person, do_support)
  if clause.verb is None:
    return _be(clause.tense, person, negation, do_support)
  base, third, past, participle, gerund = clause.verb.en
  if clause.tense == "progressive":
    return f"{_be_form('present', person)}{negation}", gerund
  if clause.tense == "pluperfect":
    return f"had{negation}", participle
  if clause.tense == "since":
    return ("has" if person == "3s" else "have") + negation, participle
  if clause.negated or do_support:
    if clause.tense == "past":
      return f"did{negation}", base
    return ("does" if person == "3s" else "do") + negation, base
  if clause.tense == "past":
    return "", past
  return "", third if person == "3s" else base


def _modal(clause: Clause, person: str, do_support: bool) -> tuple[str, str]:
  base = clause.verb.en[0] if clause.verb else "be"
  past, negated = clause.tense == "past", clause.negated
  if clause.modal == "may" and past:
    return _be_form("past", person) + (" not" if negated else ""), f"allowed to {base}"
  if clause.modal in ("want", "must") and (past or clause.modal == "want"):
    plain = "have" if clause.modal == "must" else "want"
    if negated or do_support:
      present = "does" if person == "3s" else "do"
      support = "did" if past else present
      return support + (" not" if negated else ""), f"{plain} to {base}"
    if past:
      return "", f"{'had' if plain == 'have' else 'wanted'} to {base}"
    return "", f"{'wants' if person == '3s' else 'want'} to {base}"
  word = "could" if clause.modal == "can" and past else clause.modal
  if negated:
    return ("cannot" if word == "can" else f"{word} not"), base
  return word, base


def _be(tense: str, person: str, negation: str, do_support: bool) -> tuple[str, str]:
  if tense == "pluperfect":
    return f"had{negation}", "been"
  form = _be_form(tense, person) + negation
  return (form, "") if do_support else ("", form)


def _be_form(tense: str, person: str) -> str:
  if tense == "past":
    return "were" if person == "p" else "was"
  return {"3s": "is", "p": "are", "1s": "am"}[person]
