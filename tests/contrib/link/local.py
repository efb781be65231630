"""A link without a socket, with the real messages and programs of both sides."""

import dataclasses

from specdec_t5x.contrib.link.client import Asker, Lost, Remote
from specdec_t5x.contrib.link.server import Drafting
from tests.hash_model import HashModel


def asker_of(answer, first_wait=0.0) -> Asker:
  """Returns an asker with a function of the request's bytes as the remote."""
  return Asker(Remote("nowhere"), lambda request, seconds: answer(request), first_wait)


def drafting_of(model: HashModel, kind=Drafting) -> Drafting:
  """Returns a table model as a draft."""

  def start(params, source, slots):
    return model.start(source.shape[0], slots)

  return kind(start, lambda params: model.extend, None, model.vocab_size)


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
  return drafting_of(model).answer


class Liar(Drafting):
  """Sends distributions with tokens that were not drawn from the distributions."""

  def draft(self, ask):
    drafts = super().draft(ask)
    return drafts.replace(tokens=(drafts.tokens + 1) % self.vocab_size)


def never(request):
  """Raises Lost, like a link without a server."""
  raise Lost("nothing is there")
