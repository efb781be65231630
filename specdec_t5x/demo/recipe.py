"""What the demo pairs are made of, and which parts are there."""

import dataclasses
import os

from specdec_t5x.data.hints import COMMANDS, DIRECTORY
from specdec_t5x.demo import embedded


@dataclasses.dataclass(frozen=True)
class Part:
  """A network that the demo trains.

  Attributes:
    name: of its directory.
    about: what it is, in a few words.
    gin_file: its training run.
    checkpoint: what the run leaves, from the repository's root.
    minutes: how long training takes on two cores, about.
    job: of `python -m specdec_t5x.train`.
    bindings: of gin, beside the file's.
    embedded: its name in the embedded pair, 'target' or 'draft'; '' for other parts.
  """

  name: str
  about: str
  gin_file: str
  checkpoint: str
  minutes: float
  job: str = "train"
  bindings: tuple[str, ...] = ()
  embedded: str = ""

  @property
  def path(self) -> str:
    """The checkpoint that decodes: the package's, else what training leaves."""
    return embedded.checkpoint(self.embedded) if self.embedded else self.checkpoint

  @property
  def command(self) -> str:
    """What makes it, from the repository's root."""
    words = [f"--job={self.job}", f"--gin_file={self.gin_file}"]
    words += [f"--gin.{each.replace(' ', '')}" for each in self.bindings]
    return " ".join(["python -m specdec_t5x.train", *words])


@dataclasses.dataclass(frozen=True)
class DemoPair:
  """A target and its drafts for one synthetic task.

  Attributes:
    name: 'ende', 'cnndm' or 'lm'.
    about: what the task is.
    metric: 'BLEU' or 'ROUGE-Lsum'; None where texts go on in many ways.
    max_input: tokens of an input.
    max_output: the most tokens of an output.
    target: the target.
    drafts: its drafts, the better one first.
    more: other drafts, made where they are asked for.
    tables: its tables of n-grams, likewise.
    are_prompts: whether outputs go on from the inputs, by decoder-only networks.
    is_embedded: whether the package contains the target, a draft and the vocabulary.
  """

  name: str
  about: str
  metric: str | None
  max_input: int
  max_output: int
  target: Part
  drafts: tuple[Part, ...]
  more: tuple[Part, ...] = ()
  tables: tuple[Part, ...] = ()
  are_prompts: bool = False
  is_embedded: bool = False

  @property
  def vocabulary(self) -> str:
    """Path of the SentencePiece model."""
    if self.is_embedded:
      return embedded.vocabulary()
    return os.path.join(DIRECTORY, self.name, "vocabulary.model")

  @property
  def parts(self) -> tuple[Part, ...]:
    """What is always made, in order."""
    return (self.target, *self.drafts)

  @property
  def command(self) -> str:
    """What makes this pair."""
    return COMMANDS[self.name]

  def missing(self, root: str = ".") -> list[str]:
    """Returns the paths that are not there yet, from the repository's root."""
    paths = [self.vocabulary, *(part.path for part in self.parts)]
    return [path for path in paths if not os.path.exists(os.path.join(root, path))]


def _part(pair: str, name: str, about: str, gin: str, steps: int, minutes: float):
  checkpoint = os.path.join(DIRECTORY, pair, name, f"checkpoint_{steps}")
  return Part(name, about, f"configs/train/{gin}.gin", checkpoint, minutes)


def _heads(pair: str, kind: str, about: str, steps: int, minutes: float):
  checkpoint = os.path.join(DIRECTORY, pair, "heads", kind, f"checkpoint_{steps}")
  gin_file = f"configs/train/demo_{pair}_heads.gin"
  kinds = (f"HEADS = {kind!r}",)
  return Part(kind, about, gin_file, checkpoint, minutes, "heads", kinds)


def _table(pair: str):
  gin_file = f"configs/train/demo_{pair}_ngrams.gin"
  checkpoint = os.path.join(DIRECTORY, pair, "ngrams", "checkpoint_0")
  return Part("ngrams", "up to trigrams", gin_file, checkpoint, 0.2, job="ngrams")


_ENDE_TARGET = _part(
  "ende", "target", "10.4M parameters", "demo_ende_target", embedded.STEPS, 44
)
_ENDE_DRAFT = _part(
  "ende", "draft_small", "1.0M, distilled", "demo_ende_draft", embedded.STEPS, 16
)
ENDE = DemoPair(
  name="ende",
  about="synthetic English-German sentences",
  metric="BLEU",
  max_input=80,
  max_output=80,
  target=dataclasses.replace(_ENDE_TARGET, embedded="target"),
  drafts=(
    dataclasses.replace(
      _ENDE_DRAFT,
      embedded="draft",
      # A draft learns from the target that was trained with it.
      bindings=(f"TARGET_CHECKPOINT_PATH = {_ENDE_TARGET.checkpoint!r}",),
    ),
  ),
  more=(
    _part("ende", "draft_tiny", "0.4M, distilled", "demo_ende_draft_tiny", 600, 0.5),
    _heads("ende", "parallel", "2.4M, from the target's features", 600, 3),
    _heads("ende", "parallel_markov", "2.7M, knows the token before", 600, 3),
    _heads("ende", "eagle", "2.7M, from its features and its own", 600, 3),
    _heads("ende", "shared_encoder", "a layer on the target's encoder", 600, 2),
  ),
  tables=(_table("ende"),),
  is_embedded=True,
)
CNNDM = DemoPair(
  name="cnndm",
  about="synthetic news articles with highlights",
  metric="ROUGE-Lsum",
  max_input=512,
  max_output=128,
  target=_part("cnndm", "target", "11.4M parameters", "demo_cnndm_target", 400, 7),
  drafts=(
    _part("cnndm", "draft_small", "0.9M, distilled", "demo_cnndm_draft", 300, 3),
  ),
  tables=(_table("cnndm"),),
)
LM = DemoPair(
  name="lm",
  about="synthetic English texts, by decoder-only networks",
  metric=None,
  max_input=16,
  max_output=128,
  target=_part("lm", "target", "7.8M parameters", "demo_lm_target", 800, 4.5),
  drafts=(_part("lm", "draft_small", "0.4M, distilled", "demo_lm_draft", 800, 1.5),),
  are_prompts=True,
)
PAIRS = {pair.name: pair for pair in (ENDE, CNNDM, LM)}
