"""A folder in which the documentation's commands run on tiny networks.

The folder has the paths named by the pages. The networks are random. Appended flags cut
long commands to a few examples or steps.
"""

import contextlib
import dataclasses
import itertools
import json
import pathlib
import re
import runpy
import shutil
import sys

from specdec_t5x.demo import embedded
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.heads import HeadsConfig
from tests import commands
from tests.real_data import ROOT
from tests.t5x_bridge import tiny

_SIZES = {
  "vocab_size": 2048,
  "emb_dim": 16,
  "head_dim": 8,
  "mlp_dim": 32,
  "num_heads": 2,
  "num_encoder_layers": 1,
  "num_decoder_layers": 1,
}
_T5 = T5Config(**_SIZES)
_LINES = [f"The dog {n} sees the old house." for n in range(40)]
# Appended flags. The last flag wins.
_SMALL = (
  "--gin.BATCH_SIZE=4",
  "--gin.TASK_FEATURE_LENGTHS={'inputs': 40, 'targets': 12}",
)
# No row is refilled: there are fewer inputs than rows.
_FEW_INPUTS = (*_SMALL, "--gin.READ_AHEAD=1")
_FEW_STEPS = (
  *_SMALL,
  *("--gin.STEPS=2", "--gin.WARMUP_STEPS=1", "--gin.VALIDATION_PERIOD=0"),
  *("--gin.DROPOUT_RATE=0.0", "--gin.Z_LOSS=0.0", "--gin.VALIDATION_BATCHES=1"),
)
# tests/training trains heads of every kind.
_FEW_HEADS = (
  *("--gin.HEADS=('parallel',)", "--gin.NUM_HEADS=4"),
  "--gin.CHECKPOINT_PERIOD=2",
)


def make(root: pathlib.Path) -> None:
  """Makes the folder: gin files with tiny sizes, the demo pair, and a user's files.

  A tiny pair with the embedded pair's vocabulary is in the folder `pair`.
  `embedded.FOLDER` should point to `pair` while the documentation runs.
  """
  shutil.copytree(ROOT / "configs", root / "configs")
  for name in ("examples", "scripts", "specdec_t5x"):
    (root / name).symlink_to(ROOT / name)
  for part in ("pairs", "train", "drafters", "contrib"):
    for path in (root / "configs" / part).glob("*.gin"):
      path.write_text(_tiny(path.read_text()))
  with contextlib.chdir(root):
    _make_demo()
    _make_own_files()


def _tiny(text: str) -> str:
  for name, value in _SIZES.items():
    text = re.sub(rf"\b{name} = \d+", f"{name} = {value}", text)
  text = re.sub(r"mlp_activations = .*", "mlp_activations = ('relu',)", text)
  return re.sub(r"SKIP = \('.*\)", "SKIP = ('mlp_0',)", text)


def _make_demo() -> None:
  for language, lines in zip(("en", "de"), (_LINES, _LINES[::-1]), strict=True):
    pathlib.Path(f"pair/test.{language}").write_text("\n".join(lines[:3]) + "\n")
  more = pathlib.Path("runs/demo/ende")
  _save(embedded.target(), _T5)
  for path in (embedded.draft(), more / "draft_tiny/checkpoint_600"):
    _save(path, _T5, seed=1)
  for kind in ("parallel", "eagle"):
    heads = HeadsConfig.of(_T5, 5, kind=kind)
    _save(more / f"heads/{kind}/checkpoint_600", heads)
  pathlib.Path("targets.de").write_text("\n".join(_LINES))
  commands.training(
    *("--job=ngrams", "--gin_file=configs/train/ngrams.gin"),
    "--gin.TARGETS='targets.de'",
    "--gin.tasks.translation_from_files.name='demo_targets'",
    f"--gin.VOCABULARY_PATH={embedded.vocabulary()!r}",
    "--gin.VOCAB_SIZE=2048",
    f"--gin.OUTPUT_DIR={str(more / 'ngrams')!r}",
  )


def _save(checkpoint, config, seed=0):
  folder, _, step = str(checkpoint).rpartition("/checkpoint_")
  tiny.save(pathlib.Path(folder), config, tiny.drawn(config, seed), step=int(step))


def _make_own_files() -> None:
  shutil.copy(embedded.vocabulary(), "my.model")
  for name in ("my", "train", "valid"):
    for language in ("en", "de"):
      lines = _LINES[:3] if name == "my" else _LINES
      pathlib.Path(f"{name}.{language}").write_text("\n".join(lines) + "\n")
  _save("my_pair/target/checkpoint_2000", _T5, seed=3)
  _save("my_pair/draft/checkpoint_1800", _T5, seed=1)
  decoder = dataclasses.replace(_T5, num_encoder_layers=0, num_decoder_layers=1)
  _save("my_pair/shared_encoder/checkpoint_1000", decoder, seed=2)


class Agreement:
  """Compares the greedy outputs of runs that keep the outputs of the same target."""

  _SAME = (
    *("TARGET_CHECKPOINT_PATH", "MIXTURE_OR_TASK_NAME", "TASK_FEATURE_LENGTHS"),
    *("WEIGHTS", "ACTIVATION_DTYPE"),
  )

  def __init__(self):
    self._outputs = {}

  def check(self, started: float) -> None:
    """Compares the outputs of the runs written since `started`."""
    for summary in pathlib.Path.cwd().rglob("speculation.json"):
      if summary.stat().st_mtime < started:
        continue
      record = json.loads(summary.read_text())
      is_greedy = record["sampling"]["temperature"] == 0
      if not is_greedy or record["guarantee"] not in ("EXACT", "GREEDY_EXACT"):
        continue
      bindings = record["configuration"]
      job = str([bindings.get(name) for name in self._SAME])
      files = sorted(summary.parent.glob("*.jsonl-?????-of-?????"))
      shards = [file.read_text().splitlines() for file in files]
      outputs = [
        json.loads(line)["prediction_tokens"]
        for lines in itertools.zip_longest(*shards)  # Shards have lines in turn.
        for line in lines
        if line is not None
      ]
      assert outputs == self._outputs.setdefault(job, outputs), (summary, job)


def run(arguments: list[str]) -> None:
  """Runs `python` with the arguments, in this process and the working directory."""
  if arguments[0] == "-c":
    exec(arguments[1], {"__name__": "__main__"})
    return
  if arguments[0] != "-m":
    run_script(*arguments)
    return
  _, module, *flags = arguments
  if module == "t5x.infer":
    commands.infer(*flags, *_FEW_INPUTS)
  elif module == "t5x.eval":
    commands.evaluation(*flags, *_FEW_INPUTS)
  elif module == "specdec_t5x.train":
    few_steps = () if {"--job=ngrams", "--job=trim"} & {*flags} else _FEW_STEPS
    heads = _FEW_HEADS if "--job=heads" in flags else ()
    flags = [re.sub(r"(VOCAB_SIZE=)\d+", r"\g<1>2048", flag) for flag in flags]
    commands.training(*flags, *few_steps, *heads)
  else:
    if module == "benchmarks" and "--gammas" in flags:
      flags += ["--gammas", "1", "3"]  # The last value of a flag wins.
    with patched_argv(module, *flags):
      runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_script(path: str, *flags: str) -> None:
  """Runs a script, which may end with exit code 0."""
  with patched_argv(path, *flags):
    code = 0
    try:
      runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
      code = end.code
  assert not code, f"{path} {flags} ended with {code}"


@contextlib.contextmanager
def patched_argv(*argv: str):
  """Replaces the arguments of the process within the context."""
  before = sys.argv
  sys.argv = list(argv)
  try:
    yield
  finally:
    sys.argv = before
