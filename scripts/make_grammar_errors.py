"""Makes texts for grammar correction: sentences, and the same with errors by rule.

  python scripts/make_grammar_errors.py --text=train.en --output=train.jsonl

Each line of the output is {"wrong": .., "right": ..}, as
configs/train/grammar.gin reads them. Which words are changed is drawn by --seed: a word
that is left out or said twice, two letters that trade places, a wrong verb or article.
"""

import argparse
import json
import pathlib
import random

_CONFUSED = {"is": "are", "are": "is", "a": "an", "an": "a", "has": "have", "his": "he"}
_CONFUSED |= {"the": "teh", "in": "on", "on": "in", "their": "there", "two": "too"}


def with_errors(sentence: str, rate: float, draw: random.Random) -> str:
  """Returns a sentence with about `rate` of its words changed."""
  words = []
  for word in sentence.split():
    words += _changed(word, draw) if draw.random() < rate else [word]
  return " ".join(words) or sentence


def _changed(word: str, draw: random.Random) -> list[str]:
  if word in _CONFUSED:
    return draw.choice([[_CONFUSED[word]], [_CONFUSED[word]], []])
  if len(word) > 3:
    at = draw.randrange(1, len(word) - 2)
    return [word[:at] + word[at + 1] + word[at] + word[at + 2 :]]
  return draw.choice([[word, word], []])


def main() -> None:
  """Reads the arguments, and writes the file."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--text", required=True, help="file with a sentence on each line")
  parser.add_argument("--output", required=True, help="file of JSON lines")
  parser.add_argument("--rate", type=float, default=0.1, help="rate of changed words")
  parser.add_argument(
    "--words",
    type=int,
    default=0,
    help="maximum number of words of a line; 0 means no limit",
  )
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args()
  draw, records = random.Random(args.seed), []
  for line in pathlib.Path(args.text).read_text(encoding="utf-8").splitlines():
    right = " ".join(line.split()[: args.words or None])
    records.append({"wrong": with_errors(right, args.rate, draw), "right": right})
  text = "".join(json.dumps(record) + "\n" for record in records)
  pathlib.Path(args.output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
  main()
