"""What users get wrong with files and commands; `case` says how to read it."""

from tests import commands
from tests.errors import inputs
from tests.errors.case import (
  DAMAGED,
  OTHER,
  Case,
  of_files,
  other,
  setting,
)

SUMMARY = "out/speculation.json"
CHECKPOINTS = [
  setting("a checkpoint that is not there", "TARGET_CHECKPOINT_PATH='no/checkpoint_1'"),
  setting("a file in place of a checkpoint", "TARGET_CHECKPOINT_PATH='PAIR/text.en'"),
  Case(
    "a folder without a checkpoint",
    ("--gin.TARGET_CHECKPOINT_PATH='HERE/empty'",),
    make=inputs.empty_folder,
  ),
  setting("a path that is none", "TARGET_CHECKPOINT_PATH=5"),
  setting("no checkpoint of the draft", "DRAFT_CHECKPOINT_PATH=None"),
  Case(
    "a network with more layers", gin="target/config.T5Config.num_decoder_layers = 3\n"
  ),
  Case(
    "a network with fewer layers", gin="target/config.T5Config.num_decoder_layers = 1\n"
  ),
  Case("a network of another width", gin="target/config.T5Config.emb_dim = 24\n"),
  Case(
    "networks of different vocabularies", gin="target/config.T5Config.vocab_size = 96\n"
  ),
  Case("a vocabulary larger than the network", gin="config.T5Config.vocab_size = 16\n"),
  setting("a decoder-only checkpoint", "DRAFT_CHECKPOINT_PATH='PAIR/gpt/checkpoint_7'"),
  setting("a network where a table of n-grams is due", "DRAFTER='ngram'"),
  Case("a truncated array", (DAMAGED,), make=inputs.truncated),
  Case("an array missing", (DAMAGED,), make=inputs.array_missing),
  Case("an altered index", (DAMAGED,), make=inputs.index_altered),
  Case(
    "an altered Orbax checkpoint",
    ("--gin.DRAFT_CHECKPOINT_PATH='HERE/checkpoint_7'",),
    make=inputs.orbax_damaged,
  ),
  Case("weights with NaN", (DAMAGED,), make=inputs.with_nan),
]

VOCABULARIES = [
  setting("a vocabulary that is not there", "VOCABULARY_PATH='no.model'"),
  Case(
    "a vocabulary that is no SentencePiece model",
    ("--gin.VOCABULARY_PATH='HERE/text.model'",),
    make=inputs.text_file("text.model", b"the\na\n"),
  ),
  Case(
    "a vocabulary with other special tokens",
    ("--gin.VOCABULARY_PATH='HERE/unusual.model'",),
    make=inputs.unusual_vocabulary,
  ),
  of_files(
    "a DRAFT_TOKENIZER that is not there", (OTHER,), "DRAFT_TOKENIZER='no.model'"
  ),
  of_files(
    "a DRAFT_TOKENIZER larger than its network",
    (OTHER,),
    "DRAFT_TOKENIZER='PAIR/tiny.model'",
    "draft/config.T5Config.vocab_size=24",
  ),
  setting("VOCABULARY_EXTRA_IDS = -1", "VOCABULARY_EXTRA_IDS=-1"),
]

OUTPUTS = [
  Case(
    "an output directory below a file",
    ("--gin.INFER_OUTPUT_DIR='HERE/file/out'",),
    make=inputs.text_file("file", b"kept"),
  ),
  Case(
    "a finished run with other settings",
    make=inputs.text_file(SUMMARY, b'{"configuration": {"GAMMA": "4"}}'),
  ),
  Case("a damaged summary", make=inputs.text_file(SUMMARY, b'{"configuration": [')),
  Case("chunks of an unfinished run with other settings", make=inputs.unfinished),
  setting("no output directory", "INFER_OUTPUT_DIR=''"),
  setting("a number for a path", "INFER_OUTPUT_DIR=5"),
  Case("shard 2 of 2", ("--shard_id=2",)),
  Case("a shard that is no number", ("--shard_id=one",)),
  Case("a process without a number", ("--coordinator_address=h:1",)),
  setting("TARGET_SHARDING = 'half'", "TARGET_SHARDING='half'"),
]

TRAINING = (
  "--gin_file=configs/train/small_draft.gin",
  "--gin.OUTPUT_DIR='HERE/out'",
  "--gin.VOCABULARY_PATH='PAIR/tiny.model'",
  "--gin.VOCAB_SIZE=64",
  "--gin.TRAIN_FILES=('PAIR/text.en', 'PAIR/text.en')",
  "--gin.VALIDATION_FILES=%TRAIN_FILES",
  "--gin.tasks.translation_from_files.name='NAME'",
)
COUNTING = (
  "--job=ngrams",
  "--gin_file=configs/train/ngrams.gin",
  "--gin.TARGETS='PAIR/text.en'",
  *("--gin.VOCAB_SIZE=64", "--gin.VOCABULARY_PATH='PAIR/tiny.model'"),
  "--gin.OUTPUT_DIR='HERE/out'",
  "--gin.tasks.translation_from_files.name='NAME'",
)
EXPORT = (
  *("--gin_file=configs/spec_ende.gin", "--gin_file=HERE/pair.gin"),
  "--output=HERE/exported",
)
TRIMMING = (
  "--job=trim",
  "--gin_file=configs/train/trim.gin",
  *COUNTING[2:3],
  *COUNTING[4:],
  "--gin.DRAFT_CHECKPOINT_PATH='PAIR/gpt/checkpoint_7'",
)

COMMANDS = [
  other("training without --gin_file", commands.training),
  other("training of an unknown --job", commands.training, "--job=distill"),
  other(
    "training in an unknown MODE", commands.training, *TRAINING, "--gin.MODE='distill'"
  ),
  other(
    "training with a misspelt macro",
    commands.training,
    *TRAINING,
    "--gin.LERNING_RATE=1",
  ),
  other(
    "n-grams where a checkpoint is", commands.training, *COUNTING, make=inputs.counted
  ),
  other(
    "a draft of no tokens", commands.training, *TRIMMING, "--gin.DRAFT_VOCABULARY=0"
  ),
  other(
    "a draft model trimmed with a target",
    commands.training,
    *TRIMMING,
    "--gin.TARGET_CHECKPOINT_PATH='PAIR/gpt/checkpoint_7'",
    "--gin.DRAFT_VOCABULARY=8",
  ),
  other(
    "scripts/show_trace.py at a negative temperature",
    commands.script("show_trace"),
    *("--text=a", "--temperature=-1"),
  ),
  other(
    "scripts/prepare_tfds.py without --target",
    commands.script("prepare_tfds"),
    *("--dataset=wmt14_translate/de-en", "--tfds_data_dir=HERE/out"),
    *("--split=test", "--source=PAIR/text.en"),
  ),
  other("exporting drafts as long as pay", commands.exporting, *EXPORT),
  other(
    "exporting for what is no platform", commands.exporting, *EXPORT, "--platforms=x"
  ),
  other("exporting no rows", commands.exporting, *EXPORT, "--batch_sizes=16,0"),
  other(
    "exporting our own kernels", commands.exporting, *EXPORT, "--gin.PRODUCTS='native'"
  ),
  other(
    "exporting where something is",
    commands.exporting,
    *EXPORT,
    *("--gin.GAMMA=3", "--output=HERE/out"),
  ),
  other(
    "exporting a draft that learns",
    commands.exporting,
    *(*EXPORT, "--gin_file=configs/runs/online.gin", "--gin.GAMMA=3"),
  ),
  other(
    "`python -m specdec_t5x.diagnose` without text (exit code 2)",
    commands.diagnosis,
    "--input=no.en",
    code=2,
  ),
]
