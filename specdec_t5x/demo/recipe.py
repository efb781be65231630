"""The parts of the demo pairs, with a check for missing parts."""

import dataclasses
import os

from specdec_t5x.data.hints import COMMANDS, DIRECTORY
from specdec_t5x.demo import embedded


@dataclasses.dataclass(frozen=True)
class Part:
  """A network that the demo trains.

  Attributes:
    name: the name of the folder.
    about: a short description.
    gin_file: the gin file of the training run.
    checkpoint: the path of the trained checkpoint, from the repository's root.
    minutes: the approximate time of training on two cores.
    job: the job of `python -m specdec_t5x.train`.
    bindings: gin bindings besides the file.
    embedded: the name in the embedded pair, 'target' or 'draft'; '' for other parts.
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
    """The checkpoint for decoding: the package's, else the trained checkpoint."""
    return embedded.checkpoint(self.embedded) if self.embedded else self.checkpoint

  @property
  def command(self) -> str:
    """The command that makes the part, in the repository's root."""
    words = [f"--job={self.job}", f"--gin_file={self.gin_file}"]
    words += [f"--gin.{binding.replace(' ', '')}" for binding in self.bindings]
    return " ".join(["python -m specdec_t5x.train", *words])


@dataclasses.dataclass(frozen=True)
class DemoPair:
  """A target and its drafts for one synthetic task.

  Attributes:
    name: 'ende', 'cnndm' or 'lm'.
    about: a description of the task.
    metric: 'BLEU' or 'ROUGE-Lsum'; None for the language model.
    max_input: the most tokens of an input.
    max_output: the most tokens of an output.
    target: the target.
    drafts: the target's drafts, the better draft first.
    more: further drafts, made on request.
    tables: tables of n-grams, made on request.
    are_prompts: whether inputs are prompts of decoder-only networks.
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
    """The path of the SentencePiece model."""
    if self.is_embedded:
      return embedded.vocabulary()
    return os.path.join(DIRECTORY, self.name, "vocabulary.model")

  @property
  def parts(self) -> tuple[Part, ...]:
    """The parts that are always made, in order."""
    return (self.target, *self.drafts)

  @property
  def command(self) -> str:
    """The command that makes the pair."""
    return COMMANDS[self.name]

  def missing(self, root: str = ".") -> list[str]:
    """Returns the missing paths, relative to the repository's root."""
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
      # The draft learns from the target of the same training.
      bindings=(f"TARGET_CHECKPOINT_PATH = {_ENDE_TARGET.checkpoint!r}",),
    ),
  ),
  more=(
    _part("ende", "draft_tiny", "0.4M, distilled", "demo_ende_draft_tiny", 600, 0.5),
    _heads("ende", "parallel", "2.4M, from the target's features", 600, 3),
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
