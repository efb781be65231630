"""The process that drafts: answers over gRPC, in packed bits."""

import collections
import dataclasses
from concurrent import futures

import grpc

from specdec_t5x.link import wire
from specdec_t5x.link.drafting import Drafting, Rows
from specdec_t5x.link.wire import Ask, Kind, Setup, Status

SERVICE = "specdec_t5x.Link"
# Sessions that are kept; the one that was longest not asked for goes first.
_SESSIONS = 8
OPTIONS = (
  ("grpc.max_send_message_length", 2**28),
  ("grpc.max_receive_message_length", 2**28),
)


@dataclasses.dataclass
class Session:
  """Rows of one client, and how they are drafted."""

  setup: Setup
  rows: Rows


class Answers:
  """From requests to replies, bytes both; a bad request's reply says so.

  Args:
    drafting: drafts.
  """

  def __init__(self, drafting: Drafting):
    self._drafting = drafting
    self._sessions: collections.OrderedDict[int, Session] = collections.OrderedDict()

  def about(self, request: bytes) -> bytes:
    """Returns what the draft is: its vocabulary's size."""
    del request
    return wire.head(Status.OK, self._drafting.vocab_size)

  def draft(self, request: bytes) -> bytes:
    """Returns drafts, or why there are none."""
    number = 0
    try:
      kind, number, body = wire.beheaded(request)
      if kind == Kind.OPEN:
        setup, body = wire.opened(body)
        if setup.terms.vocab_size != self._drafting.vocab_size:
          return wire.head(Status.OTHER_VOCABULARY, number)
        self._keep(number, Session(setup, self._drafting.open(setup)))
      if number not in self._sessions:
        return wire.head(Status.NO_SESSION, number)
      session = self._sessions[number]
      ask = Ask.unpacked(body, session.setup)
      given = session.setup, session.rows, ask
      drafts, rows = self._drafting.draft(*given)
    except ValueError:
      return wire.head(Status.BAD_REQUEST, number)
    self._keep(number, Session(session.setup, rows))
    return wire.head(Status.OK, number) + drafts.packed(session.setup, ask.live)

  def _keep(self, number, session):
    self._sessions[number] = session
    self._sessions.move_to_end(number)
    while len(self._sessions) > _SESSIONS:
      self._sessions.popitem(last=False)


def serve(drafting: Drafting, address: str) -> tuple[grpc.Server, int]:
  """Starts to answer, in threads of this process.

  Args:
    drafting: drafts.
    address: host:port, or unix:path; port 0 is a free one.

  Returns:
    The server, and its port.

  Raises:
    ValueError: where the address can't be had.
  """
  answers = Answers(drafting)
  # One at a time, in the order they came: a session's questions follow one another.
  # And one process an address: else gRPC lets several share it, and each other's rows.
  server = grpc.server(
    futures.ThreadPoolExecutor(max_workers=1),
    options=(*OPTIONS, ("grpc.so_reuseport", 0)),
  )
  handlers = {
    name: grpc.unary_unary_rpc_method_handler(
      lambda request, context, answer=answer: answer(request)
    )
    for name, answer in (("about", answers.about), ("draft", answers.draft))
  }
  handler = grpc.method_handlers_generic_handler(SERVICE, handlers)
  server.add_generic_rpc_handlers((handler,))
  try:
    port = server.add_insecure_port(address)
  except RuntimeError as error:
    raise ValueError(
      f"--address: {address!r} can't be listened at ({error}). Give host:port with a "
      "free port, or unix:/a/path."
    ) from error
  server.start()
  return server, port
