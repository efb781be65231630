"""The target's side of a link: asks for drafts, and decodes on if no draft comes."""

import dataclasses
import functools
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import jax
import numpy as np
from absl import logging

from specdec_t5x.contrib.link import wire
from specdec_t5x.contrib.link.wire import Ask, Drafts, Setup
from specdec_t5x.core.knobs import Knob, check_knobs, finite, is_finite, knob

_LONGEST_WAIT = 30.0  # The most seconds until a lost draft is asked again.
# Seconds for the first answer, which includes compilation.
_OPENING_SECONDS = 300.0
_ABOUT_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Remote:
  """A draft in another process, for `drafter.Link`."""

  address: str = knob(
    "localhost:50051",
    Knob("host:port or unix:path", lambda value: isinstance(value, str) and value),
    macro="LINK_ADDRESS",
  )
  # The emulated link's bandwidth (0 for no limit), and delay of each message.
  mbits: float = knob(0.0, finite(), macro="LINK_MBITS")
  delay_ms: float = knob(0.0, finite(), macro="LINK_DELAY_MS")
  # The longest time of an answer, without the emulated link's.
  timeout_ms: float = knob(
    2000.0,
    Knob("above 0", lambda value: is_finite(value) and value > 0),
    macro="LINK_TIMEOUT_MS",
  )

  def __post_init__(self):
    check_knobs(self)

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


class Lost(ValueError):
  """No draft came; the message states the reason."""


class Asker:
  """Asks the draft at one address, in one session, and counts.

  Args:
    remote: the address and the emulated link.
    call: from a request and a time in seconds to a reply; None for gRPC.
    first_wait: seconds until a lost draft is asked again; doubles with each loss.
  """

  def __init__(
    self,
    remote: Remote,
    call: Callable[[bytes, float], bytes] | None = None,
    first_wait: float = 0.5,
  ):
    self.counts = Counts()
    self._remote = remote
    self._call = call or _over_grpc(remote.address)
    self._first_wait = first_wait
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
        reply = self._call(wire.message(), _ABOUT_SECONDS)
        _, self._vocab_size = wire.parts_of(reply)
      except ValueError as error:
        raise ValueError(
          f"No draft answers at {address} ({error}). Start the draft with `python -m "
          f"specdec_t5x.contrib.link --draft DIR --address {address}`."
        ) from error
    if self._vocab_size != vocab_size:
      raise ValueError(
        "Target and draft must share a vocabulary: the target's vocab_size is "
        f"{vocab_size}, and the vocab_size of the draft at {address} is "
        f"{self._vocab_size}. Start `python -m specdec_t5x.contrib.link` with a draft "
        "of the target's vocabulary."
      )

  def ask(self, setup: Setup, ask: Ask) -> tuple[Drafts, np.ndarray]:
    """Returns drafts, and whether each row has a draft [B]."""
    ask = jax.tree.map(np.array, ask)  # A callback's arrays may change afterwards.
    if time.monotonic() < self._not_before:
      self.counts.skipped += 1
    else:
      try:
        return self._asked(setup, ask), ask.live
      except ValueError as error:
        self.counts.lost += 1
        if not self._wait:
          logging.warning(
            "The draft at %s is lost (%s). The target decodes without drafts, and asks "
            "the draft again from time to time.",
            self._remote.address,
            error,
          )
        self._wait = min(max(2 * self._wait, self._first_wait), _LONGEST_WAIT)
        self._not_before = time.monotonic() + self._wait
    drafts = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), setup.shapes)
    return drafts, np.zeros(setup.rows, bool)

  def _asked(self, setup: Setup, ask: Ask) -> Drafts:
    """Returns the drafts of a request, with the inputs only if they are new."""
    is_open = setup == self._setup
    has_inputs = is_open and np.array_equal(ask.source, self._source)
    if has_inputs:
      status, *parts = self._exchanged(setup, ask.replace(source=None))
      # A restarted process, or a process that serves another target, has no session.
      has_inputs = is_open = status != wire.NO_SESSION
    if not has_inputs:
      self._setup = setup if is_open else None
      self._source = None  # Unknown until the reply comes.
      status, *parts = self._exchanged(setup, ask)
    if status != wire.OK:
      raise Lost(f"the answer is {status!r:.200}")
    drafts = Drafts.unpacked(parts, setup, ask.live)
    if self._wait:
      logging.warning("The draft at %s is back.", self._remote.address)
    self._wait = 0.0
    self._setup = setup
    self._source = ask.source
    self.counts.requests += 1
    self.counts.tokens += int(ask.live.sum()) * setup.gamma
    return drafts

  def _exchanged(self, setup: Setup, ask: Ask) -> list[Any]:
    """Returns the parts of the reply to a request, the status first."""
    opening = None if ask.source is None else dataclasses.astuple(setup)
    request = wire.message(self._number, opening, *ask.packed(setup))
    self.counts.bits_sent += 8 * len(request)
    self._travel(request)
    seconds = self._remote.timeout_ms / 1e3 if self._setup else _OPENING_SECONDS
    reply = self._call(request, seconds)
    self._travel(reply)
    self.counts.bits_received += 8 * len(reply)
    return wire.parts_of(reply)

  def _travel(self, message: bytes) -> None:
    """Waits for the time of a message on the emulated link."""
    remote = self._remote
    seconds = remote.delay_ms / 1e3
    if remote.mbits:
      seconds += 8 * len(message) / (remote.mbits * 1e6)
    if seconds:
      time.sleep(seconds)


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
