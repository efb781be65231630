"""The draft's process: answers messages of `wire` over gRPC."""

import collections
import dataclasses
from concurrent import futures

import grpc

from specdec_t5x.contrib.link import wire
from specdec_t5x.contrib.link.drafter import Setup
from specdec_t5x.contrib.link.drafting import Drafting, Rows
from specdec_t5x.contrib.link.wire import Ask

SERVICE = "specdec_t5x.Link"
METHOD = "answer"
# The most open sessions. The least recently used session is closed first.
_SESSIONS = 8
OPTIONS = (
  ("grpc.max_send_message_length", 2**28),
  ("grpc.max_receive_message_length", 2**28),
)


@dataclasses.dataclass
class Session:
  """The settings and rows of a session, and the size of the cache in bytes."""

  setup: Setup
  rows: Rows
  size: int


class Answers:
  """Answers requests with replies, both bytes. A reply to a bad request says so.

  Args:
    drafting: the draft.
    most_bytes: the most bytes of the caches of all sessions.
  """

  def __init__(self, drafting: Drafting, most_bytes: int):
    self._drafting = drafting
    self._most_bytes = most_bytes
    self._sessions: collections.OrderedDict[int, Session] = collections.OrderedDict()

  def answer(self, request: bytes) -> bytes:
    """Returns drafts, or the reason why there are no drafts.

    Args:
      request: a message of a session with a `wire.Ask`. A message without a `wire.Ask`
        asks for the size of the draft's vocabulary, and whether a session would be too
        large.
    """
    number = 0
    try:
      number, setup, parts = wire.parts_of(request)
      setup = setup and Setup.unpacked(setup)
      size = self._size(setup) if setup else 0
      if not parts:
        return wire.message(number, wire.OK, self._drafting.vocab_size)
      if setup:
        self._open(number, setup, size)
      if number not in self._sessions:
        return wire.message(number, wire.NO_SESSION)
      session = self._sessions[number]
      ask = Ask.unpacked(parts, session.setup)
    except ValueError as error:
      return wire.message(number, str(error))
    drafts, session.rows = self._drafting.draft(session.setup, session.rows, ask)
    self._sessions.move_to_end(number)
    return wire.message(number, wire.OK, *drafts.packed(session.setup, ask.live))

  def _size(self, setup):
    """Returns the bytes of a session; raises a ValueError if the session is refused."""
    if setup.vocab_size != self._drafting.vocab_size:
      raise ValueError(
        f"the draft's vocabulary has {self._drafting.vocab_size} tokens."
      )
    size = self._drafting.size(setup)
    if size > self._most_bytes:
      raise ValueError(
        f"the draft holds at most {self._most_bytes} bytes of caches, but {setup.rows} "
        f"rows of {setup.inputs} input tokens and {setup.slots} places take {size} "
        "bytes."
      )
    return size

  def _open(self, number, setup, size):
    """Opens a session unless the session is open; closes others to make room."""
    sessions = self._sessions
    if number in sessions and sessions[number].setup == setup:
      return
    sessions.pop(number, None)
    while sessions and (
      len(sessions) >= _SESSIONS
      or sum(session.size for session in sessions.values()) + size > self._most_bytes
    ):
      sessions.popitem(last=False)
    sessions[number] = Session(setup, self._drafting.open(setup), size)


def serve(drafting: Drafting, address: str, most_bytes: int) -> tuple[grpc.Server, int]:
  """Starts a server in a thread of this process.

  Args:
    drafting: the draft.
    address: host:port, or unix:path; port 0 stands for a free port.
    most_bytes: the most bytes of the caches of all sessions.

  Returns:
    The server, and the server's port.

  Raises:
    ValueError: if the server can't listen at the address.
  """
  answers = Answers(drafting, most_bytes)
  # A single thread answers requests in order, since each request of a session depends
  # on the previous request. Without so_reuseport only one process can have the address;
  # otherwise gRPC lets several processes share the address, and mixes up their rows.
  server = grpc.server(
    futures.ThreadPoolExecutor(max_workers=1),
    options=(*OPTIONS, ("grpc.so_reuseport", 0)),
  )
  answer = grpc.unary_unary_rpc_method_handler(lambda data, _: answers.answer(data))
  handler = grpc.method_handlers_generic_handler(SERVICE, {METHOD: answer})
  server.add_generic_rpc_handlers((handler,))
  try:
    port = server.add_insecure_port(address)
  except RuntimeError as error:
    raise ValueError(
      f"--address: the server can't listen at {address!r} ({error}). Give host:port "
      "with a free port, or unix:/a/path."
    ) from error
  server.start()
  return server, port
