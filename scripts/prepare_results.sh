#!/bin/bash
# Makes the folder of a real pair that `make results` measures: {m30k} of its plan.
#
#   scripts/prepare_results.sh ../shared/data runs/m30k
#   make results ARGS="--data m30k=runs/m30k"
#
# The first folder has multi30k (texts, m30k_8k.model), t5x_m30k (the pair's checkpoints),
# wmt14_500_multiref (news), tatoeba_deu, cnndm_manuj and t5_spiece (articles, T5's
# vocabulary). What is trained takes an hour and a half on two cores; the same command goes
# on where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${1:?Give the folder of the data, then the folder to make.}")
DIR=${2:?Give the folder to make after the folder of the data.}
PYTHON=${PYTHON:-.venv/bin/python}
TEXTS=$DATA/multi30k
for name in multi30k t5x_m30k wmt14_500_multiref tatoeba_deu cnndm_manuj t5_spiece; do
  if [ ! -d "$DATA/$name" ]; then
    echo "error: $DATA/$name does not exist. Give the folder of the data." >&2
    exit 1
  fi
done
mkdir -p "$DIR"

ln -sfn "$DATA/t5x_m30k/target_checkpoint_2000" "$DIR/target"
ln -sfn "$DATA/t5x_m30k/draft_checkpoint_1800" "$DIR/draft"
ln -sf "$TEXTS/m30k_8k.model" "$DATA/t5_spiece/spiece.model" \
  "$DATA/cnndm_manuj/cnn_dailymail_validation.csv" "$DIR"
ln -sf "$TEXTS/test_2016_flickr.en" "$DIR/test.en"
ln -sf "$TEXTS/test_2016_flickr.de" "$DIR/test.de"
ln -sf "$TEXTS/val.en" "$DIR/valid.en"
awk -F '\t' '/^S-/ && split($2, words, " ") <= 22 {print $2}' \
  "$DATA/wmt14_500_multiref/wmt14-en-de.extra_refs.txt" > "$DIR/news.en"
awk -F '\t' 'split($1, words, " ") >= 4 && ++n % 40 == 0 {print $1}' \
  "$DATA/tatoeba_deu/deu.txt" > "$DIR/tatoeba.en"
cat > "$DIR/pair.gin" << END
from __gin__ import dynamic_registration
from specdec_t5x.data import tasks
include 'configs/pairs/m30k.gin'

VOCABULARY_PATH = '$DIR/m30k_8k.model'
VOCABULARY_EXTRA_IDS = 0
MIXTURE_OR_TASK_NAME = @tasks.translation_from_files()
tasks.translation_from_files:
  name = 'm30k_test'
  files = {'test': ('$DIR/test.en', '$DIR/test.de')}
  vocabulary = %VOCABULARY
TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 64}
TARGET_CHECKPOINT_PATH = '$DIR/target'
DRAFT_CHECKPOINT_PATH = '$DIR/draft'
END

cat > "$DIR/outputs.gin" << END
from __gin__ import dynamic_registration
from specdec_t5x.data import tasks

TRAIN_FILES = None            # Of the task that this one replaces.
VALIDATION_FILES = None
MIXTURE_OR_TASK_NAME = @tasks.from_records()
tasks.from_records:
  name = 'target_outputs'
  files = {
    'train': '$DIR/distilled/train.jsonl',
    'validation': '$DIR/distilled/validation.jsonl',
  }
  vocabulary = %VOCABULARY
END

# sizes FILE WIDTH HEADS ENCODER_LAYERS DECODER_LAYERS MLP: a gin file of a network.
sizes() {
  cat > "$1" << END
from __gin__ import dynamic_registration
from specdec_t5x.network import config
config.T5Config:
  emb_dim = $2
  num_heads = $3
  num_encoder_layers = $4
  num_decoder_layers = $5
  mlp_dim = $6
  mlp_activations = ('gelu', 'linear')
END
}

# train JOB GIN_FILES NAME=VALUE ..: a training job, with gin's words. Jobs that count
# write checkpoint_0 once; the others go on by themselves.
train() {
  local job=$1 file
  local -a words=(--gin.VOCABULARY_PATH="'$DIR/m30k_8k.model'")
  for file in $2; do words+=(--gin_file="$file"); done
  shift 2
  "$PYTHON" -m specdec_t5x.train --job="$job" "${words[@]}" "${@/#/--gin.}"
}

TARGET="TARGET_CHECKPOINT_PATH='$DIR/target'"
SHORT=(BATCH_SIZE=4 STEPS=250)
HEADS="configs/train/heads.gin"
MINE="$DIR/outputs.gin"

[ -d "$DIR/ngrams/checkpoint_0" ] || train ngrams configs/train/ngrams.gin \
  "TARGETS='$TEXTS/train.de'" VOCAB_SIZE=8064 "OUTPUT_DIR='$DIR/ngrams'"

# A better draft. The target's outputs, which the run keeps, are data of the others.
train distil configs/train/distil.gin "$TARGET" "DRAFT_CHECKPOINT_PATH='$DIR/draft'" \
  "INPUTS='$TEXTS/train.en'" "PREFIX='translate English to German: '" \
  "OUTPUT_DIR='$DIR/distilled'"

# Heads of each kind.
train heads "$HEADS $MINE" "$TARGET" "${SHORT[@]}" "OUTPUT_DIR='$DIR/heads'" \
  "HEADS=('parallel', 'eagle', 'shared_encoder', 'medusa', 'blockwise')"
train heads "$HEADS $MINE" "$TARGET" "${SHORT[@]}" "OUTPUT_DIR='$DIR/heads/seven'" \
  NUM_HEADS=7 "HEADS='eagle'"
"$PYTHON" -c "
import json, sys
for line in sys.stdin: print(json.loads(line)['targets'])
" < "$DIR/distilled/train.jsonl" > "$DIR/outputs.de"

# trimmed KIND NAME=VALUE ..: the most frequent 2,000 tokens of a kind.
trimmed() {
  local kind=$1
  shift
  [ -d "$DIR/heads/${kind}_trimmed/checkpoint_0" ] || train trim configs/train/trim.gin \
    "TARGETS='$DIR/outputs.de'" DRAFT_VOCABULARY=2000 "$@" \
    "DRAFT_CHECKPOINT_PATH='$DIR/heads/$kind/checkpoint_250'" \
    "OUTPUT_DIR='$DIR/heads/${kind}_trimmed'"
}
trimmed shared_encoder
trimmed eagle "$TARGET"

# A draft model by each loss, from scratch, and the pair's own one tuned.
sizes "$DIR/draft.gin" 128 2 1 1 384
for loss in forward_kl negative_log_alpha total_variation; do
  DISTILLED=(
    "$TARGET" "MODE='distill_tokens'" "DISTILL_LOSS='$loss'" VOCAB_SIZE=8064
    BATCH_SIZE=4 METRIC_PERIOD=0 DROPOUT_RATE=0.0
  )
  train train "configs/train/small_draft.gin $DIR/draft.gin $MINE" "${DISTILLED[@]}" \
    STEPS=900 WARMUP_STEPS=90 "OUTPUT_DIR='$DIR/losses/scratch_$loss'"
  train train "configs/train/small_draft.gin $DIR/draft.gin $MINE" "${DISTILLED[@]}" \
    STEPS=400 WARMUP_STEPS=40 "OUTPUT_DIR='$DIR/losses/tuned_$loss'" LEARNING_RATE=0.001 \
    "INIT_CHECKPOINT_PATH='$DIR/draft'"
done
