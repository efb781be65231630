"""Golden sentences, the German checked by hand."""

import pytest

from specdec_t5x.demo.corpora import english, german, words
from specdec_t5x.demo.corpora.clauses import prepositional
from specdec_t5x.demo.corpora.tree import Adjunct, Clause, Phrase

ADJECTIVES = {row.en: row for group in words.ADJECTIVES.values() for row in group}
TENSES = [row for group in words.TENSES.values() for row in group]


def name(en):
  return Phrase(noun=words.BY_ENGLISH[en], determiner="name")


def np(noun, determiner="the", adjectives="", **fields):
  chosen = tuple(ADJECTIVES[word] for word in adjectives.split())
  noun = words.BY_ENGLISH[noun]
  return Phrase(noun=noun, determiner=determiner, adjectives=chosen, **fields)


def it(phrase):
  return Phrase(pronoun_of=phrase)


def say(infinitive, subject, what=None, *, tense="past", on=None, **fields):
  """Returns a clause: `what` is the direct object, `on` is the preposition's."""
  verb = next(v for v in words.VERBS if v.prefix + v.infinitive == infinitive)
  is_be = "be" in verb.marks
  row = next(t for t in TENSES if t.name == tense and ("be" in t.needs) == is_be)
  after = prepositional(verb, on) if on else None
  return Clause(verb, subject, row, what, prepositional=after, **fields)


def be(subject, adjective, **fields):
  row = ADJECTIVES[adjective]
  return say("sein", subject, predicate=Adjunct(row.en, row.de), **fields)


def about(noun, clause, gap):
  """Returns a phrase with a relative clause; `clause` takes what fills the gap."""
  phrase = np(noun)
  phrase.relative = clause(it(phrase))
  phrase.relative.gap = gap
  return phrase


ANNA, PETER, WEBER = name("Anna"), name("Peter"), name("Mr Weber")
JAN, OSKAR, PRESENT = name("Jan"), name("Oskar"), np("present")
I, WE = Phrase(person="1"), Phrase(person="1p", plural=True)  # noqa: E741
RAIN = say("regnen", Phrase(person="n"))
MAN, WOMAN = np("man", "the", "old"), np("teacher", is_woman=True)
TEACHER, MACHINE, ENGINEER = np("teacher"), np("machine"), np("engineer")
STUDENT, DOCTORS = np("student", "a", "young"), np("doctor", plural=True)
GUESTS, SONGS = np("guest", plural=True), np("song", plural=True)
PROBLEM, DOG = np("problem", "a", "difficult"), np("dog", of=np("neighbour"))
COUNT = Adjunct("twenty-three", "dreiundzwanzig")
BOOKS = np("book", "number", "red", plural=True, count=COUNT)
RING = np("ring", "'s", "red", owner=ANNA)
PRICE = Adjunct("for 4.50 euros", "für 4,50 Euro")
QUICKLY = Adjunct("quickly", "schnell")
VIENNA = Adjunct("in Vienna", "in Wien")
YEARS = Adjunct("for three years", "seit drei Jahren")
PARK = Adjunct("in", "in", np("park"), "D")
CUPBOARD = Adjunct("in", "in", np("cupboard"), "A")
STATION = Adjunct("to", "zu", np("station"), "D")
CHEAPER = Adjunct("cheaper than", "billiger als", np("bicycle", "the", "new"), "N")
HALF = {"time": Adjunct("at half past seven", "um halb acht")}
YESTERDAY = {"time": Adjunct("yesterday", "gestern")}
FIRST = {**YESTERDAY, "is_first": True}
MET = about("student", lambda gap: say("treffen", ANNA, gap), "accusative")
DEAR = about("book", lambda gap: be(gap, "expensive"), "subject")
HELPED = about("woman", lambda gap: say("helfen", I, dative=gap), "dative")
AWAITED = about("man", lambda gap: say("warten", WE, on=gap), "prepositional")
LIKED = about("film", lambda gap: say("gefallen", PETER, gap), "accusative")
CLAUSES = """
Anna bought the old book yesterday. | Anna hat das alte Buch gestern gekauft.
Yesterday, Anna bought an old lamp. | Gestern hat Anna eine alte Lampe gekauft.
Mr Weber gets up at half past seven. | Herr Weber steht um halb acht auf.
The old man gave a young student his key. \
| Der alte Mann hat seinen Schlüssel einem jungen Studenten gegeben.
The doctors had to explain a difficult problem to Mr Weber. \
| Die Ärzte mussten Herrn Weber ein schwieriges Problem erklären.
The child did not read a letter. | Das Kind hat keinen Brief gelesen.
Anna cannot call it. | Anna kann ihn nicht anrufen.
Anna saw twenty-three red books in the park yesterday. \
| Anna hat gestern im Park dreiundzwanzig rote Bücher gesehen.
Peter thanked his boss. | Peter hat seinem Chef gedankt.
The teacher likes the songs. | Dem Lehrer gefallen die Lieder.
Peter has lived in Vienna for three years. | Peter wohnt seit drei Jahren in Wien.
This car was cheaper than the new bicycle. \
| Dieses Auto war billiger als das neue Fahrrad.
Yesterday, the doctors complained about the dog of the neighbour. \
| Gestern haben sich die Ärzte über den Hund des Nachbarn beschwert.
Anna put a shirt in the cupboard quickly. \
| Anna hat schnell ein Hemd in den Schrank gelegt.
A singer will buy Anna's red ring for 4.50 euros. \
| Ein Sänger wird Annas roten Ring für 4,50 Euro kaufen.
We returned it to her. | Wir haben sie ihr zurückgegeben.
The student whom Anna met sleeps. | Der Student, den Anna getroffen hat, schläft.
Yesterday, Anna bought the book that was expensive. \
| Gestern hat Anna das Buch gekauft, das teuer war.
The woman whom I helped was ill. | Die Frau, der ich geholfen habe, war krank.
The man for whom we waited arrived. \
| Der Mann, auf den wir gewartet haben, ist angekommen.
I saw the film that Peter liked. \
| Ich habe den Film gesehen, der Peter gefallen hat.
"""
TREES = [
  say("kaufen", ANNA, np("book", "the", "old"), **YESTERDAY),
  say("kaufen", ANNA, np("lamp", "a", "old"), **FIRST),
  say("aufstehen", WEBER, tense="present", **HALF),
  say("geben", MAN, np("key", "my", owner=MAN), dative=STUDENT),
  say("erklären", DOCTORS, PROBLEM, tense="had to", dative=WEBER),
  say("lesen", np("child"), np("letter", "no"), is_negated=True),
  say("anrufen", ANNA, it(np("dog")), tense="can", is_negated=True),
  say("sehen", ANNA, BOOKS, place=PARK, **YESTERDAY),
  say("danken", PETER, dative=np("boss", "my", owner=PETER)),
  say("gefallen", TEACHER, SONGS, tense="present"),
  say("wohnen", PETER, tense="since", goal=VIENNA, time=YEARS),
  say("sein", np("car", "this"), predicate=CHEAPER),
  say("beschweren", DOCTORS, on=DOG, **FIRST),
  say("legen", ANNA, np("shirt", "a"), manner=QUICKLY, goal=CUPBOARD),
  say("kaufen", np("singer", "a"), RING, tense="will", manner=PRICE),
  say("zurückgeben", WE, it(MACHINE), dative=it(WOMAN)),
  say("schlafen", MET, tense="present"),
  say("kaufen", ANNA, DEAR, **FIRST),
  be(HELPED, "ill"),
  say("ankommen", AWAITED),
  say("sehen", I, LIKED),
]


@pytest.mark.parametrize(
  ("line", "tree"), zip(CLAUSES.strip().splitlines(), TREES, strict=True)
)
def test_golden_clauses(line, tree):
  said = (
    english.sentence("{a}.", {"a": tree}),
    german.sentence("{a:second}.", {"a": tree}),
  )
  assert " | ".join(said) == line


# English | German | the start of the English pattern that both are of.
SENTENCES = """
The teacher was tired because she got up at half past seven. \
| Die Lehrerin war müde, weil sie um halb acht aufgestanden ist. | {a} because
The teacher was tired because he had slept. \
| Der Lehrer war müde, weil er geschlafen hatte. | {a} because
Peter repaired the machine because it was old. \
| Peter hat die Maschine repariert, weil sie alt war. | {a} because
Jan says that he returned the present to Oskar. \
| Jan sagt, dass er Oskar das Geschenk zurückgegeben hat. | {a} that
Anna said that she wanted to pick up Peter. \
| Anna hat gesagt, dass sie Peter abholen wollte. | {a} that
I wondered whether Anna liked the songs. \
| Ich habe mich gefragt, ob Anna die Lieder gefallen haben. | {a} whether
Peter went to the station in order to pick up the guests. \
| Peter ist zum Bahnhof gegangen, um die Gäste abzuholen. | {a} in order
We tried to sell our car. | Wir haben versucht, unser Auto zu verkaufen. | {a} to
Anna invited Peter, so he looks forward to the party. \
| Anna hat Peter eingeladen, deshalb freut er sich auf die Feier. | {a}, so
The engineer is rich, but he is not happy. \
| Der Ingenieur ist reich, aber er ist nicht glücklich. | {a}, but
Although it rained, the dog slept. \
| Obwohl es geregnet hat, hat der Hund geschlafen. | although
Why did Anna buy the book? | Warum hat Anna das Buch gekauft? | why
Who bought the book? | Wer hat das Buch gekauft? | who
What did Anna buy? | Was hat Anna gekauft? | what
"""
NOW = {"tense": "present"}
PAIRS = [
  (be(WOMAN, "tired"), say("aufstehen", it(WOMAN), **HALF)),
  (be(TEACHER, "tired"), say("schlafen", it(TEACHER), tense="pluperfect")),
  (say("reparieren", PETER, MACHINE), be(it(MACHINE), "old")),
  (say("sagen", JAN, **NOW), say("zurückgeben", it(JAN), PRESENT, dative=OSKAR)),
  (say("sagen", ANNA), say("abholen", it(ANNA), PETER, tense="wanted")),
  (say("fragen", I), say("gefallen", ANNA, SONGS)),
  (say("gehen", PETER, goal=STATION), say("abholen", PETER, GUESTS)),
  (say("versuchen", WE), say("verkaufen", WE, np("car", "my", owner=WE))),
  (say("einladen", ANNA, PETER), say("freuen", it(PETER), on=np("party"), **NOW)),
  (be(ENGINEER, "rich", **NOW), be(it(ENGINEER), "happy", is_negated=True, **NOW)),
  (RAIN, say("schlafen", np("dog"))),
  (say("kaufen", ANNA, np("book")),),
  (say("kaufen", ANNA, np("book"), gap="subject"),),
  (say("kaufen", ANNA, np("book"), gap="accusative"),),
]


@pytest.mark.parametrize(
  ("line", "trees"), zip(SENTENCES.strip().splitlines(), PAIRS, strict=True)
)
def test_golden_sentences(line, trees):
  en, de, start = line.split(" | ")
  pattern = next(row for row in words.PATTERNS if row.en.startswith(start))
  named = dict(zip("abc", trees, strict=False))
  assert english.sentence(pattern.en, named) == en
  assert german.sentence(pattern.de, named) == de
