"""A link without a socket, with the real messages and programs of both sides."""

import dataclasses

from specdec_t5x.contrib.link.client import Asker, Lost, Remote
from specdec_t5x.contrib.link.server import Answers, Drafting
from tests.hash_model import HashModel


class LocalAsker(Asker):
  """An asker that accepts every vocabulary, because `decoded` checks no draft."""

  def check(self, vocab_size):
    assert vocab_size


def asker_of(answer) -> Asker:
  """Returns an asker with a function of the request's bytes as the remote."""
  return LocalAsker(Remote("nowhere"), lambda request, seconds: answer(request))


def drafting_of(model: HashModel) -> Drafting:
  """Returns a table model as a draft."""

  def start(params, source, slots):
    return model.start(source.shape[0], slots)

  return Drafting(start, lambda params: model.extend, None, model.vocab_size)


@dataclasses.dataclass(eq=False)
class Local:
  """A stand-in for `link.client.Remote`, with `answer` in the place of gRPC.

  The asker of a compiled program can be replaced.
  """

  asker: Asker

  @classmethod
  def of(cls, answer):
    """Returns a link with a function of the request's bytes as the remote."""
    return cls(asker_of(answer))

  def counts(self):
    return dataclasses.asdict(self.asker.counts)


def honest(model: HashModel):
  """Returns the answer function of a server with this model."""
  return Answers(drafting_of(model)).answer


class Liar:
  """Sends distributions with tokens that were not drawn from the distributions."""

  def __init__(self, model: HashModel):
    self._honest = drafting_of(model)
    self.vocab_size = model.vocab_size
    self.open = self._honest.open

  def draft(self, setup, rows, ask):
    drafts, rows = self._honest.draft(setup, rows, ask)
    tokens = (drafts.tokens + 1) % self.vocab_size
    return dataclasses.replace(drafts, tokens=tokens), rows


def never(request):
  """Raises Lost, like a link without a server."""
  raise Lost("nothing is there")
