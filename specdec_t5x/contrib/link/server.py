"""The process that drafts: answers messages of `wire` over gRPC."""

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
# Sessions that are kept; the one that was longest not asked for goes first.
_SESSIONS = 8
OPTIONS = (
  ("grpc.max_send_message_length", 2**28),
  ("grpc.max_receive_message_length", 2**28),
)


@dataclasses.dataclass
class Session:
  """Rows of a client, the settings of its drafts, and the bytes that its rows take."""

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

  def answer(self, request: bytes) -> bytes:
    """Returns drafts, or why there are none.

    Args:
      request: a message of a session with a `wire.Ask`. Without one it asks for the
        size of the draft's vocabulary, and whether a session would be too large.
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
    """Returns the bytes of a session; raises a ValueError where it is refused."""
    if setup.vocab_size != self._drafting.vocab_size:
      raise ValueError(
        f"the draft's vocabulary has {self._drafting.vocab_size} tokens."
      )
    if (size := self._drafting.size(setup)) > self._most:
      raise ValueError(
        f"it holds at most {self._most} bytes of caches, and {setup.rows} rows of "
        f"{setup.inputs} input tokens and {setup.slots} places take {size}."
      )
    return size

  def _open(self, number, setup, size):
    """Opens a session unless it is open; others end where they leave no room."""
    kept = self._sessions
    if number in kept and kept[number].setup == setup:
      return
    kept.pop(number, None)
    while kept and (
      len(kept) >= _SESSIONS
      or sum(session.size for session in kept.values()) + size > self._most
    ):
      kept.popitem(last=False)
    kept[number] = Session(setup, self._drafting.open(setup), size)


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
  answer = grpc.unary_unary_rpc_method_handler(lambda data, _: answers.answer(data))
  handler = grpc.method_handlers_generic_handler(SERVICE, {METHOD: answer})
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
