"""The demo's test texts as the seqio tasks give them, and their metrics."""

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
  """Returns the first inputs, with their prefix, and references of the test split.

  Of the language model those are prompts and what follows them.
  """
  if pair == "lm":
    texts = [text.split(" ") for text in translation.english_texts("test", count)]
    words = language_modeling.PROMPT_WORDS
    return [(" ".join(text[:words]), " ".join(text[words:])) for text in texts]
  rows, prefix = _SOURCES[pair]
  return [(prefix + source, target) for source, target in rows("test", count, 0)]
