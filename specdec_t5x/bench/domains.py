"""Inputs by domain: those that a pair was made for, and others."""

import argparse
import dataclasses
from collections.abc import Iterator

from specdec_t5x.bench import inputs
from specdec_t5x.bench.study import Study, pad_inputs
from specdec_t5x.data import spec_bench, text_files
from specdec_t5x.demo.recipe import PAIRS

# Of Spec-Bench's: articles are long.
_MAX_INPUT = 512


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that name further inputs."""
  add = parser.add_argument
  about = "further inputs, an input a line, with the same --prefix; several allowed"
  add("--also", nargs="+", action="extend", default=[], metavar="NAME=FILE", help=about)
  about = "Spec-Bench's question.jsonl: a domain for each of its groups"
  add("--spec-bench", metavar="FILE", help=about)


def with_domains(study: Study, args: argparse.Namespace) -> tuple[Study, list[str]]:
  """Returns the study with further inputs, and the domain of each input.

  The demo's translation pair has, where no flag names others, sentences of its news.

  Raises:
    ValueError: where a flag is malformed, or a file can't be read.
  """
  tokens = [[int(x) for x in row[0] if x] for row in study.inputs]
  labels = [study.job.task] * len(tokens)
  vocabulary = _vocabulary(study, args)
  for name, texts, cut in _further(study, args):
    found, _ = inputs.encoded(vocabulary, texts[: args.num_inputs], args.prompts, cut)
    tokens, labels = tokens + found, labels + [name] * len(found)
  return dataclasses.replace(study, inputs=pad_inputs(tokens)), labels


def _vocabulary(study, args) -> str:
  return args.vocabulary or PAIRS[study.job.task].vocabulary


def _further(study, args) -> Iterator[tuple[str, list[str], int | None]]:
  """Yields domains, their texts, and the tokens that these are cut to."""
  for value in args.also:
    name, equals, path = value.partition("=")
    if not equals:
      raise ValueError(f"--also: expected NAME=FILE, got {value!r}.")
    lines = text_files.read_lines(path)
    yield name, [args.prefix + line for line in lines], None
  if args.spec_bench:
    groups = {}
    for text, group in spec_bench.prompts(args.spec_bench):
      groups.setdefault(group, []).append(text)
    yield from ((name, texts, _MAX_INPUT) for name, texts in groups.items())
  if not (args.also or args.spec_bench or args.target) and study.job.task == "ende":
    yield (
      "news (out of domain)",
      news_sentences(args.num_inputs),
      PAIRS["ende"].max_input,
    )


def news_sentences(count: int) -> list[str]:
  """Returns the longest sentences of the demo's news, to be translated."""
  from specdec_t5x.data.tasks import TRANSLATE_ENDE
  from specdec_t5x.demo.corpora import news

  articles = [article for article, _ in news.rows("test", count, 0)]
  longest = (max(text.split(". "), key=len) for text in articles)
  return [f"{TRANSLATE_ENDE}{sentence.rstrip('.')}." for sentence in longest]
