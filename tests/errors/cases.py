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

BARE = [f"--gin_file=configs/runs/{name}.gin" for name in ("infer", "speculative")]

GIN = [
  Case("no --gin_file", base=()),
  Case("a gin file that is not there", ("--gin_file=no.gin",)),
  Case("a misspelt macro, `--gin.GAMA=5`", ("--gin.GAMA=5",), alone=True),
  setting("a string without quotes", "DRAFTER=copy"),
  Case("a syntax error in a gin file", gin="GAMMA = = 5\n"),
  Case(
    "a gin file with a byte that is not UTF-8",
    ("--gin_file=HERE/latin.gin",),
    make=inputs.text_file("latin.gin", b"GAMMA = 3 # \xe9\n"),
  ),
  Case(
    "a gin file that includes itself",
    ("--gin_file=HERE/round.gin",),
    make=lambda pair, here: (here / "round.gin").write_text(
      f"include '{here}/round.gin'\n"
    ),
  ),
  Case("a gin file that imports no module", gin="import no_such\n"),
  setting("an unknown configurable", "no.such.thing=1"),
  Case(
    "an unknown parameter in a gin file",
    gin="from __gin__ import dynamic_registration\n"
    "from specdec_t5x.network import config\nconfig.T5Config.vocabulary_size = 3\n",
  ),
  Case(
    "no network's sizes",
    (*BARE, "--gin_file=HERE/sizeless.gin"),
    make=lambda pair, here: (here / "sizeless.gin").write_text(
      pair.settings("sizeless")
    ),
    base=(OUTPUT,),
  ),
  Case("a REQUIRED macro left out", base=BARE),
  Case("a macro that reads one that nobody sets", ("--gin.GAMMA=%MY_GAMMA",)),
  Case("`--gin.GAMMA` without a value", ("--gin.GAMMA",)),
  Case("an argument that is no flag", ("GAMMA=3",)),
  Case("an unknown flag", ("--gamma=3",)),
]

DECODING = [
  setting("GAMMA = 0", "GAMMA=0"),
  setting("GAMMA = 2.5", "GAMMA=2.5"),
  setting("GAMMA = 'five'", "GAMMA='five'"),
  setting("GAMMA = 12 with targets of 12", "GAMMA=12"),
  setting("TEMPERATURE = -1", "TEMPERATURE=-1.0"),
  setting("TEMPERATURE = 1e999", "TEMPERATURE=1e999"),
  setting("TOPK = -1", "TOPK=-1"),
  setting("TOPP = 1.5", "TOPP=1.5"),
  setting("TOPK and TOPP", "TOPK=5", "TOPP=0.5"),
  setting("LENIENCE = 0", "LENIENCE=0.0", "VERIFICATION='lenient'"),
  setting("LENIENCE for an exact rule", "LENIENCE=0.5"),
  setting("NUM_CANDIDATES for a single draft", "NUM_CANDIDATES=2"),
  setting("a negative SLOTS", "SLOTS=-1"),
  setting("NUM_CANDIDATES = 0", "NUM_CANDIDATES=0"),
  setting("an unknown VERIFICATION", "VERIFICATION='exact'"),
  setting(
    "VERIFICATION = 'greedy' to sample", "VERIFICATION='greedy'", "TEMPERATURE=1.0"
  ),
  setting(
    "VERIFICATION = 'top_k' to sample", "VERIFICATION='top_k'", "TEMPERATURE=1.0"
  ),
  of_files("a draft model where heads were meant", (HEADS,)),
  setting(
    "DRAFTER = 'heads' without a checkpoint",
    "DRAFTER='heads'",
    "DRAFT_CHECKPOINT_PATH=None",
  ),
  of_files(
    "a window no longer than the lower draft",
    (CASCADE,),
    "GAMMA=3",
    "LOWER_GAMMA=3",
    "DRAFT_2_CHECKPOINT_PATH=%DRAFT_CHECKPOINT_PATH",
  ),
  of_files(
    "an unknown WINDOW",
    (CASCADE,),
    "WINDOW='thresh'",
    "DRAFT_2_CHECKPOINT_PATH=%DRAFT_CHECKPOINT_PATH",
  ),
  of_files(
    "no checkpoint of the lowest draft", (CASCADE,), "DRAFT_2_CHECKPOINT_PATH=None"
  ),
  setting("an unknown DRAFTER", "DRAFTER='copying'"),
  setting("'copy' for 'kseq'", "DRAFTER='copy'", "VERIFICATION='kseq'"),
  setting("'copy' with a GAMMA_POLICY", "DRAFTER='copy'", "GAMMA_POLICY='confidence'"),
  setting("an unknown GAMMA_POLICY", "GAMMA_POLICY='best'"),
  setting(
    "a budget of what drafts all or nothing", "DRAFTER='copy'", "GAMMA_POLICY='budget'"
  ),
  setting(
    "a GAMMA_POLICY with several candidates",
    "GAMMA_POLICY='confidence'",
    *("NUM_CANDIDATES=2", "VERIFICATION='kseq'"),
  ),
  of_files("CONFIDENCE = 2", (CONFIDENCE,), "CONFIDENCE=2.0"),
  of_files("SECONDS of another GAMMA", (AUTO,), "SECONDS=(1.0, 2.0)"),
  of_files("SECONDS of 0", (AUTO,), "SECONDS=(1.0, 0.0)"),
  of_files("PRIOR_ALPHA = 2", (AUTO,), "PRIOR_ALPHA=2.0"),
  setting("BY_ROW without its gin file", "BY_ROW=True"),
  setting("COPY_MATCH without its gin file", "COPY_MATCH=2"),
  setting("NGRAM_ORDER without its gin file", "NGRAM_ORDER=2"),
  setting("CONFIDENCE without its gin file", "CONFIDENCE=0.2"),
  of_files("link.gin where no draft answers", (LINK,), "LINK_ADDRESS='localhost:1'"),
  of_files("LINK_MBITS = -1", (LINK,), "LINK_MBITS=-1"),
  of_files("LINK_TOPK = -1", (LINK,), "LINK_TOPK=-1"),
  of_files("COPY_MATCH = 7", (COPY,), "COPY_MATCH=7"),
  of_files("NGRAM_ORDER = -1", (NGRAM,), "NGRAM_ORDER=-1"),
  of_files("NUM_CANDIDATES with copy.gin", (COPY,), "NUM_CANDIDATES=2"),
  of_files("SKIP of a sublayer that is not there", (LAYER_SKIP,), "SKIP=('mlp_9',)"),
  of_files("SKIP = 'mlp_1', no tuple", (LAYER_SKIP,), "SKIP='mlp_1'"),
  of_files("BITS = 5", (QUANTIZED,), "BITS=5"),
  of_files("GROUP = 12", (QUANTIZED,), "GROUP=12"),
  of_files("BITS = 8 with WEIGHTS = 'int8'", (QUANTIZED,), "WEIGHTS='int8'"),
  setting("WEIGHTS = 'int4'", "WEIGHTS='int4'"),
  setting("HEAD = 'certified' for samples", "HEAD='certified'", "TEMPERATURE=1.0"),
  setting(
    "HEAD = 'certified' with PRODUCTS = 'xla'", "HEAD='certified'", "PRODUCTS='xla'"
  ),
  setting("HEAD = 'fast'", "HEAD='fast'"),
  of_files("WHOLE of a sublayer that is not there", (QUANTIZED,), "WHOLE=('mlp_9',)"),
  setting("SKIP without its gin file", "SKIP=('mlp_1',)"),
  of_files("a tree whose STEM is longer than GAMMA", (TREE,), "STEM=6"),
  of_files("BRANCHES = 0", (TREE,), "BRANCHES=0"),
  of_files("unknown SIBLINGS", (TREE,), "SIBLINGS='all'"),
  of_files("a tree for a rule of single drafts", (TREE,), "VERIFICATION='block'"),
  of_files("distinct siblings for 'kseq'", (TREE,), "VERIFICATION='kseq'"),
  setting("NUM_DECODES = 0", "NUM_DECODES=0"),
  setting("SEED = -1", "SEED=-1"),
  setting("BATCH_SIZE = 0", "BATCH_SIZE=0"),
  setting("BATCH_SIZE = '8'", "BATCH_SIZE='8'"),
  setting("READ_AHEAD = 0", "READ_AHEAD=0"),
  setting("an unknown PARAM_DTYPE", "PARAM_DTYPE='float8'"),
  setting("an unknown ACTIVATION_DTYPE", "ACTIVATION_DTYPE='float8'"),
  setting("PRODUCTS = 'fast'", "PRODUCTS='fast'"),
  setting(
    "PRODUCTS = 'native' in bfloat16",
    "PRODUCTS='native'",
    "ACTIVATION_DTYPE='bfloat16'",
  ),
  of_files("copies with a beam", (COPY, BEAM)),
  of_files("a tree with a beam", (TREE, BEAM)),
  of_files("NUM_CANDIDATES with a beam", (BEAM,), "NUM_CANDIDATES=2"),
  of_files("a GAMMA_POLICY with a beam", (CONFIDENCE, BEAM)),
  of_files("a rule with a beam", (BEAM,), "VERIFICATION='token'"),
  of_files("LENIENCE with a beam", (BEAM,), "LENIENCE=0.5"),
  of_files("a beam whose draft learns", (BEAM, LEARNS)),
  of_files("copies that learn", (COPY, LEARNS)),
  of_files(
    "several decodes where the draft learns",
    (LEARNS,),
    "NUM_DECODES=2",
    "TEMPERATURE=1.0",
  ),
  of_files("an unknown ONLINE_LOSS", (LEARNS,), "ONLINE_LOSS='kl'"),
  of_files("SEED with a beam", (BEAM,), "SEED=3"),
  of_files("SLOTS with a beam", (BEAM,), "SLOTS=4"),
  of_files("TEMPERATURE with a beam", (BEAM,), "TEMPERATURE=1.0"),
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
