"""The demo's test texts as the seqio tasks give them, and their metrics."""

from specdec_t5x.data import metrics, tasks
from specdec_t5x.data.demo import news, translation

_SOURCES = {
  "ende": (translation.rows, tasks.TRANSLATE_ENDE),
  "cnndm": (news.rows, tasks.SUMMARIZE),
}
METRICS = {
  "ende": lambda references, outputs: metrics.bleu(references, outputs)["bleu"],
  "cnndm": lambda references, outputs: metrics.rouge(references, outputs)["rougeLsum"],
}


def held_out_texts(pair: str, count: int) -> list[tuple[str, str]]:
  """Returns the first inputs, with their prefix, and references of the test split."""
  rows, prefix = _SOURCES[pair]
  return [(prefix + source, target) for source, target in rows("test", count, 0)]
