"""The tables of words, tables/*.tsv, and random draws from the tables.

tables/README.md describes the columns. A row is a tuple with the columns' names.
"""

import collections
import csv
import pathlib
import random
from collections.abc import Sequence
from typing import Any, TypeVar

TABLES = pathlib.Path(__file__).parent / "tables"

_T = TypeVar("_T")
_SETS = {"accusative", "classes", "dative", "marks", "manners", "needs"}
_SETS |= {"prepositional", "subject"}
_INTEGERS = {"person", "weight"}


def read(name: str) -> list[Any]:
  """Returns the rows of tables/NAME.tsv."""
  with open(TABLES / f"{name}.tsv", encoding="utf-8", newline="") as file:
    header, *lines = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
  row = collections.namedtuple(name, header)
  return [row(*map(_value, header, line)) for line in lines]


def _value(column: str, text: str) -> str | int | frozenset[str]:
  if column in _SETS:
    return frozenset(text.split())
  return int(text) if column in _INTEGERS else text


def grouped(rows: Sequence[_T], column: str) -> dict[str, list[_T]]:
  """Returns the rows of each value of a column, or of each word of a set column."""
  groups = collections.defaultdict(list)
  for row in rows:
    value = getattr(row, column)
    for key in [value] if isinstance(value, str) else sorted(value):
      groups[key].append(row)
  return dict(groups)


def pick(rng: random.Random, options: Sequence[_T]) -> _T:
  """Returns one of the options, several times faster than `random.choice`."""
  return options[int(rng.random() * len(options))]


def weighted(rng: random.Random, options: Sequence[_T]) -> _T:
  """Returns one of the options, drawn in proportion to the weights."""
  return rng.choices(options, [option.weight for option in options])[0]


_ALL = read("nouns")
NOUNS = grouped(_ALL, "classes")
BY_ENGLISH = {noun.en: noun for noun in _ALL}
ADJECTIVES = grouped(read("adjectives"), "group")
VERBS = read("verbs")
MARKED = grouped(VERBS, "marks")
TENSES = grouped(read("tenses"), "time")
ADVERBIALS = grouped(read("adverbials"), "kind")
SLOTS = grouped(read("slots"), "slot")
DETERMINERS = {row.name: row for row in read("determiners")}
PRONOUNS = {row.name: row for row in read("pronouns")}
ENDINGS = {(row.name, row.case): row for row in read("endings")}
CONTRACTIONS = dict(read("contractions"))
PATTERNS = read("patterns")
