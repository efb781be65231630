"""The synthetic news corpus: articles with highlights about invented events.

tables/news.json has the names, figures and sentences.
"""

import functools
import json
import random

from specdec_t5x.demo.corpora import splits, words
from specdec_t5x.demo.corpora.words import pick

with open(words.TABLES / "news.json", encoding="utf-8") as _file:
  _NEWS = json.load(_file)
_NUMBERS = {number: slot.en for number, slot in enumerate(words.SLOTS["number"], 2)}


@functools.lru_cache(maxsize=4)
def rows(split: str, size: int, seed: int = 0) -> tuple[splits.Row, ...]:
  """Returns (article, highlights) of a split, cached; see `splits.generate`."""
  return tuple(splits.generate(article, split, size, seed))


def article(rng: random.Random) -> splits.Row:
  """Returns an article of 11 to 14 sentences, and the highlights on separate lines.

  Highlights end in " ." and are joined by a line break, as in CNN/DailyMail.
  """
  kind = pick(rng, list(_NEWS["kinds"].values()))
  facts = _facts(rng)
  optional = kind["optional"]
  count = min(len(optional), 7 + int(3 * rng.random()))
  # Sorted, as a reply must follow the sentence that the reply answers.
  chosen = sorted(rng.sample(range(len(optional)), count))
  common = rng.sample(_NEWS["common"], 1 + int(2 * rng.random()))
  slots = [*kind["lead"], *(optional[n] for n in chosen), *common, *kind["end"]]
  body = [_say(rng, slot, facts) for slot in slots]
  dateline = f"{facts['town']}. " if rng.random() < 0.3 else ""
  highlights = [_say(rng, slot, facts) for slot in kind["highlights"]]
  if rng.random() < 0.4:
    # The last sentence is copied, as in some real summaries.
    highlights.append(body[-1].removesuffix(".") + " .")
  return dateline + " ".join(body), "\n".join(highlights)


def _say(rng: random.Random, slot: list[str], facts: dict[str, str]) -> str:
  text = pick(rng, slot).format_map(facts)
  return text[0].upper() + text[1:]


def _facts(rng: random.Random) -> dict[str, str]:
  """Draws names, places and figures for an event."""
  facts = {name: f"{rng.randrange(*r):,}" for name, r in _NEWS["figures"].items()}
  facts |= {name: _NUMBERS[rng.randrange(*r)] for name, r in _NEWS["numbers"].items()}
  for name, range_ in _NEWS["decimals"].items():
    facts[name] = f"{rng.randrange(*range_)}.{rng.randrange(1, 10)}"
  for number in ("", "2"):  # Two people and two towns.
    person = dict(pick(rng, _NEWS["people"]))
    person["first"] = pick(rng, person["first"])
    person |= {"last": _compound(rng, "surnames"), "town": _compound(rng, "towns")}
    facts |= {f"{name}{number}": value for name, value in person.items()}
  if facts["town"] == facts["town2"] or facts["last"] == facts["last2"]:
    return _facts(rng)
  low = rng.randrange(3)
  goals = rng.randrange(2, 4)
  is_up = rng.random() < 0.5
  return facts | {
    "team": f"{facts['town']} {pick(rng, _NEWS['teams'])}",
    "rival": f"{facts['town2']} {pick(rng, _NEWS['teams'])}",
    "company": " ".join(pick(rng, part) for part in _NEWS["companies"]),
    "day": pick(rng, words.SLOTS["weekday"]).en,
    "month": pick(rng, words.SLOTS["month"]).en,
    "year": str(rng.randrange(2003, 2020)),
    "nth": pick(rng, words.SLOTS["ordinal"][1:6]).en,
    "moved": "risen" if is_up else "fallen",
    "hire": "hire" if is_up else "dismiss",
    "low": str(low),
    "high": str(max(low + 1, goals) + rng.randrange(2)),
    "goals": _NUMBERS[goals],
  }


def _compound(rng: random.Random, names: str) -> str:
  return "".join(pick(rng, part) for part in _NEWS[names])
