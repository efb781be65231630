"""Golden sentences, the German checked by hand: objects and relative clauses."""

import itertools

import pytest

from specdec_t5x.demo.corpora import english, german_clause
from specdec_t5x.demo.corpora.tree import Pair, Relative
from tests.demo.corpora.trees import (
  ANNA,
  PETER,
  WEBER,
  YESTERDAY,
  I,
  be,
  he,
  linked,
  np,
  say,
)


def order_and_agreement():
  teacher = np("teacher", female=True)
  other = np("teacher")
  book = np("book", adjectives="old")
  nine = Pair("at half past seven", "um halb acht")
  yield (
    say("kaufen", ANNA, accusative=book, time=YESTERDAY, tense="past"),
    "Anna bought the old book yesterday.",
    "Anna hat das alte Buch gestern gekauft.",
  )
  yield (
    say(
      "kaufen",
      ANNA,
      accusative=np("lamp", "a", "expensive"),
      time=YESTERDAY,
      time_first=True,
      tense="past",
    ),
    "Yesterday, Anna bought an expensive lamp.",
    "Gestern hat Anna eine teure Lampe gekauft.",
  )
  yield (
    say("aufstehen", WEBER, time=nine, tense="present"),
    "Mr Weber gets up at half past seven.",
    "Herr Weber steht um halb acht auf.",
  )
  yield (
    linked(
      be(teacher, "tired", tense="past"),
      "sub",
      "because",
      "weil",
      say("aufstehen", he(teacher), time=nine, tense="past"),
    ),
    "The teacher was tired because she got up at half past seven.",
    "Die Lehrerin war müde, weil sie um halb acht aufgestanden ist.",
  )
  yield (
    linked(
      be(other, "tired", tense="past"),
      "sub",
      "because",
      "weil",
      say("aufstehen", he(other), time=nine, tense="past"),
    ),
    "The teacher was tired because he got up at half past seven.",
    "Der Lehrer war müde, weil er um halb acht aufgestanden ist.",
  )


def objects_and_negation():
  told = np("man", adjectives="old")
  yield (
    say(
      "geben",
      told,
      dative=np("student", "a", "young"),
      accusative=np("key", "my", possessor=told),
      tense="past",
    ),
    "The old man gave a young student his key.",
    "Der alte Mann hat seinen Schlüssel einem jungen Studenten gegeben.",
  )
  yield (
    say(
      "erklären",
      np("doctor", plural=True),
      "explain",
      dative=WEBER,
      accusative=np("problem", "a", "difficult"),
      tense="past",
      modal="must",
    ),
    "The doctors had to explain a difficult problem to Mr Weber.",
    "Die Ärzte mussten Herrn Weber ein schwieriges Problem erklären.",
  )
  yield (
    say(
      "lesen",
      np("child"),
      "read",
      accusative=np("letter", "no"),
      negated=True,
      tense="past",
    ),
    "The child did not read a letter.",
    "Das Kind hat keinen Brief gelesen.",
  )


def numbers_and_relatives():
  dog = np("dog")
  machine = np("machine")
  nun = Pair("twenty-three", "dreiundzwanzig")
  yield (
    say(
      "anrufen", ANNA, accusative=he(dog), negated=True, tense="present", modal="can"
    ),
    "Anna cannot call it.",
    "Anna kann ihn nicht anrufen.",
  )
  yield (
    linked(
      say("reparieren", PETER, accusative=machine, tense="past"),
      "sub",
      "because",
      "weil",
      be(he(machine), "old", tense="past"),
    ),
    "Peter repaired the machine because it was old.",
    "Peter hat die Maschine repariert, weil sie alt war.",
  )
  yield (
    say(
      "sehen",
      ANNA,
      accusative=np(
        "book", number=nun, determiner="number", adjectives="red", plural=True
      ),
      time=YESTERDAY,
      place=Pair("in the park", "im Park"),
      tense="past",
    ),
    "Anna saw twenty-three red books in the park yesterday.",
    "Anna hat gestern im Park dreiundzwanzig rote Bücher gesehen.",
  )
  yield (
    say(
      "arbeiten",
      ANNA,
      manner=Pair("quietly", "leise"),
      time=YESTERDAY,
      place=Pair("in the garden", "im Garten"),
      tense="past",
    ),
    "Anna worked quietly in the garden yesterday.",
    "Anna hat gestern leise im Garten gearbeitet.",
  )


def relatives_in_all_cases():
  student = np("student")
  book = np("book", adjectives="old")
  helped = np("woman")
  gap = he(student)
  student.relative = Relative(
    "accusative", say("treffen", ANNA, accusative=gap, tense="past"), gap
  )
  yield (
    say("danken", PETER, dative=np("boss", "my", possessor=PETER), tense="past"),
    "Peter thanked his boss.",
    "Peter hat seinem Chef gedankt.",
  )
  yield (
    say("schlafen", student),
    "The student whom Anna met sleeps.",
    "Der Student, den Anna getroffen hat, schläft.",
  )
  gap = he(book)
  late = np(
    "book", relative=Relative("subject", be(gap, "expensive", tense="past"), gap)
  )
  yield (
    say("kaufen", ANNA, accusative=late, time=YESTERDAY, time_first=True, tense="past"),
    "Yesterday, Anna bought the book that was expensive.",
    "Gestern hat Anna das Buch gekauft, das teuer war.",
  )
  owned = np("sister", "")
  whose = np("man", relative=Relative("whose", say("arbeiten", owned), owned))
  yield (
    say("besuchen", ANNA, accusative=whose, tense="past"),
    "Anna visited the man whose sister works.",
    "Anna hat den Mann besucht, dessen Schwester arbeitet.",
  )
  gap = he(helped)
  helped.relative = Relative("dative", say("helfen", I, dative=gap, tense="past"), gap)
  yield (
    be(helped, "ill"),
    "The woman whom I helped is ill.",
    "Die Frau, der ich geholfen habe, ist krank.",
  )


ALL_CASES = tuple(
  itertools.chain(
    order_and_agreement(),
    objects_and_negation(),
    numbers_and_relatives(),
    relatives_in_all_cases(),
  )
)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case[1])
def test_golden_pairs(case):
  clause, en, de = case
  assert english.sentence(clause) == en
  assert german_clause.sentence(clause) == de
