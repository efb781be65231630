"""What users get wrong with files and commands; `case` says how to read it."""

from tests import commands
from tests.errors import inputs
from tests.errors.case import (
  DAMAGED,
  Case,
  other,
  setting,
)

CHECKPOINTS = [
  setting(
    "a checkpoint that is not there",
    "TARGET_CHECKPOINT_PATH='no/checkpoint_1'",
    "TARGET_CHECKPOINT_PATH: no/checkpoint_1 is not a directory",
  ),
  setting(
    "a file in place of a checkpoint",
    "TARGET_CHECKPOINT_PATH='PAIR/text.en'",
    "text.en is not a directory",
  ),
  Case(
    "a folder without a checkpoint",
    "holds no checkpoint",
    ("--gin.TARGET_CHECKPOINT_PATH='HERE/empty'",),
    make=inputs.empty_folder,
  ),
  setting("a path that is none", "TARGET_CHECKPOINT_PATH=5", "folder, got 5"),
  setting(
    "no checkpoint of the draft",
    "DRAFT_CHECKPOINT_PATH=None",
    "DRAFT_CHECKPOINT_PATH: Expected the path of a checkpoint's folder, got None",
  ),
  Case(
    "a network with more layers",
    "of the network's",
    gin="target/config.T5Config.num_decoder_layers = 3\n",
  ),
  Case(
    "a network with fewer layers",
    "parameters that the network has no place for",
    gin="target/config.T5Config.num_decoder_layers = 1\n",
  ),
  Case(
    "a network of another width",
    "token_embedder/embedding has shape",
    gin="target/config.T5Config.emb_dim = 24\n",
  ),
  Case(
    "networks of different vocabularies",
    "Target and draft must share a vocabulary",
    gin="target/config.T5Config.vocab_size = 96\n",
  ),
  Case(
    "a vocabulary larger than the network",
    "The vocabulary has 30 tokens, but the network's vocab_size is 16",
    gin="config.T5Config.vocab_size = 16\n",
  ),
  setting(
    "a decoder-only checkpoint",
    "DRAFT_CHECKPOINT_PATH='PAIR/gpt/checkpoint_7'",
    "gpt/checkpoint_7 lacks",
  ),
  setting(
    "a network where a table of n-grams is due",
    "DRAFTER='ngram'",
    "This is no table of n-grams",
  ),
  Case("a truncated array", "could not be restored", (DAMAGED,), make=inputs.truncated),
  Case("an array missing", "could not be read", (DAMAGED,), make=inputs.array_missing),
  Case("an altered index", "can't be read", (DAMAGED,), make=inputs.index_altered),
  Case(
    "an altered Orbax checkpoint",
    "The index of checkpoint",
    ("--gin.DRAFT_CHECKPOINT_PATH='HERE/checkpoint_7'",),
    make=inputs.orbax_damaged,
  ),
  Case(
    "weights with NaN", "is not finite as float32", (DAMAGED,), make=inputs.with_nan
  ),
]

VOCABULARIES = [
  setting(
    "a vocabulary that is not there",
    "VOCABULARY_PATH='no.model'",
    "no.model can't be read",
  ),
  Case(
    "a vocabulary that is no SentencePiece model",
    "is not a SentencePiece model",
    ("--gin.VOCABULARY_PATH='HERE/text.model'",),
    make=inputs.vocabulary_text,
  ),
  Case(
    "a vocabulary with other special tokens",
    "numbers its special tokens",
    ("--gin.VOCABULARY_PATH='HERE/unusual.model'",),
    make=inputs.unusual_vocabulary,
  ),
  setting(
    "VOCABULARY_EXTRA_IDS = -1", "VOCABULARY_EXTRA_IDS=-1", "VOCABULARY_EXTRA_IDS"
  ),
]

OUTPUTS = [
  Case(
    "an output directory below a file",
    "can't be written to",
    ("--gin.INFER_OUTPUT_DIR='HERE/file/out'",),
    make=inputs.file_in_the_way,
  ),
  Case(
    "a finished run with other settings",
    "holds a finished run with other settings",
    make=inputs.finished,
  ),
  Case("a damaged summary", "speculation.json is damaged", make=inputs.damaged_summary),
  Case(
    "chunks of an unfinished run with other settings",
    "holds chunks of an unfinished run with other settings",
    make=inputs.unfinished,
  ),
  setting("no output directory", "INFER_OUTPUT_DIR=''", "must be the path of a folder"),
  setting("a number for a path", "INFER_OUTPUT_DIR=5", "path of a folder, got 5"),
  Case("shard 2 of 2", "shard_id must be between 0 and", ("--shard_id=2",)),
  Case("a shard that is no number", "invalid literal for int", ("--shard_id=one",)),
  Case("a process without a number", "go together", ("--coordinator_address=h:1",)),
  setting("TARGET_SHARDING = 'half'", "TARGET_SHARDING='half'", "sharding must be one"),
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


COMMANDS = [
  other("training without --gin_file", "got none", commands.training),
  other(
    "training of an unknown --job",
    "should be one of <train",
    commands.training,
    "--job=distill",
  ),
  other(
    "training in an unknown MODE",
    "Unknown MODE 'distill'",
    commands.training,
    *TRAINING,
    "--gin.MODE='distill'",
  ),
  other(
    "training with a misspelt macro",
    "Did you mean LEARNING_RATE",
    commands.training,
    *TRAINING,
    "--gin.LERNING_RATE=1",
  ),
  other(
    "n-grams where a checkpoint is",
    "holds a checkpoint_0 already",
    commands.training,
    *COUNTING,
    make=inputs.counted,
  ),
  other(
    "scripts/show_trace.py at a negative temperature",
    "temperature must be a finite number of at least 0, got -1.0",
    commands.script("show_trace"),
    *("--text=a", "--temperature=-1"),
  ),
  other(
    "scripts/prepare_tfds.py without --target",
    "--split, --source and --target belong together",
    commands.script("prepare_tfds"),
    *("--dataset=wmt14_translate/de-en", "--tfds_data_dir=HERE/out"),
    *("--split=test", "--source=PAIR/text.en"),
  ),
  other(
    "`python -m specdec_t5x.diagnose` without text (exit code 2)",
    "--input: 'no.en' is no file",
    commands.diagnosis,
    "--input=no.en",
    code=2,
  ),
]
