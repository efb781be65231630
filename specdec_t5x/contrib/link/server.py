"""The process that drafts: answers over gRPC, in packed bits."""

import collections
import dataclasses
from concurrent import futures

import grpc

from specdec_t5x.contrib.link import wire
from specdec_t5x.contrib.link.drafting import Drafting, Rows
from specdec_t5x.contrib.link.wire import Ask, Kind, Setup, Status

SERVICE = "specdec_t5x.Link"
# Sessions that are kept; the one that was longest not asked for goes first.
_SESSIONS = 8
OPTIONS = (
  ("grpc.max_send_message_length", 2**28),
  ("grpc.max_receive_message_length", 2**28),
)


@dataclasses.dataclass
class Session:
  """Rows of one client, how they are drafted, and the bytes that they take."""

  setup: Setup
  rows: Rows
  size: int


class Answers:
  """From requests to replies, bytes both; a bad request's reply says so.

  Args:
    drafting: drafts.
    most_bytes: that the caches of all sessions may take.
  """

  def __init__(self, drafting: Drafting, most_bytes: int):
    self._drafting, self._most = drafting, most_bytes
    self._sessions: collections.OrderedDict[int, Session] = collections.OrderedDict()

  def about(self, request: bytes) -> bytes:
    """Returns the draft's vocabulary's size, or that a session would be too large.

    Args:
      request: the session's setup, or nothing.
    """
    try:
      size = self._drafting.size(Setup.unpacked(request)) if request else 0
    except ValueError:
      return wire.head(Status.BAD_REQUEST, 0)
    if size > self._most:
      return wire.refusal(0, size, self._most)
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
        if (size := self._drafting.size(setup)) > self._most:
          return wire.refusal(number, size, self._most)
        self._open(number, setup, size)
      if number not in self._sessions:
        return wire.head(Status.NO_SESSION, number)
      session = self._sessions[number]
      ask = Ask.unpacked(body, session.setup)
      given = session.setup, session.rows, ask
      drafts, session.rows = self._drafting.draft(*given)
    except ValueError:
      return wire.head(Status.BAD_REQUEST, number)
    self._sessions.move_to_end(number)
    return wire.head(Status.OK, number) + drafts.packed(session.setup, ask.live)

  def _open(self, number, setup, size):
    """Opens a session in place of as many as have to go for it."""
    self._sessions.pop(number, None)
    kept = self._sessions
    sizes = lambda: sum(session.size for session in kept.values()) + size
    while kept and (len(kept) >= _SESSIONS or sizes() > self._most):
      kept.popitem(last=False)
    self._sessions[number] = Session(setup, self._drafting.open(setup), size)


def serve(drafting: Drafting, address: str, most_bytes: int) -> tuple[grpc.Server, int]:
  """Starts to answer, in threads of this process.

  Args:
    drafting: drafts.
    address: host:port, or unix:path; port 0 is a free one.
    most_bytes: as for `Answers`.

  Returns:
    The server, and its port.

  Raises:
    ValueError: where the address can't be had.
  """
  answers = Answers(drafting, most_bytes)
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
