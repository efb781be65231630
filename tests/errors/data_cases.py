"""Tasks and files of text that can't be read; `case` says how to read it."""

from tests.errors import inputs
from tests.errors.case import Case, examples, lines, records, setting

DATA = [
  setting("an unknown task", "MIXTURE_OR_TASK_NAME='wmt99'"),
  setting("an unknown split", "SPLIT='tset'"),
  setting("a part of a split in words", "SPLIT='test[half]'"),
  setting("a part beyond the split's end", "SPLIT='test[:5]'"),
  setting(
    "TASK_FEATURE_LENGTHS without targets", "TASK_FEATURE_LENGTHS={'inputs': 40}"
  ),
  setting("TASK_FEATURE_LENGTHS = 40", "TASK_FEATURE_LENGTHS=40"),
  Case(
    "a TFDS task whose data is not prepared",
    ("--tfds_data_dir=HERE/out",),
    gin="from __gin__ import dynamic_registration\n"
    "from specdec_t5x.data import tasks\n"
    "MIXTURE_OR_TASK_NAME = @tasks.cnn_dailymail()\n"
    "tasks.cnn_dailymail.vocabulary = %VOCABULARY\n",
  ),
  setting("an unknown task module", "MIXTURE_OR_TASK_MODULE='no.such'"),
  lines("an input file that is not there", None, "", "('no.en', None)"),
  lines("an empty input file", b"", "in.en", "('HERE/in.en', None)"),
  lines(
    "an input that is not UTF-8", b"a dog\ncaf\xe9\n", "in.en", "('HERE/in.en', None)"
  ),
  lines(
    "an input with a NUL byte", b"a dog\na\x00cat\n", "in.en", "('HERE/in.en', None)"
  ),
  lines(
    "parallel files of unequal length",
    b"a dog\n",
    "in.en",
    "('HERE/in.en', 'PAIR/text.en')",
  ),
  lines("one path for parallel files", None, "", "'a.en'"),
  records("malformed JSON", b'{"en":"","de":""}\n{', "a.jsonl"),
  records("a missing field", b'{"en": "a dog"}\n', "a.jsonl"),
  records("a field that is no text", b'{"en": 3, "de": ""}\n', "a.jsonl"),
  records("malformed CSV", b"en,de\na dog\n", "a.csv"),
  records("a file of unknown extension", b"en\tde\n", "a.tsv"),
  records("a file that is no gzip", b"en,de\n", "a.csv.gz"),
  examples("a file of TFExamples that is not there", "['HERE/no*.tfrecord']"),
  examples("TF_EXAMPLE_FILE_PATHS that is no list", "'HERE/a.tfrecord'"),
  examples(
    "TF_EXAMPLE_FILE_TYPE = 'sstable'", "['a']", "TF_EXAMPLE_FILE_TYPE='sstable'"
  ),
  examples(
    "a file that holds no TFExample",
    "['HERE/a.tfrecord']",
    make=inputs.text_file("a.tfrecord", b"no record"),
  ),
  examples(
    "TFExamples without the feature 'inputs'",
    "['HERE/a.tfrecord']",
    make=inputs.other_examples,
  ),
]
