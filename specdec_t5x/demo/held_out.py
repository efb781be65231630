"""The demo's test texts, as in the seqio tasks, and the tasks' metrics."""

from specdec_t5x.data import language_modeling, metrics, tasks
from specdec_t5x.demo.corpora import news, translation

_SOURCES = {
  "ende": (translation.rows, tasks.TRANSLATE_ENDE),
  "cnndm": (news.rows, tasks.SUMMARIZE),
}
METRICS = {
  "ende": lambda references, outputs: metrics.bleu(references, outputs)["bleu"],
  "cnndm": lambda references, outputs: metrics.rouge(references, outputs)["rougeLsum"],
}


def held_out_texts(pair: str, count: int) -> list[tuple[str, str]]:
  """Returns the first prefixed inputs and references of the test split.

  For the language model the pairs are prompts and continuations.
  """
  if pair == "lm":
    texts = [text.split(" ") for text in translation.english_texts("test", count)]
    words = language_modeling.PROMPT_WORDS
    return [(" ".join(text[:words]), " ".join(text[words:])) for text in texts]
  rows, prefix = _SOURCES[pair]
  return [(prefix + source, target) for source, target in rows("test", count, 0)]


def news_sentences(count: int) -> list[str]:
  """Returns the longest sentence of each news article, with the translation prefix."""
  articles = [article for article, _ in news.rows("test", count, 0)]
  longest = (max(text.split(". "), key=len) for text in articles)
  return [f"{tasks.TRANSLATE_ENDE}{sentence.rstrip('.')}." for sentence in longest]
