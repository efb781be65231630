"""Golden sentences, the German checked by hand."""

import pytest

from specdec_t5x.demo.corpora import english, german, words
from specdec_t5x.demo.corpora.clauses import prepositional
from specdec_t5x.demo.corpora.tree import Adjunct, Clause, Phrase

ADJECTIVES = {row.en: row for group in words.ADJECTIVES.values() for row in group}


def name(en):
  return Phrase(noun=words.BY_ENGLISH[en], determiner="name")


ANNA, PETER, WEBER = name("Anna"), name("Peter"), name("Mr Weber")
I, WE = Phrase(person="1"), Phrase(person="1p", plural=True)  # noqa: E741
YESTERDAY = Adjunct("yesterday", "gestern")
HALF = Adjunct("at half past seven", "um halb acht")


def np(noun, determiner="the", adjectives="", **fields):
  chosen = tuple(ADJECTIVES[word] for word in adjectives.split())
  noun = words.BY_ENGLISH[noun]
  return Phrase(noun=noun, determiner=determiner, adjectives=chosen, **fields)


def it(phrase):
  return Phrase(pronoun_of=phrase)


def say(infinitive, subject, tense="past", on=None, **fields):
  """Returns a clause with the verb; `on` is the object of its preposition."""
  verb = next(v for v in words.VERBS if v.prefix + v.infinitive == infinitive)
  rows = [row for group in words.TENSES.values() for row in group]
  is_be = "be" in verb.marks and tense in ("past", "present")
  said = next(r for r in rows if r.name == tense and ("be" in r.needs) == is_be)
  prepositional_ = prepositional(verb, on) if on else None
  return Clause(verb, subject, said, prepositional=prepositional_, **fields)


def be(subject, adjective, tense="past", **fields):
  row = ADJECTIVES[adjective]
  return say("sein", subject, tense, predicate=Adjunct(row.en, row.de), **fields)


def about(noun, clause, gap, **fields):
  """Returns a phrase with a relative clause; `clause` takes what fills the gap."""
  phrase = np(noun, **fields)
  phrase.relative = clause(it(phrase))
  phrase.relative.gap = gap
  return phrase


def simple():
  """Objects, order and agreement, in one clause."""
  book, lamp = np("book", adjectives="old"), np("lamp", "a", "expensive")
  yield (
    say("kaufen", ANNA, accusative=book, time=YESTERDAY),
    "Anna bought the old book yesterday.",
    "Anna hat das alte Buch gestern gekauft.",
  )
  yield (
    say("kaufen", ANNA, accusative=lamp, time=YESTERDAY, is_first=True),
    "Yesterday, Anna bought an expensive lamp.",
    "Gestern hat Anna eine teure Lampe gekauft.",
  )
  yield (
    say("aufstehen", WEBER, "present", time=HALF),
    "Mr Weber gets up at half past seven.",
    "Herr Weber steht um halb acht auf.",
  )
  told = np("man", adjectives="old")
  student, his = np("student", "a", "young"), np("key", "my", owner=told)
  yield (
    say("geben", told, dative=student, accusative=his),
    "The old man gave a young student his key.",
    "Der alte Mann hat seinen Schlüssel einem jungen Studenten gegeben.",
  )
  problem, doctors = np("problem", "a", "difficult"), np("doctor", plural=True)
  yield (
    say("erklären", doctors, "had to", dative=WEBER, accusative=problem),
    "The doctors had to explain a difficult problem to Mr Weber.",
    "Die Ärzte mussten Herrn Weber ein schwieriges Problem erklären.",
  )
  yield (
    say("lesen", np("child"), accusative=np("letter", "no"), is_negated=True),
    "The child did not read a letter.",
    "Das Kind hat keinen Brief gelesen.",
  )
  yield (
    say("anrufen", ANNA, "can", accusative=it(np("dog")), is_negated=True),
    "Anna cannot call it.",
    "Anna kann ihn nicht anrufen.",
  )
  count = Adjunct("twenty-three", "dreiundzwanzig")
  books = np("book", "number", "red", plural=True, count=count)
  park = Adjunct("in", "in", np("park"), "D")
  yield (
    say("sehen", ANNA, accusative=books, time=YESTERDAY, place=park),
    "Anna saw twenty-three red books in the park yesterday.",
    "Anna hat gestern im Park dreiundzwanzig rote Bücher gesehen.",
  )
  yield (
    say("danken", PETER, dative=np("boss", "my", owner=PETER)),
    "Peter thanked his boss.",
    "Peter hat seinem Chef gedankt.",
  )
  songs, teacher = np("song", plural=True), np("teacher", adjectives="old")
  yield (
    say("gefallen", teacher, "present", accusative=songs),
    "The old teacher likes the songs.",
    "Dem alten Lehrer gefallen die Lieder.",
  )
  vienna = Adjunct("in Vienna", "in Wien")
  years = Adjunct("for three years", "seit drei Jahren")
  yield (
    say("wohnen", PETER, "since", goal=vienna, time=years),
    "Peter has lived in Vienna for three years.",
    "Peter wohnt seit drei Jahren in Wien.",
  )
  more = Adjunct("more expensive than", "teurer als", np("bicycle", "the", "new"), "N")
  yield (
    say("sein", np("car", "this"), "present", predicate=more),
    "This car is more expensive than the new bicycle.",
    "Dieses Auto ist teurer als das neue Fahrrad.",
  )
  dog, we = (
    np("dog", of=np("neighbour", adjectives="old")),
    np("colleague", plural=True),
  )
  yield (
    say("beschweren", we, on=dog, time=YESTERDAY, is_first=True),
    "Yesterday, the colleagues complained about the dog of the old neighbour.",
    "Gestern haben sich die Kollegen über den Hund des alten Nachbarn beschwert.",
  )
  cupboard = Adjunct("in", "in", np("cupboard"), "A")
  shirt, quickly = np("shirt", "a"), Adjunct("quickly", "schnell")
  yield (
    say("legen", ANNA, accusative=shirt, manner=quickly, goal=cupboard),
    "Anna put a shirt in the cupboard quickly.",
    "Anna hat schnell ein Hemd in den Schrank gelegt.",
  )
  price = Adjunct("for 45.50 euros", "für 45,50 Euro")
  ring, singer = np("ring", "'s", "red", owner=ANNA), np("singer", "a")
  yield (
    say("kaufen", singer, "will", accusative=ring, manner=price),
    "A singer will buy Anna's red ring for 45.50 euros.",
    "Ein Sänger wird Annas roten Ring für 45,50 Euro kaufen.",
  )
  machine, woman = np("machine"), np("student", is_woman=True)
  yield (
    say("zurückgeben", WE, accusative=it(machine), dative=it(woman)),
    "We returned it to her.",
    "Wir haben sie ihr zurückgegeben.",
  )


def relatives():
  """Relative pronouns in all cases."""
  met = lambda gap: say("treffen", ANNA, accusative=gap)
  yield (
    say("schlafen", about("student", met, "accusative"), "present"),
    "The student whom Anna met sleeps.",
    "Der Student, den Anna getroffen hat, schläft.",
  )
  expensive = about("book", lambda gap: be(gap, "expensive"), "subject")
  yield (
    say("kaufen", ANNA, accusative=expensive, time=YESTERDAY, is_first=True),
    "Yesterday, Anna bought the book that was expensive.",
    "Gestern hat Anna das Buch gekauft, das teuer war.",
  )
  helped = lambda gap: say("helfen", I, dative=gap)
  yield (
    be(about("woman", helped, "dative"), "ill", "present"),
    "The woman whom I helped is ill.",
    "Die Frau, der ich geholfen habe, ist krank.",
  )
  waited = lambda gap: say("warten", WE, on=gap)
  yield (
    say("ankommen", about("man", waited, "prepositional")),
    "The man for whom we waited arrived.",
    "Der Mann, auf den wir gewartet haben, ist angekommen.",
  )
  liked = lambda gap: say("gefallen", PETER, "present", accusative=gap)
  yield (
    say("sehen", I, accusative=about("film", liked, "accusative")),
    "I saw the film that Peter likes.",
    "Ich habe den Film gesehen, der Peter gefällt.",
  )


@pytest.mark.parametrize("case", [*simple(), *relatives()], ids=lambda case: case[1])
def test_golden_clauses(case):
  clause, en, de = case
  assert english.sentence("{a}.", {"a": clause}) == en
  assert german.sentence("{a:second}.", {"a": clause}) == de


TEACHER, OTHER = np("teacher", is_woman=True), np("teacher")
MACHINE, ENGINEER, JAN = np("machine"), np("engineer"), name("Jan")
PRESENT, OSKAR, GUESTS = np("present"), name("Oskar"), np("guest", plural=True)
STATION = Adjunct("to", "zu", np("station"), "D")
RAIN = say("regnen", Phrase(person="n"))
TIRED = "{a} because {b}.", "{a:second}, weil {b:last}."
THAT = "{a} that {b}.", "{a:second}, dass {b:last}."
LINKED = [
  (
    TIRED,
    (be(TEACHER, "tired"), say("aufstehen", it(TEACHER), time=HALF)),
    "The teacher was tired because she got up at half past seven.",
    "Die Lehrerin war müde, weil sie um halb acht aufgestanden ist.",
  ),
  (
    TIRED,
    (be(OTHER, "tired"), say("aufstehen", it(OTHER), "pluperfect")),
    "The teacher was tired because he had got up.",
    "Der Lehrer war müde, weil er aufgestanden war.",
  ),
  (
    TIRED,
    (say("reparieren", PETER, accusative=MACHINE), be(it(MACHINE), "old")),
    "Peter repaired the machine because it was old.",
    "Peter hat die Maschine repariert, weil sie alt war.",
  ),
  (
    THAT,
    (
      say("sagen", JAN, "present"),
      say("zurückgeben", it(JAN), accusative=PRESENT, dative=OSKAR),
    ),
    "Jan says that he returned the present to Oskar.",
    "Jan sagt, dass er Oskar das Geschenk zurückgegeben hat.",
  ),
  (
    THAT,
    (say("sagen", ANNA), say("abholen", it(ANNA), "wanted", accusative=PETER)),
    "Anna said that she wanted to pick up Peter.",
    "Anna hat gesagt, dass sie Peter abholen wollte.",
  ),
  (
    ("{a} whether {b}.", "{a:second}, ob {b:last}."),
    (say("fragen", I), say("gefallen", ANNA, accusative=np("film", adjectives="new"))),
    "I wondered whether Anna liked the new film.",
    "Ich habe mich gefragt, ob Anna der neue Film gefallen hat.",
  ),
  (
    ("{a} in order to {b:infinitive}.", "{a:second}, um {b:zu}."),
    (say("gehen", PETER, goal=STATION), say("abholen", PETER, accusative=GUESTS)),
    "Peter went to the station in order to pick up the guests.",
    "Peter ist zum Bahnhof gegangen, um die Gäste abzuholen.",
  ),
  (
    ("{a} to {b:infinitive}.", "{a:second}, {b:zu}."),
    (say("versuchen", WE), say("verkaufen", WE, accusative=np("car", "my", owner=WE))),
    "We tried to sell our car.",
    "Wir haben versucht, unser Auto zu verkaufen.",
  ),
  (
    ("{a}, so {b}.", "{a:second}, deshalb {b:inverted}."),
    (
      say("einladen", ANNA, accusative=PETER),
      say("freuen", it(PETER), "present", on=np("party")),
    ),
    "Anna invited Peter, so he looks forward to the party.",
    "Anna hat Peter eingeladen, deshalb freut er sich auf die Feier.",
  ),
  (
    ("{a}, but {b}.", "{a:second}, aber {b:second}."),
    (
      be(ENGINEER, "rich", "present"),
      be(it(ENGINEER), "happy", "present", is_negated=True),
    ),
    "The engineer is rich, but he is not happy.",
    "Der Ingenieur ist reich, aber er ist nicht glücklich.",
  ),
  (
    ("although {a}, {b}.", "obwohl {a:last}, {b:inverted}."),
    (RAIN, say("schlafen", np("cat"))),
    "Although it rained, the cat slept.",
    "Obwohl es geregnet hat, hat die Katze geschlafen.",
  ),
  (
    ("why {a:question}?", "warum {a:inverted}?"),
    (say("kaufen", ANNA, accusative=np("book")),),
    "Why did Anna buy the book?",
    "Warum hat Anna das Buch gekauft?",
  ),
  (
    ("who {a}?", "wer {a:inverted}?"),
    (say("kaufen", ANNA, accusative=np("book"), gap="subject"),),
    "Who bought the book?",
    "Wer hat das Buch gekauft?",
  ),
  (
    ("what {a:question}?", "was {a:inverted}?"),
    (say("kaufen", ANNA, accusative=np("book"), gap="accusative"),),
    "What did Anna buy?",
    "Was hat Anna gekauft?",
  ),
]


@pytest.mark.parametrize("case", LINKED, ids=lambda case: case[2])
def test_golden_sentences(case):
  patterns, clauses, en, de = case
  named = dict(zip("abc", clauses, strict=False))
  assert english.sentence(patterns[0], named) == en
  assert german.sentence(patterns[1], named) == de
  known = [(row.en, row.de) for row in words.PATTERNS]
  assert patterns in known
