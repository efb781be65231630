"""Tasks and files of text that can't be read; `case` says how to read it."""

from tests.errors.case import Case, lines, records, setting

DATA = [
  setting("an unknown task", "MIXTURE_OR_TASK_NAME='wmt99'", "Unknown task 'wmt99'"),
  setting("an unknown split", "SPLIT='tset'", "SPLIT='tset' is no split of task"),
  setting(
    "a part of a split in words", "SPLIT='test[half]'", "SPLIT='test[half]' is no"
  ),
  setting("a part beyond the split's end", "SPLIT='test[:5]'", "with 4 examples"),
  setting(
    "TASK_FEATURE_LENGTHS without targets",
    "TASK_FEATURE_LENGTHS={'inputs': 40}",
    "must give 'inputs' and 'targets' a length",
  ),
  setting("TASK_FEATURE_LENGTHS = 40", "TASK_FEATURE_LENGTHS=40", "...}, got 40"),
  Case(
    "a TFDS task whose data is not prepared",
    "The data of task 'cnn_dailymail",
    ("--tfds_data_dir=HERE/out",),
    gin="from __gin__ import dynamic_registration\n"
    "from specdec_t5x.data import tasks\n"
    "MIXTURE_OR_TASK_NAME = @tasks.cnn_dailymail()\n"
    "tasks.cnn_dailymail.vocabulary = %VOCABULARY\n",
  ),
  setting("an unknown task module", "MIXTURE_OR_TASK_MODULE='no.such'", "can't be imp"),
  lines(
    "an input file that is not there", "can't be read", None, "", "('no.en', None)"
  ),
  lines("an empty input file", "is empty", b"", "in.en", "('HERE/in.en', None)"),
  lines(
    "an input that is not UTF-8",
    "in.en, line 2: byte 0xe9 at column 4 is not UTF-8",
    b"a dog\ncaf\xe9\n",
    "in.en",
    "('HERE/in.en', None)",
  ),
  lines(
    "an input with a NUL byte",
    "in.en, line 2: a NUL byte",
    b"a dog\na\0cat\n",
    "in.en",
    "('HERE/in.en', None)",
  ),
  lines(
    "parallel files of unequal length",
    "has 1 lines and",
    b"a dog\n",
    "in.en",
    "('HERE/in.en', 'PAIR/text.en')",
  ),
  lines("one path for parallel files", "expected (source path", None, "", "'a.en'"),
  records(
    "malformed JSON", "line 2: malformed JSON", b'{"en":"","de":""}\n{', "a.jsonl"
  ),
  records("a missing field", "no field 'de'", b'{"en": "a dog"}\n', "a.jsonl"),
  records("a field that is no text", "is int 3", b'{"en": 3, "de": ""}\n', "a.jsonl"),
  records("malformed CSV", "got another number", b"en,de\na dog\n", "a.csv"),
  records(
    "a file of unknown extension", "ends in '.tsv', expected", b"en\tde\n", "a.tsv"
  ),
  records("a file that is no gzip", "can't be decompressed", b"en,de\n", "a.csv.gz"),
]
