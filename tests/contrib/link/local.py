"""A link without a socket: the real messages, and both sides' real programs."""

import dataclasses

from specdec_t5x.contrib.link.client import Asker, Lost, Remote
from specdec_t5x.contrib.link.drafting import Drafting
from specdec_t5x.contrib.link.server import Answers
from tests.hash_model import HashModel


class LocalAsker(Asker):
  """An asker that takes every batch, as programs are made by it."""

  def check(self, vocab_size):
    assert vocab_size

  def check_batch(self, setup):
    assert setup


def asker_of(answer) -> Asker:
  """Returns an asker whose requests are answered by a function of their bytes."""
  return LocalAsker(Remote("nowhere"), lambda request, seconds: answer(request))


def drafting_of(model: HashModel) -> Drafting:
  """A table model as a draft."""

  def start(params, source, slots):
    return model.start(source.shape[0], slots)

  return Drafting(start, lambda params: model.extend, None, model.vocab_size)


@dataclasses.dataclass(eq=False)
class Local:
  """Answers as `link.client.Remote` does; `answer` takes the place of gRPC.

  Another asker may take its place in a compiled program.
  """

  asker: Asker

  @classmethod
  def of(cls, answer):
    """A link whose requests are answered by a function of the request's bytes."""
    return cls(asker_of(answer))

  def counts(self):
    return dataclasses.asdict(self.asker.counts)


def answers_of(drafting, most_bytes=2**30) -> Answers:
  """A server's answers."""
  return Answers(drafting, most_bytes)


def honest(model: HashModel):
  """What a server of this model answers."""
  return answers_of(drafting_of(model)).answer


class Liar:
  """Sends other tokens than it has drawn from the distributions that it sends."""

  def __init__(self, model: HashModel):
    self._honest, self.vocab_size = drafting_of(model), model.vocab_size
    self.size, self.open = self._honest.size, self._honest.open

  def draft(self, setup, rows, ask):
    drafts, rows = self._honest.draft(setup, rows, ask)
    tokens = (drafts.tokens + 1) % self.vocab_size
    return dataclasses.replace(drafts, tokens=tokens), rows


def never(request):
  """Nothing answers."""
  raise Lost("nothing is there")
