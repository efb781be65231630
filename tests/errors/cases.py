"""What users get wrong, as docs/errors.md lists it; `case` says how to read it."""

from tests.errors import inputs
from tests.errors.case import (
  AUTO,
  BEAM,
  CASCADE,
  CONFIDENCE,
  COPY,
  HEADS,
  LAYER_SKIP,
  LEARNS,
  LINK,
  NGRAM,
  OUTPUT,
  QUANTIZED,
  TREE,
  Case,
  of_files,
  setting,
)
from tests.errors.data_cases import DATA
from tests.errors.file_cases import CHECKPOINTS, COMMANDS, OUTPUTS, VOCABULARIES
from tests.errors.folder_cases import FOLDERS

GIN = [
  Case("no --gin_file", "expected --gin_file=<file>, got none", base=()),
  Case("a gin file that is not there", "Unable to open file", ("--gin_file=no.gin",)),
  Case(
    "a misspelt macro, `--gin.GAMA=5`",
    "Did you mean GAMMA",
    ("--gin.GAMA=5",),
    alone=True,
  ),
  setting("a string without quotes", "DRAFTER=copy", "text in quotes"),
  Case("a syntax error in a gin file", "Unable to parse value", gin="GAMMA = = 5\n"),
  Case(
    "a gin file with a byte that is not UTF-8",
    "A gin file is text in UTF-8",
    ("--gin_file=HERE/latin.gin",),
    make=inputs.text_file("latin.gin", b"GAMMA = 3 # \xe9\n"),
  ),
  Case(
    "a gin file that includes itself",
    "a gin file includes itself",
    ("--gin_file=HERE/round.gin",),
    make=lambda pair, here: (here / "round.gin").write_text(
      f"include '{here}/round.gin'\n"
    ),
  ),
  Case("a gin file that imports no module", "No module named", gin="import no_such\n"),
  setting("an unknown configurable", "no.such.thing=1", "No configurable matching"),
  Case(
    "an unknown parameter in a gin file",
    "doesn't have a parameter named 'vocabulary_size'",
    gin="from __gin__ import dynamic_registration\n"
    "from specdec_t5x.network import config\nconfig.T5Config.vocabulary_size = 3\n",
  ),
  Case(
    "no network's sizes",
    "T5Config needs 'vocab_size', which no gin file binds",
    ("--gin_file=configs/runs/speculative.gin", "--gin_file=HERE/sizeless.gin"),
    make=lambda pair, here: (here / "sizeless.gin").write_text(
      pair.settings("sizeless")
    ),
    base=(OUTPUT,),
  ),
  Case(
    "a REQUIRED macro left out",
    "DRAFT_CHECKPOINT_PATH and INFER_OUTPUT_DIR",
    base=("--gin_file=configs/runs/speculative.gin",),
  ),
  Case(
    "a macro that reads one that nobody sets",
    "%MY_GAMMA is read, but",
    ("--gin.GAMMA=%MY_GAMMA",),
  ),
  Case("`--gin.GAMMA` without a value", "--gin.<name>=<value>", ("--gin.GAMMA",)),
  Case("an argument that is no flag", "expected flags alone", ("GAMMA=3",)),
  Case("an unknown flag", "Unknown command line flag 'gamma'", ("--gamma=3",)),
]

DECODING = [
  setting("GAMMA = 0", "GAMMA=0", "GAMMA must be a whole number of at least 1, got 0"),
  setting("GAMMA = 2.5", "GAMMA=2.5", "whole number of at least 1, got 2.5"),
  setting("GAMMA = 'five'", "GAMMA='five'", "whole number of at least 1, got 'five'"),
  setting(
    "GAMMA = 12 with targets of 12",
    "GAMMA=12",
    "at most 11 drafted tokens can count",
  ),
  setting(
    "TEMPERATURE = -1", "TEMPERATURE=-1.0", "temperature must be a finite number"
  ),
  setting("TEMPERATURE = 1e999", "TEMPERATURE=1e999", "at least 0, got inf"),
  setting("TOPK = -1", "TOPK=-1", "top_k must be a whole number of at least 0"),
  setting("TOPP = 1.5", "TOPP=1.5", "top_p must be between 0 and 1, got 1.5"),
  setting("TOPK and TOPP", "TOPK=5", "At most one of top_k and top_p", "TOPP=0.5"),
  setting(
    "LENIENCE = 0", "LENIENCE=0.0", "LENIENCE must be above 0", "VERIFICATION='lenient'"
  ),
  setting("LENIENCE for an exact rule", "LENIENCE=0.5", "needs VERIFICATION='lenient'"),
  setting(
    "NUM_CANDIDATES for a single draft",
    "NUM_CANDIDATES=2",
    "The rule Token judges a single draft, got a TreeDraft",
  ),
  setting("a negative SLOTS", "SLOTS=-1", "SLOTS must be a whole number"),
  setting("NUM_CANDIDATES = 0", "NUM_CANDIDATES=0", "NUM_CANDIDATES must be a whole"),
  setting(
    "an unknown VERIFICATION", "VERIFICATION='exact'", "Unknown verification rule"
  ),
  setting(
    "VERIFICATION = 'greedy' to sample",
    "VERIFICATION='greedy'",
    "VERIFICATION='greedy' needs TEMPERATURE=0",
    "TEMPERATURE=1.0",
  ),
  setting(
    "VERIFICATION = 'top_k' to sample",
    "VERIFICATION='top_k'",
    "The rule TopK needs TEMPERATURE=0",
    "TEMPERATURE=1.0",
  ),
  of_files(
    "a draft model where heads were meant",
    (HEADS,),
    "must hold heads, got a Transformer",
  ),
  setting(
    "DRAFTER = 'heads' without a checkpoint",
    "DRAFTER='heads'",
    "Heads need DRAFT_CHECKPOINT_PATH",
    "DRAFT_CHECKPOINT_PATH=None",
  ),
  of_files(
    "a window no longer than the lower draft",
    (CASCADE,),
    "takes at most 2 of a lower draft",
    "GAMMA=3",
    "LOWER_GAMMA=3",
    "DRAFT_2_CHECKPOINT_PATH=%DRAFT_CHECKPOINT_PATH",
  ),
  of_files(
    "an unknown WINDOW",
    (CASCADE,),
    "WINDOW must be one of",
    "WINDOW='thresh'",
    "DRAFT_2_CHECKPOINT_PATH=%DRAFT_CHECKPOINT_PATH",
  ),
  of_files(
    "no checkpoint of the lowest draft",
    (CASCADE,),
    "Expected the path of a checkpoint's folder, got None",
    "DRAFT_2_CHECKPOINT_PATH=None",
  ),
  setting("an unknown DRAFTER", "DRAFTER='copying'", "Unknown DRAFTER 'copying'"),
  setting(
    "'copy' for 'kseq'",
    "DRAFTER='copy'",
    "The rule KSeq needs independent drafts, got a Copy",
    "VERIFICATION='kseq'",
  ),
  setting(
    "'copy' with a GAMMA_POLICY",
    "DRAFTER='copy'",
    "The policy Confidence decides token by token, got a Copy",
    "GAMMA_POLICY='confidence'",
  ),
  setting("an unknown GAMMA_POLICY", "GAMMA_POLICY='best'", "Unknown GAMMA_POLICY"),
  setting(
    "a GAMMA_POLICY with several candidates",
    "GAMMA_POLICY='confidence'",
    "decides token by token, got a TreeDraft",
    *("NUM_CANDIDATES=2", "VERIFICATION='kseq'"),
  ),
  of_files(
    "CONFIDENCE = 2",
    (CONFIDENCE,),
    "CONFIDENCE must be between 0 and 1",
    "CONFIDENCE=2.0",
  ),
  of_files(
    "SECONDS of another GAMMA",
    (AUTO,),
    "CostAware.seconds needs 6 times, of drafts of (0, 1, 2, 3, 4, 5) tokens, got 2",
    "SECONDS=(1.0, 2.0)",
  ),
  of_files(
    "SECONDS of 0", (AUTO,), "CostAware.seconds must be above 0", "SECONDS=(1.0, 0.0)"
  ),
  of_files(
    "PRIOR_ALPHA = 2", (AUTO,), "prior_alpha and a decay from 0 to 1", "PRIOR_ALPHA=2.0"
  ),
  setting(
    "BY_ROW without its gin file",
    "BY_ROW=True",
    "sets or reads. Add --gin_file=configs/policies/auto.gin",
  ),
  setting(
    "COPY_MATCH without its gin file",
    "COPY_MATCH=2",
    "sets or reads. Add --gin_file=configs/drafters/copy.gin",
  ),
  setting(
    "NGRAM_ORDER without its gin file",
    "NGRAM_ORDER=2",
    "sets or reads. Add --gin_file=configs/drafters/ngram.gin",
  ),
  setting(
    "CONFIDENCE without its gin file",
    "CONFIDENCE=0.2",
    "sets or reads. Add --gin_file=configs/policies/confidence.gin",
  ),
  of_files(
    "link.gin where no draft answers",
    (LINK,),
    "No draft answers at localhost:1",
    "LINK_ADDRESS='localhost:1'",
  ),
  of_files(
    "LINK_MBITS = -1",
    (LINK,),
    "mbits of a link must be a number of at least 0, got -1",
    "LINK_MBITS=-1",
  ),
  of_files(
    "LINK_TOPK = -1",
    (LINK,),
    "top_k must be a whole number of at least 0, got -1",
    "LINK_TOPK=-1",
  ),
  of_files("COPY_MATCH = 7", (COPY,), "COPY_MATCH must be from 1 to 6", "COPY_MATCH=7"),
  of_files(
    "NGRAM_ORDER = -1", (NGRAM,), "NGRAM_ORDER must be a whole number", "NGRAM_ORDER=-1"
  ),
  of_files(
    "NUM_CANDIDATES with copy.gin",
    (COPY,),
    "A drafter owns its knobs",
    "NUM_CANDIDATES=2",
  ),
  of_files(
    "SKIP of a sublayer that is not there",
    (LAYER_SKIP,),
    "SKIP: the target has no sublayers ['mlp_9']; it has self_0",
    "SKIP=('mlp_9',)",
  ),
  of_files(
    "SKIP = 'mlp_1', no tuple",
    (LAYER_SKIP,),
    "SKIP must be names of sublayers",
    "SKIP='mlp_1'",
  ),
  of_files("BITS = 5", (QUANTIZED,), "BITS must be one of [4, 8], got 5", "BITS=5"),
  of_files("GROUP = 12", (QUANTIZED,), "GROUP must be a multiple of 8", "GROUP=12"),
  of_files(
    "WHOLE of a sublayer that is not there",
    (QUANTIZED,),
    "WHOLE: the target has no ['mlp_9']; it has self_0",
    "WHOLE=('mlp_9',)",
  ),
  setting(
    "SKIP without its gin file",
    "SKIP=('mlp_1',)",
    "quantized.gin or --gin_file=configs/drafters/layer_skip.gin, which sets it",
  ),
  of_files(
    "a tree whose STEM is longer than GAMMA",
    (TREE,),
    "GAMMA of at least STEM and 1, got 6, 2 and 5",
    "STEM=6",
  ),
  of_files("BRANCHES = 0", (TREE,), "BRANCHES of at least 1", "BRANCHES=0"),
  of_files("unknown SIBLINGS", (TREE,), "siblings must be one of", "SIBLINGS='all'"),
  of_files(
    "a tree for a rule of single drafts",
    (TREE,),
    "The rule Block judges a single draft, got a TreeDraft",
    "VERIFICATION='block'",
  ),
  of_files(
    "distinct siblings for 'kseq'",
    (TREE,),
    "The rule KSeq needs independent drafts, got a TreeDraft",
    "VERIFICATION='kseq'",
  ),
  setting("NUM_DECODES = 0", "NUM_DECODES=0", "NUM_DECODES must be a whole number"),
  setting("SEED = -1", "SEED=-1", "SEED must be a whole number from 0"),
  setting("BATCH_SIZE = 0", "BATCH_SIZE=0", "BATCH_SIZE must be a whole number"),
  setting("BATCH_SIZE = '8'", "BATCH_SIZE='8'", "of at least 1, got '8'"),
  setting(
    "an unknown PARAM_DTYPE",
    "PARAM_DTYPE='float8'",
    "RestoreCheckpointConfig.dtype must",
  ),
  setting(
    "an unknown ACTIVATION_DTYPE", "ACTIVATION_DTYPE='float8'", "dtype must be one of"
  ),
  setting("PRODUCTS = 'fast'", "PRODUCTS='fast'", "PRODUCTS must be one of"),
  setting(
    "PRODUCTS = 'native' in bfloat16",
    "PRODUCTS='native'",
    "they are of float32. Use 'auto' or 'xla'",
    "ACTIVATION_DTYPE='bfloat16'",
  ),
  of_files("copies with a beam", (COPY, BEAM), "DRAFTER must be 'draft_model' with a"),
  of_files("a tree with a beam", (TREE, BEAM), "NUM_CANDIDATES 1, got TreeDraft"),
  of_files(
    "NUM_CANDIDATES with a beam",
    (BEAM,),
    "NUM_CANDIDATES 1, got TreeDraft",
    "NUM_CANDIDATES=2",
  ),
  of_files(
    "a GAMMA_POLICY with a beam",
    (CONFIDENCE, BEAM),
    "GAMMA_POLICY must be 'fixed' with a beam, or left out",
  ),
  of_files(
    "a rule with a beam", (BEAM,), "VERIFICATION must be 'beam'", "VERIFICATION='token'"
  ),
  of_files("LENIENCE with a beam", (BEAM,), "and LENIENCE 1, got", "LENIENCE=0.5"),
  of_files(
    "a beam whose draft learns",
    (BEAM, LEARNS),
    "must be a SpeculativeDecoder whose",
  ),
  of_files(
    "copies that learn", (COPY, LEARNS), "Online learning needs a draft model with"
  ),
  of_files(
    "several decodes where the draft learns",
    (LEARNS,),
    "NUM_DECODES must be 1 where a draft learns",
    "NUM_DECODES=2",
    "TEMPERATURE=1.0",
  ),
  of_files(
    "an unknown ONLINE_LOSS",
    (LEARNS,),
    "Unknown distillation loss 'kl'",
    "ONLINE_LOSS='kl'",
  ),
  of_files("SEED with a beam", (BEAM,), "With a beam SEED and SLOTS must be", "SEED=3"),
  of_files("SLOTS with a beam", (BEAM,), "must be 0 and BLOCK 1, got 0, 4", "SLOTS=4"),
  of_files(
    "TEMPERATURE with a beam", (BEAM,), "Beam search draws nothing", "TEMPERATURE=1.0"
  ),
]

CASES = [
  *GIN,
  *DECODING,
  *DATA,
  *CHECKPOINTS,
  *VOCABULARIES,
  *OUTPUTS,
  *COMMANDS,
  *FOLDERS,
]
