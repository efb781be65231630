"""Agreement, number words and splits of the synthetic translation corpus."""

import random
import re

import pytest

from specdec_t5x.demo.corpora import (
  german,
  lexicon,
  number_words,
  sentences,
  splits,
  translation,
  verbs,
)
from specdec_t5x.demo.corpora.tree import Phrase


def np(noun, determiner, plural=False):
  old = next(a for a in lexicon.ADJECTIVES["g"] if a.en == "old")
  return Phrase(
    noun=lexicon.BY_ENGLISH[noun],
    determiner=determiner,
    adjectives=(old,),
    plural=plural,
    possessor=Phrase(first_person=True),
  )


DECLINED = {
  ("man", "the"): "der alte Mann|den alten Mann|dem alten Mann|des alten Mannes",
  ("student", "a"): "ein alter Student|einen alten Studenten|einem alten Studenten|"
  "eines alten Studenten",
  ("woman", "my"): "meine alte Frau|meine alte Frau|meiner alten Frau|"
  "meiner alten Frau",
  ("book", "this"): "dieses alte Buch|dieses alte Buch|diesem alten Buch|"
  "dieses alten Buches",
  ("book", "no"): "kein altes Buch|kein altes Buch|keinem alten Buch|"
  "keines alten Buches",
}
PLURALS = {
  ("child", "the"): "die alten Kinder|die alten Kinder|den alten Kindern|"
  "der alten Kinder",
  ("car", ""): "alte Autos|alte Autos|alten Autos|alter Autos",
  ("man", "some"): "einige alte Männer|einige alte Männer|einigen alten Männern|"
  "einiger alter Männer",
  ("woman", "all"): "alle alten Frauen|alle alten Frauen|allen alten Frauen|"
  "aller alten Frauen",
}


@pytest.mark.parametrize(("table", "plural"), [(DECLINED, False), (PLURALS, True)])
def test_declension_in_four_cases(table, plural):
  for (noun, determiner), expected in table.items():
    phrase = np(noun, determiner, plural)
    found = [german.noun_phrase(phrase, case) for case in "NADG"]
    assert found == expected.split("|")


def test_prepositions_contract_with_the_definite_article_only():
  garden = next(place.noun for place in lexicon.PLACES if place.noun.en == "garden")
  assert german.prepositional("in", Phrase(noun=garden), "D") == "im Garten"
  a_garden = Phrase(noun=garden, determiner="a")
  assert german.prepositional("in", a_garden, "D") == "in einem Garten"


NUMBERS = {
  0: ("zero", "null"),
  1: ("one", "eins"),
  12: ("twelve", "zwölf"),
  16: ("sixteen", "sechzehn"),
  17: ("seventeen", "siebzehn"),
  21: ("twenty-one", "einundzwanzig"),
  30: ("thirty", "dreißig"),
  66: ("sixty-six", "sechsundsechzig"),
  77: ("seventy-seven", "siebenundsiebzig"),
  100: ("one hundred", "einhundert"),
  101: ("one hundred and one", "einhunderteins"),
  342: ("three hundred and forty-two", "dreihundertzweiundvierzig"),
  1000: ("one thousand", "eintausend"),
  1001: ("one thousand and one", "eintausendeins"),
  2345: (
    "two thousand three hundred and forty-five",
    "zweitausenddreihundertfünfundvierzig",
  ),
  9999: (
    "nine thousand nine hundred and ninety-nine",
    "neuntausendneunhundertneunundneunzig",
  ),
}


def test_number_words():
  for number, words in NUMBERS.items():
    assert (number_words.english(number), number_words.german(number)) == words
  for word in (number_words.english, number_words.german):
    assert len({word(number) for number in range(10_000)}) == 10_000
    with pytest.raises(ValueError, match="0 to 9999"):
      word(10_000)


def test_years_ordinals_prices_and_clock_times():
  assert number_words.english_year(1998) == "nineteen ninety-eight"
  assert number_words.german_year(1998) == "neunzehnhundertachtundneunzig"
  assert number_words.german_year(2005) == "zweitausendfünf"
  assert number_words.english_year(2005) == "two thousand and five"
  assert number_words.ordinals(7) == ("seventh", "siebten")
  assert number_words.ordinals(23) == ("twenty-third", "dreiundzwanzigsten")
  assert number_words.price(125_000) == ("1,250 euros", "1.250 Euro")
  assert number_words.price(4550) == ("45.50 euros", "45,50 Euro")
  assert number_words.clock(12, True) == ("at half past twelve", "um halb eins")
  assert number_words.clock(1, False) == ("at one o'clock", "um ein Uhr")


def test_verb_forms():
  forms = {verb.en[0]: verb.en for verb in verbs.VERBS}
  assert forms["try"] == ("try", "tries", "tried", "tried", "trying")
  assert forms["take part"][1:] == (
    "takes part",
    "took part",
    "taken part",
    "taking part",
  )
  assert forms["watch"] == ("watch", "watches", "watched", "watched", "watching")
  assert forms["see"] == ("see", "sees", "saw", "seen", "seeing")


@pytest.fixture(scope="module")
def rows():
  return translation.rows("train", 4_000)


def test_the_seed_decides_everything(rows):
  again = splits.generate(sentences.pair, "train", 300, seed=0)
  assert list(rows[:300]) == again
  assert splits.generate(sentences.pair, "train", 300, seed=1) != again


def test_splits_are_disjoint_whatever_the_seed(rows):
  held_out = {en for seed in (0, 1) for en, _ in translation.rows("test", 100, seed)}
  validation = {en for en, _ in translation.rows("validation", 100)}
  assert not held_out & {en for en, _ in rows}
  assert not validation & (held_out | {en for en, _ in rows})
  assert len({en for en, _ in rows}) == len(rows)


def test_german_is_a_function_of_english():
  rng = random.Random(5)
  seen = {}
  for _ in range(8_000):
    en, de = sentences.pair(rng)
    assert seen.setdefault(en, de) == de


def test_sentences_are_well_formed(rows):
  for text in (text for row in rows for text in row):
    assert re.fullmatch(r"[A-ZÄÖÜ0-9].*[.?]", text), text
    assert not re.search(r"  |,,| ,|,[.?]|None|_", text), text


def test_german_verbs_close_their_clauses(rows):
  """After weil and dass no verb is second: the clause ends in a known verb form."""
  last = {"ist", "sind", "war", "waren", "bin", "hat", "haben", "habe", "hatte"}
  last |= {"hatten", "weiß", "wird", "werden", "werde"}
  last |= {"kann", "können", "muss", "müssen", "will", "wollen", "soll", "sollen"}
  last |= {"darf", "dürfen", "konnte", "konnten", "musste", "mussten", "wollte"}
  last |= {"wollten", "durfte", "durften"}
  for verb in verbs.VERBS:
    first = verb.infinitive.removesuffix("n").removesuffix("e") + "e"
    forms = (verb.third, verb.infinitive, first)
    last |= {verb.prefix + form for form in forms}
  checked = 0
  for _, de in rows:
    clause = re.search(r"\b(?:weil|nachdem|obwohl|während) ([^,]*)[,.?]", de)
    if clause:
      checked += 1
      # A relative clause inside would cut the clause short of its verb.
      whole = "," not in de[clause.start() :]
      assert not whole or clause[1].split()[-1] in last, de
  assert checked > 500


def test_lengths_suit_a_demo(rows):
  words = [len(en.split()) for en, _ in rows]
  assert 14 < sum(words) / len(words) < 20
  assert max(words) < 70


def test_too_many_examples_are_an_error():
  split = splits.split_of("a")
  with pytest.raises(ValueError, match="Found only 1 distinct"):
    splits.generate(lambda rng: ("a", "b"), split, 2, seed=0)
