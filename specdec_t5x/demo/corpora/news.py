"""The synthetic news corpus: invented events, told at length and in highlights."""

import functools
import random

from specdec_t5x.demo.corpora import news_templates as templates
from specdec_t5x.demo.corpora import number_words, splits
from specdec_t5x.demo.corpora.phrases import pick

_POSSESSIVES = {"she": "her", "he": "his"}
_OBJECTS = {"she": "her", "he": "him"}
_ORDINALS = ("second", "third", "fourth", "fifth", "sixth")


@functools.lru_cache(maxsize=4)
def rows(split: str, size: int, seed: int = 0) -> tuple[splits.Row, ...]:
  """Returns (article, highlights) of a split, see `splits.generate`; they are kept."""
  return tuple(splits.generate(article, split, size, seed))


def article(rng: random.Random) -> splits.Row:
  """Returns an article of 11 to 14 sentences, and its highlights on lines of their own.

  Highlights end in " ." and are joined by a line break, as in CNN/DailyMail.
  """
  kind = templates.KINDS[pick(rng, tuple(templates.KINDS))]
  facts = _facts(rng)
  optional = kind["optional"]
  count = min(len(optional), 7 + int(3 * rng.random()))
  # Kept in their order: a reply follows what it replies to.
  chosen = sorted(rng.sample(range(len(optional)), count))
  common = rng.sample(templates.COMMON, 1 + int(2 * rng.random()))
  slots = [*kind["lead"], *(optional[n] for n in chosen), *common, *kind["end"]]
  body = [_say(rng, slot, facts) for slot in slots]
  dateline = f"{facts['town']}. " if rng.random() < 0.3 else ""
  highlights = [_say(rng, slot, facts) for slot in kind["highlights"]]
  if rng.random() < 0.4:
    # The last sentence as it is: some summaries copy.
    highlights.append(body[-1].removesuffix(".") + " .")
  return dateline + " ".join(body), "\n".join(highlights)


def _say(rng: random.Random, slot: tuple[str, ...], facts: dict[str, str]) -> str:
  text = pick(rng, slot).format_map(facts)
  return text[0].upper() + text[1:]


def _facts(rng: random.Random) -> dict[str, str]:
  """Draws names, places and figures for an event."""
  town, town2 = _two(rng, templates.TOWN_STARTS, templates.TOWN_ENDS)
  last, last2 = _two(rng, templates.SURNAME_STARTS, templates.SURNAME_ENDS)
  pro, pro2 = pick(rng, ("she", "he")), pick(rng, ("she", "he"))
  grew = rng.random() < 0.5
  company = pick(rng, templates.COMPANY_STARTS)
  return {
    "town": town,
    "town2": town2,
    "first": pick(rng, templates.FIRST[pro]),
    "first2": pick(rng, templates.FIRST[pro2]),
    "last": last,
    "last2": last2,
    "pro": pro,
    "pro2": pro2,
    "Pro": pro.capitalize(),
    "pos": _POSSESSIVES[pro],
    "pos2": _POSSESSIVES[pro2],
    "obj": _OBJECTS[pro],
    "team": f"{town} {pick(rng, templates.TEAM_ENDS)}",
    "rival": f"{town2} {pick(rng, templates.TEAM_ENDS)}",
    "company": f"{company} {pick(rng, templates.COMPANY_ENDS)}",
    "day": pick(rng, templates.WEEKDAYS),
    "month": pick(rng, number_words.MONTHS)[0],
    "nth": pick(rng, _ORDINALS),
    "moved": "risen" if grew else "fallen",
    "hire": "hire" if grew else "dismiss",
    **_figures(rng),
  }


def _figures(rng: random.Random) -> dict[str, str]:
  low = rng.randrange(3)
  goals = 2 + rng.randrange(2)
  return {
    "low": str(low),
    "high": str(max(low + 1, goals) + rng.randrange(2)),
    "goals": number_words.english(goals),
    "crowd": f"{rng.randrange(1_200, 62_000):,}",
    "people": f"{rng.randrange(8, 90)},{rng.randrange(1_000):03d}",
    "copies": f"{rng.randrange(2_000, 9_900):,}",
    "shares": f"{rng.randrange(1_100, 9_900):,}",
    "homes": f"{rng.randrange(600, 24_000):,}",
    "cash": f"{rng.randrange(20, 980)},{rng.randrange(1_000):03d}",
    "jobs": f"{10 * rng.randrange(8, 99)}",
    "share": f"{rng.randrange(50, 70)}.{rng.randrange(1, 10)}",
    "money": f"{rng.randrange(2, 95)}",
    "money2": f"{rng.randrange(96, 400)}",
    "speed": str(rng.randrange(110, 190)),
    "hurt": number_words.english(rng.randrange(4, 60)),
    "metres": f"{rng.randrange(2, 6)}.{rng.randrange(1, 10)}",
    "hours": number_words.english(rng.randrange(3, 10)),
    "years": number_words.english(rng.randrange(2, 18)),
    "year": str(rng.randrange(2003, 2020)),
    "age": str(rng.randrange(41, 70)),
    "weeks": number_words.english(rng.randrange(2, 9)),
    "minute": str(rng.randrange(3, 40)),
    "delay": str(rng.randrange(15, 95, 5)),
    "points": str(rng.randrange(14, 60)),
    "doors": str(rng.randrange(30, 900)),
    "added": number_words.english(rng.randrange(3, 12)),
  }


def _two(
  rng: random.Random, starts: tuple[str, ...], ends: tuple[str, ...]
) -> tuple[str, str]:
  """Returns two different compound names."""
  first = pick(rng, starts) + pick(rng, ends)
  while True:
    second = pick(rng, starts) + pick(rng, ends)
    if second != first:
      return first, second
