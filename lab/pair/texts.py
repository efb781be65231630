"""The pair's texts and vocabulary, as files in runs/demo/ende."""

import io
import os
import pathlib
import string

import sentencepiece

from lab.pair.grammar import translation
from specdec_t5x.demo.embedded import PREFIX

FOLDER = os.path.join("runs", "demo", "ende")
SIZES = {"train": 60_000, "validation": 500, "test": 500}
VOCABULARY = os.path.join(FOLDER, "vocabulary.model")
# Characters that the vocabulary encodes even if the sampled texts lack them.
_REQUIRED = f"{string.ascii_letters}{string.digits}äöüÄÖÜß.,?'-:\""
_SENTENCES = 12_000


def write(folder: str, split: str, size: int) -> None:
  """Writes the sentences of a split to SPLIT.en and SPLIT.de."""
  os.makedirs(folder, exist_ok=True)
  sides = zip(*translation.rows(split, size), strict=True)
  for side, texts in zip(("en", "de"), sides, strict=True):
    path = pathlib.Path(folder, f"{split}.{side}")
    path.write_text("\n".join(texts) + "\n", "utf-8")


def trained_vocabulary() -> bytes:
  """Returns the pair's SentencePiece model, with T5's special ids."""
  texts = []
  for source, target in translation.rows("train", _SENTENCES):
    texts += [PREFIX + source, target]
  # Written to memory, as SentencePiece would store a file's name in the model.
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts),
    model_writer=model,
    model_type="unigram",
    vocab_size=2_000,
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    character_coverage=1.0,
    required_chars=_REQUIRED,
    split_digits=True,
    input_sentence_size=30_000,
    shuffle_input_sentence=False,
    num_threads=1,
    minloglevel=2,
  )
  return model.getvalue()
