"""Inputs as tokens: of a file, of the demo pairs, of the published test sets."""

import argparse
from collections.abc import Callable, Sequence

from etils import epath

from specdec_t5x.demo.recipe import DemoPair
from specdec_t5x.hugging_face import vocabulary as vocabularies

# The tokens of each input, end of sequence included, and the end of sequence.
Tokens = tuple[list[list[int]], int]


def lines(args: argparse.Namespace) -> Callable[[], Tokens]:
  """Returns what reads a file with an input a line.

  Args:
    args: flags `inputs`, `vocabulary`, `prefix`, `num_inputs` and `prompts`.
  """

  def read():
    found = epath.Path(args.inputs).read_text().splitlines()[: args.num_inputs]
    if not found:
      raise ValueError(f"--inputs: {args.inputs!r} has no line. Give an input a line.")
    texts = [args.prefix + line for line in found]
    return encoded(args.vocabulary, texts, args.prompts)

  return read


def demo(pair: DemoPair, count: int) -> Callable[[], Tokens]:
  """Returns what makes the first texts of a demo pair's test split."""

  def read():
    from specdec_t5x.demo import held_out

    texts = [text for text, _ in held_out.held_out_texts(pair.name, count)]
    return encoded(pair.vocabulary, texts, pair.are_prompts, pair.max_input)

  return read


def published(
  task: str, args: argparse.Namespace, max_input: int
) -> Callable[[], Tokens]:
  """Returns what reads a test set through its seqio task and TFDS.

  Args:
    task: "ende" (WMT14 newstest2014) or "cnndm".
    args: flags `vocabulary`, `tfds_data_dir` and `num_inputs`.
    max_input: tokens of an input; longer ones are cut, as in T5.
  """

  def read():
    """Returns the test set's inputs as tokens, and the end's."""
    import seqio

    from specdec_t5x.data import reading, tasks, vocabularies

    if args.tfds_data_dir:
      seqio.set_tfds_data_dir_override(args.tfds_data_dir)
    register = {"ende": tasks.wmt14_ende, "cnndm": tasks.cnn_dailymail}[task]
    path = args.vocabulary or vocabularies.DEFAULT_T5_VOCABULARY
    vocabulary = vocabularies.sentencepiece_vocabulary(path, extra_ids=100)
    name = register(vocabulary=vocabulary)
    try:
      dataset = seqio.get_mixture_or_task(name).get_dataset(
        {"inputs": max_input, "targets": max_input}, split="test", shuffle=False
      )
    except Exception as error:  # TFDS and its readers raise types of their own.
      raise ValueError(
        f"The test set of {task!r} can't be read ({type(error).__name__}: {error}). "
        "Give --tfds-data-dir with the dataset; scripts/prepare_tfds.py makes it from "
        "files of yours."
      ) from error
    dataset = dataset.take(args.num_inputs or -1)
    ids = [example["inputs"].tolist() for example in reading.rows(dataset)]
    return ids, vocabulary.eos_id

  return read


def encoded(
  vocabulary: str,
  texts: Sequence[str],
  are_prompts: bool,
  max_input: int | None = None,
) -> Tokens:
  """Returns the tokens of texts, each cut to `max_input` of them.

  Args:
    vocabulary: a SentencePiece model, or a Hugging Face folder.
    texts: with whatever prefix they need.
    are_prompts: whether outputs go on from them, without an end of sequence.
    max_input: end of sequence included.
  """
  processor = vocabularies.processor(vocabulary)
  # A prompt goes on; an encoder's input has its end of sequence.
  end = [] if are_prompts else [processor.eos_id()]
  cut = None if max_input is None else max_input - len(end)
  ids = [[*processor.encode(text)[:cut], *end] for text in texts]
  return ids, processor.eos_id()
