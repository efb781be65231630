"""A tiny pair, and faults of the pair's files."""

import dataclasses
import pathlib
import shutil

import numpy as np
import sentencepiece
import tensorstore

from tests import damage
from tests.e2e import runs
from tests.t5x_bridge import test_orbax_layouts, test_scanned, tiny, tiny_gpt

ARRAY = "target.decoder.logits_dense.kernel"


@dataclasses.dataclass(frozen=True)
class Pair:
  """The files of the pair below `root`."""

  root: pathlib.Path

  @property
  def target(self) -> pathlib.Path:
    return self.root / "target" / "checkpoint_7"

  def settings(self, name: str) -> str:
    """Returns the gin text of the pair's files and task, without the networks."""
    return runs.translation(
      name,
      self.root / "text.en",
      self.root / "tiny.model",
      TARGET_CHECKPOINT_PATH=str(self.target),
      DRAFT_CHECKPOINT_PATH=str(self.root / "draft" / "checkpoint_7"),
      BATCH_SIZE=8,
    )

  def gin_file(self, folder: pathlib.Path, name: str) -> pathlib.Path:
    path = folder / "pair.gin"
    path.write_text(runs.TINY_NETWORKS + self.settings(name))
    return path


def make_pair(root: pathlib.Path) -> Pair:
  tiny.train_vocabulary(root)
  (root / "text.en").write_text("\n".join(tiny.sentences(4)) + "\n")
  for name, config, format in (
    ("target", tiny.TARGET, "t5x"),
    ("draft", tiny.DRAFT, "orbax"),
    ("gpt", tiny_gpt.DRAFT, "t5x"),
  ):
    tiny.save(root / name, config, tiny.drawn(config), format)
  return Pair(root)


def copied_target(pair: Pair, here: pathlib.Path) -> pathlib.Path:
  return pathlib.Path(shutil.copytree(pair.target, here / "checkpoint_7"))


def truncated(pair, here):
  array = copied_target(pair, here) / ARRAY / "0.0"
  array.write_bytes(array.read_bytes()[:100])


def array_missing(pair, here):
  shutil.rmtree(copied_target(pair, here) / ARRAY)


def index_altered(pair, here):
  index = copied_target(pair, here) / "checkpoint"
  index.write_bytes(b"\x00" + index.read_bytes()[1:])


def pointers(pair, here):
  for array in (copied_target(pair, here) / ARRAY).iterdir():
    damage.make_pointer(array)


def with_nan(pair, here):
  folder = copied_target(pair, here) / ARRAY
  spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder}/"}}
  store = tensorstore.open(spec).result()
  store[1, 1].write(np.float32(np.nan)).result()


def orbax_damaged(pair, here):
  copied = here / "checkpoint_7"
  shutil.copytree(pair.root / "draft" / "checkpoint_7", copied)
  (copied / "state" / "_METADATA").write_text("{")


def orbax_of_other(pair, here):
  """Writes a checkpoint with Orbax's writer that does not hold a network."""
  test_orbax_layouts.standard(here / "other", {"layer": {"kernel": np.ones((2, 2))}})


def orbax_of_items(pair, here):
  tree = {"layer": {"kernel": np.ones((2, 2))}}
  test_orbax_layouts.managed(a=None, b=None)(here, tree)


def stacks_misfit(pair, here):
  flat = test_scanned.stack(tiny.drawn(tiny.TARGET), 1, "{}")
  flat["decoder/decoder/mlp/wo/kernel"] = np.ones((16, 2, 17), np.float32)
  test_scanned.write(here, flat)


def empty_folder(pair, here):
  (here / "empty").mkdir()


def sizeless(pair, here):
  """Writes the gin file of a run without the networks' sizes."""
  (here / "sizeless.gin").write_text(pair.settings("sizeless"))


def unusual_vocabulary(pair, here):
  sentencepiece.SentencePieceTrainer.train(
    input=str(pair.root / "text.txt"),
    model_prefix=str(here / "unusual"),
    vocab_size=30,
    bos_id=0,  # ID 0 is then a token, not padding.
    unk_id=1,
    minloglevel=2,
  )


def unfinished(pair, here):
  """Writes a chunk of the task, as left by a run with a different split."""
  from t5x import inference_files  # Upstream T5X has no such module.

  suffix = "predict_with_aux.jsonl-00000-of-00001"
  name = f"errors_{here.name}"
  files = inference_files.ChunkFiles(
    str(here / "out"), name, suffix, {"split": "another"}
  )
  files.write(0, 1, lambda path: pathlib.Path(path).write_text("{}\n"))


def counted(pair, here):
  (here / "out" / "checkpoint_0").mkdir()
