"""The target's side of a link: asks for drafts, and decodes on if no draft comes."""

import dataclasses
import functools
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import numpy as np
from absl import logging

from specdec_t5x.contrib.link import wire
from specdec_t5x.contrib.link.drafter import Setup
from specdec_t5x.contrib.link.wire import Ask, Drafts
from specdec_t5x.core.knobs import is_finite

# Seconds until a lost draft is asked again. The time doubles up to the longest wait.
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 30.0
# Seconds for the first answer, which includes compilation.
_OPENING_SECONDS = 300.0
_ABOUT_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Remote:
  """A draft in another process, for `drafter.Link`."""

  address: str  # Of `python -m specdec_t5x.contrib.link`: host:port, or unix:path.
  mbits: float = 0.0  # Bandwidth of an emulated link, per direction; 0 for no limit.
  delay_ms: float = 0.0  # Delay of the emulated link, per direction.
  timeout_ms: float = 2000.0  # Longest time of an answer, without the emulated link's.

  def __post_init__(self):
    for name in ("mbits", "delay_ms", "timeout_ms"):
      if not is_finite(getattr(self, name)):
        raise ValueError(
          f"{name} of a link must be a number of at least 0, got "
          f"{getattr(self, name)!r}."
        )
    if not self.timeout_ms:
      raise ValueError(
        f"timeout_ms of a link must be above 0, got {self.timeout_ms}. Leave enough "
        "time for an answer."
      )
    if not isinstance(self.address, str) or not self.address:
      raise ValueError(
        f"The link needs an address, host:port or unix:path, got {self.address!r}. "
        "Give the --address of `python -m specdec_t5x.contrib.link --draft DIR "
        "--address ...`."
      )

  @property
  def asker(self) -> "Asker":
    """The asker, shared by equal settings. The asker's session outlives programs."""
    return _asker(self)

  def counts(self) -> Mapping[str, int]:
    """Returns this process's counts so far."""
    return dataclasses.asdict(self.asker.counts)


@dataclasses.dataclass
class Counts:
  """Counts of a link. Bits of messages exclude gRPC's headers."""

  requests: int = 0  # Requests answered with drafts.
  tokens: int = 0  # Received draft tokens.
  bits_sent: int = 0  # Bits of all requests.
  bits_received: int = 0  # Bits of all replies.
  lost: int = 0  # Requests without a draft in time.
  skipped: int = 0  # Omitted requests while the link was lost.


class Lost(Exception):
  """No draft came; the message states the reason."""


class Asker:
  """Asks the draft at one address, in one session, and counts.

  Args:
    remote: the address and the emulated link.
    call: from a request and a time in seconds to a reply; None for gRPC.
  """

  def __init__(
    self, remote: Remote, call: Callable[[bytes, float], bytes] | None = None
  ):
    self.counts = Counts()
    self._remote = remote
    self._call = call or _over_grpc(remote.address)
    self._number = random.getrandbits(32)  # The session's number.
    # The setup and the inputs that the draft's process has; None if unknown.
    self._setup: Setup | None = None
    self._source: np.ndarray | None = None
    self._wait = 0.0
    self._not_before = 0.0
    self._vocab_size: Any = None  # The draft's vocab_size, after the first `check`.

  def check(self, vocab_size: int) -> None:
    """Raises a ValueError if no draft answers, or the vocabularies differ."""
    address = self._remote.address
    if self._vocab_size is None:
      try:
        reply = self._call(wire.message(0, None), _ABOUT_SECONDS)
        _, status, others = wire.parts_of(reply)
      except (Lost, ValueError) as error:
        raise ValueError(
          f"No draft answers at {address} ({error}). Start the draft with `python -m "
          f"specdec_t5x.contrib.link --draft DIR --address {address}`."
        ) from error
      if status != wire.OK or len(others) != 1:
        raise ValueError(
          f"The server at {address} is not a draft of a link. Check the address."
        )
      (self._vocab_size,) = others
    if self._vocab_size != vocab_size:
      raise ValueError(
        "Target and draft must share a vocabulary: the target's vocab_size is "
        f"{vocab_size}, and the vocab_size of the draft at {address} is "
        f"{self._vocab_size}. Start `python -m specdec_t5x.contrib.link` with a draft "
        "of the target's vocabulary."
      )

  def ask(self, setup: Setup, *arrays: Any) -> tuple[np.ndarray, ...]:
    """Returns a draft of every row.

    Args:
      setup: the session's setup.
      *arrays: the encoder inputs [B, E], the sequences [B, S], the sequences' lengths
        [B], whether each row has ended [B], the uniforms [B, G, L].

    Returns:
      The drafted tokens [B, G], the kept tokens [B, G, K] and weights [B, G, K] of the
      distributions, and whether each row has a draft [B].
    """
    source, sequences, lengths, ended, uniforms = map(np.asarray, arrays)
    if time.monotonic() < self._not_before:
      self.counts.skipped += 1
    else:
      try:
        # A callback's arrays may be invalid after the callback.
        ask = Ask(~ended, lengths, sequences, uniforms, source.copy())
        drafts = self._asked(setup, ask)
        if self._wait:
          logging.warning("The draft at %s is back.", self._remote.address)
        self._wait = 0.0
        return drafts.tokens, drafts.kept, drafts.weights, ~ended
      except (Lost, ValueError) as error:
        self._lose(error)
    tokens = np.zeros((setup.rows, setup.gamma), np.int32)
    kept = np.zeros((*tokens.shape, setup.kept), np.int32)
    return tokens, kept, kept, np.zeros(setup.rows, bool)

  def _asked(self, setup: Setup, ask: Ask) -> Drafts:
    """Returns the drafts of a request, with the inputs only if they are new."""
    source = ask.source
    if setup != self._setup:
      self._setup = None
    elif np.array_equal(source, self._source):
      ask = dataclasses.replace(ask, source=None)
    status, parts = self._exchanged(setup, ask)
    if status == wire.NO_SESSION and ask.source is None:
      # The draft's process was restarted, or serves another target.
      self._setup = None
      ask = dataclasses.replace(ask, source=source)
      status, parts = self._exchanged(setup, ask)
    if status != wire.OK:
      raise Lost(f"the answer is {status!r:.200}")
    drafts = Drafts.unpacked(parts, setup, ask.live)
    self._setup = setup
    self._source = source
    self.counts.requests += 1
    self.counts.tokens += int(ask.live.sum()) * setup.gamma
    return drafts

  def _exchanged(self, setup: Setup, ask: Ask) -> tuple[Any, list[Any]]:
    """Returns the status and the other parts of the reply to a request."""
    opening = None
    if ask.source is not None:
      opening = dataclasses.astuple(setup)
      self._source = None  # Unknown until the reply comes.
    request = wire.message(self._number, opening, *ask.packed(setup))
    self.counts.bits_sent += 8 * len(request)
    self._travel(request)
    is_open = self._setup is not None
    seconds = self._remote.timeout_ms / 1e3 if is_open else _OPENING_SECONDS
    reply = self._call(request, seconds)
    self._travel(reply)
    self.counts.bits_received += 8 * len(reply)
    number, status, parts = wire.parts_of(reply)
    if number != self._number:
      raise Lost(f"the answer is for session {number}, not {self._number}")
    return status, parts

  def _travel(self, message: bytes) -> None:
    """Waits for the time of a message on the emulated link."""
    remote = self._remote
    seconds = remote.delay_ms / 1e3
    if remote.mbits:
      seconds += 8 * len(message) / (remote.mbits * 1e6)
    if seconds:
      time.sleep(seconds)

  def _lose(self, error: Exception) -> None:
    self.counts.lost += 1
    if not self._wait:
      logging.warning(
        "The draft at %s is lost (%s). The target decodes without drafts, and asks "
        "the draft again from time to time.",
        self._remote.address,
        error,
      )
    self._wait = min(max(2 * self._wait, _FIRST_WAIT), _LONGEST_WAIT)
    self._not_before = time.monotonic() + self._wait


_asker = functools.cache(Asker)


def _over_grpc(address: str) -> Callable[[bytes, float], bytes]:
  """Returns a function that sends bytes and waits for bytes."""
  # Reconnects to a restarted process within a second.
  reconnect = ("grpc.max_reconnect_backoff_ms", 1000)
  channel = grpc.insecure_channel(address, options=(*wire.OPTIONS, reconnect))
  send = channel.unary_unary(f"/{wire.SERVICE}/{wire.METHOD}")

  def call(request: bytes, seconds: float) -> bytes:
    try:
      return send(request, timeout=seconds)
    except grpc.RpcError as error:
      raise Lost(f"{error.code().name}: {error.details()}") from error

  return call
