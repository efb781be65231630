"""Golden sentences, the German checked by hand: linked clauses and questions."""

import itertools

import pytest

from specdec_t5x.demo.corpora import english, german_clause, verbs
from specdec_t5x.demo.corpora.tree import Clause, Link, Pair, Phrase, Relative
from tests.demo.corpora.trees import (
  ANNA,
  PETER,
  WE,
  YESTERDAY,
  I,
  be,
  he,
  linked,
  np,
  say,
)


def content_clauses():
  film = np("film", adjectives="new")
  wh = np("man")
  gap = he(wh)
  wh.relative = Relative(
    "prepositional", say("warten", WE, prepositional=gap, tense="past"), gap
  )
  yield (
    say("ankommen", wh, tense="past"),
    "The man for whom we waited arrived.",
    "Der Mann, auf den wir gewartet haben, ist angekommen.",
  )
  yield (
    linked(
      say("sagen", ANNA, tense="past", time=YESTERDAY),
      "sub",
      "that",
      "dass",
      say("abholen", he(ANNA), accusative=PETER, tense="past", modal="want"),
    ),
    "Anna said yesterday that she wanted to pick up Peter.",
    "Anna hat gestern gesagt, dass sie Peter abholen wollte.",
  )
  yield (
    linked(
      say("fragen", I, "wonder", tense="past"),
      "sub",
      "whether",
      "ob",
      say("gefallen", ANNA, accusative=film, tense="past"),
    ),
    "I wondered whether Anna liked the new film.",
    "Ich habe mich gefragt, ob Anna der neue Film gefallen hat.",
  )
  yield (
    say(
      "gefallen",
      np("teacher", adjectives="old"),
      accusative=np("song", plural=True),
      tense="present",
    ),
    "The old teacher likes the songs.",
    "Dem alten Lehrer gefallen die Lieder.",
  )


def infinitives():
  yield (
    linked(
      say(
        "gehen", PETER, tense="past", direction=Pair("to the station", "zum Bahnhof")
      ),
      "purpose",
      "in order to",
      "um",
      say("abholen", PETER, accusative=np("guest", plural=True)),
    ),
    "Peter went to the station in order to pick up the guests.",
    "Peter ist zum Bahnhof gegangen, um die Gäste abzuholen.",
  )
  yield (
    linked(
      say("versuchen", WE, tense="past"),
      "infinitive",
      "to",
      "",
      say("verkaufen", WE, accusative=np("car", "my", possessor=WE)),
    ),
    "We tried to sell our car.",
    "Wir haben versucht, unser Auto zu verkaufen.",
  )
  yield (
    linked(
      say("einladen", ANNA, accusative=PETER, tense="past"),
      "inverted",
      ", so",
      "deshalb",
      say("freuen", he(PETER), prepositional=np("party")),
    ),
    "Anna invited Peter, so he looks forward to the party.",
    "Anna hat Peter eingeladen, deshalb freut er sich auf die Feier.",
  )


def coordination_and_openings():
  engineer = np("engineer")
  rain = Clause(verb=verbs.find("regnen"), tense="past")
  yield (
    linked(
      be(engineer, "rich"),
      "main",
      ", but",
      "aber",
      be(he(engineer), "happy", negated=True),
    ),
    "The engineer is rich, but he is not happy.",
    "Der Ingenieur ist reich, aber er ist nicht glücklich.",
  )
  opening = say("schlafen", np("cat"), tense="past")
  opening.opening = Link("sub", ", although", "obwohl", rain)
  yield (
    opening,
    "Although it rained, the cat slept.",
    "Obwohl es geregnet hat, hat die Katze geschlafen.",
  )
  yield (
    linked(
      say("schlafen", ANNA, tense="past"),
      "sub",
      "after",
      "nachdem",
      say(
        "umziehen",
        he(ANNA),
        direction=Pair("to Switzerland", "in die Schweiz"),
        tense="pluperfect",
      ),
    ),
    "Anna slept after she had moved to Switzerland.",
    "Anna hat geschlafen, nachdem sie in die Schweiz umgezogen war.",
  )
  yield (
    say(
      "wohnen",
      PETER,
      direction=Pair("in Vienna", "in Wien"),
      time=Pair("for three years", "seit drei Jahren"),
      tense="since",
    ),
    "Peter has lived in Vienna for three years.",
    "Peter wohnt seit drei Jahren in Wien.",
  )


def time_and_comparison():
  dog = np("dog")
  yield (
    be(np("car", "this"), "expensive", than=np("bicycle", "the", "new")),
    "This car is more expensive than the new bicycle.",
    "Dieses Auto ist teurer als das neue Fahrrad.",
  )
  yield (
    say(
      "beschweren",
      np("colleague", plural=True),
      prepositional=np("dog", of=np("neighbour", adjectives="old")),
      tense="past",
      time=YESTERDAY,
      time_first=True,
    ),
    "Yesterday, the colleagues complained about the dog of the old neighbour.",
    "Gestern haben sich die Kollegen über den Hund des alten Nachbarn beschwert.",
  )
  yield (
    say("fressen", dog, "eat", accusative=np("sausage", "a"), tense="past"),
    "The dog ate a sausage.",
    "Der Hund hat eine Wurst gefressen.",
  )
  yield (
    say(
      "legen",
      ANNA,
      accusative=np("shirt", "a"),
      manner=Pair("quickly", "schnell"),
      direction=Pair("in the cupboard", "in den Schrank"),
      tense="past",
    ),
    "Anna put a shirt in the cupboard quickly.",
    "Anna hat schnell ein Hemd in den Schrank gelegt.",
  )
  yield (
    say(
      "kaufen",
      np("singer", "a"),
      accusative=np("ring", "'s", "red", possessor=ANNA),
      modal="will",
      manner=Pair("for 45.50 euros", "für 45,50 Euro"),
    ),
    "A singer will buy Anna's red ring for 45.50 euros.",
    "Ein Sänger wird Annas roten Ring für 45,50 Euro kaufen.",
  )


def lexical_choices():
  student = np("student")
  machine = np("machine")
  yield (
    say(
      "zurückgeben",
      Phrase(members=(ANNA, PETER), plural=True),
      accusative=he(machine),
      dative=he(student),
      tense="past",
    ),
    "Anna and Peter returned it to him.",
    "Anna und Peter haben sie ihm zurückgegeben.",
  )


ALL_CASES = tuple(
  itertools.chain(
    content_clauses(),
    infinitives(),
    coordination_and_openings(),
    time_and_comparison(),
    lexical_choices(),
  )
)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case[1])
def test_golden_pairs(case):
  clause, en, de = case
  assert english.sentence(clause) == en
  assert german_clause.sentence(clause) == de


QUESTIONS = (
  ("", "Did Anna buy the book?", "Hat Anna das Buch gekauft?"),
  ("why", "Why did Anna buy the book?", "Warum hat Anna das Buch gekauft?"),
  ("who", "Who bought the book?", "Wer hat das Buch gekauft?"),
  ("what", "What did Anna buy?", "Was hat Anna gekauft?"),
)


@pytest.mark.parametrize(("word", "en", "de"), QUESTIONS)
def test_golden_questions(word, en, de):
  clause = say("kaufen", ANNA, accusative=np("book"), tense="past")
  assert english.sentence(clause, word) == en
  assert german_clause.sentence(clause, word) == de


def test_must_not_forbids():
  clause = say("schlafen", WE, modal="must", negated=True)
  assert english.sentence(clause) == "We must not sleep."
  assert german_clause.sentence(clause) == "Wir dürfen nicht schlafen."
  clause.tense = "past"
  assert english.sentence(clause) == "We did not have to sleep."
  assert german_clause.sentence(clause) == "Wir mussten nicht schlafen."
