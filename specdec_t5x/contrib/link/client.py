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
from specdec_t5x.contrib.link.server import METHOD, OPTIONS, SERVICE
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
  """A draft in another process, for `drafter.Link`.

  Attributes:
    address: the address of `python -m specdec_t5x.contrib.link`: host:port, or
      unix:path.
    mbits: the bandwidth of an emulated link, in Mbit/s per direction; 0 for no limit.
    delay_ms: the delay of the emulated link, in milliseconds per direction.
    timeout_ms: the longest time of an answer in milliseconds, without the emulated
      link's time.
  """

  address: str
  mbits: float = 0.0
  delay_ms: float = 0.0
  timeout_ms: float = 2000.0

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
    """The asker, shared by equal settings. The asker's sessions outlive programs."""
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
  """Asks the draft at one address, and counts.

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
    # The random number of each session, and the inputs that the draft's process has.
    self._numbers: dict[Setup, int] = {}
    self._sources: dict[Setup, np.ndarray] = {}
    self._wait = 0.0
    self._not_before = 0.0
    self._vocab_size: Any = None  # The draft's vocab_size, after the first `check`.

  def check(self, vocab_size: int) -> None:
    """Raises a ValueError if no draft answers, or the vocabularies differ."""
    address = self._remote.address
    if self._vocab_size is None:
      try:
        status, others = self._about(None)
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

  def check_batch(self, setup: Setup) -> None:
    """Raises a ValueError if the draft's process refuses so large a session.

    A draft that does not answer raises no error, as the draft may come back.
    """
    try:
      status, _ = self._about(dataclasses.astuple(setup))
    except (Lost, ValueError) as error:
      return self._lose(error)
    if status != wire.OK:
      raise ValueError(
        f"The draft at {self._remote.address} refuses the batch: {status} Lower "
        "BATCH_SIZE, or start `python -m specdec_t5x.contrib.link` with a larger "
        "--cache-gib."
      )

  def _about(self, setup):
    reply = self._call(wire.message(0, setup), _ABOUT_SECONDS)
    _, status, others = wire.parts_of(reply)
    return status, others

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
        drafts = self._asked(setup, source, sequences, lengths, ended, uniforms)
        self._found()
        return drafts.tokens, drafts.kept, drafts.weights, ~ended
      except (Lost, ValueError) as error:
        self._lose(error)
    tokens = np.zeros((setup.rows, setup.gamma), np.int32)
    kept = np.zeros((*tokens.shape, setup.kept), np.int32)
    return tokens, kept, kept, np.zeros(setup.rows, bool)

  def _asked(self, setup, source, sequences, lengths, ended, uniforms) -> Drafts:
    source = source.copy()  # A callback's arrays may be invalid after the callback.
    is_known = np.array_equal(self._sources.get(setup), source)
    ask = Ask(~ended, lengths, sequences, uniforms, None if is_known else source)
    status, parts = self._exchanged(setup, ask)
    if status == wire.NO_SESSION and is_known:
      # The draft's process was restarted.
      del self._sources[setup]
      ask = dataclasses.replace(ask, source=source)
      status, parts = self._exchanged(setup, ask)
    if status != wire.OK:
      raise Lost(f"the answer is {status!r:.200}")
    drafts = Drafts.unpacked(parts, setup, ask.live)
    self._sources[setup] = source
    self.counts.requests += 1
    self.counts.tokens += int(ask.live.sum()) * setup.gamma
    return drafts

  def _exchanged(self, setup: Setup, ask: Ask) -> tuple[Any, list[Any]]:
    """Returns the status and the other parts of the reply to a request."""
    number = self._numbers.setdefault(setup, random.getrandbits(32))
    opening = None if ask.source is None else dataclasses.astuple(setup)
    is_open = setup in self._sources
    seconds = self._remote.timeout_ms / 1e3 if is_open else _OPENING_SECONDS
    request = wire.message(number, opening, *ask.packed(setup))
    reply_number, status, parts = wire.parts_of(self._sent(request, seconds))
    if reply_number != number:
      raise Lost(f"the answer is for session {reply_number}, not {number}")
    return status, parts

  def _sent(self, request: bytes, seconds: float) -> bytes:
    self.counts.bits_sent += 8 * len(request)
    self._travel(request)
    reply = self._call(request, seconds)
    self._travel(reply)
    self.counts.bits_received += 8 * len(reply)
    return reply

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

  def _found(self) -> None:
    if self._wait:
      logging.warning("The draft at %s is back.", self._remote.address)
    self._wait = 0.0


_asker = functools.cache(Asker)


def _over_grpc(address: str) -> Callable[[bytes, float], bytes]:
  """Returns a function that sends bytes and waits for bytes."""
  # Reconnects to a restarted process within a second.
  reconnect = ("grpc.max_reconnect_backoff_ms", 1000)
  channel = grpc.insecure_channel(address, options=(*OPTIONS, reconnect))
  send = channel.unary_unary(f"/{SERVICE}/{METHOD}")

  def call(request: bytes, seconds: float) -> bytes:
    try:
      return send(request, timeout=seconds)
    except grpc.RpcError as error:
      raise Lost(f"{error.code().name}: {error.details()}") from error

  return call
