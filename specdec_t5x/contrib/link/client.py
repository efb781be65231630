"""The target's side of a link: asks for drafts, and does without where none come."""

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
from specdec_t5x.contrib.link.drafter import Terms
from specdec_t5x.contrib.link.server import OPTIONS, SERVICE
from specdec_t5x.contrib.link.wire import Ask, Drafts, Kind, Setup, Status
from specdec_t5x.core.checks import is_finite

# Seconds before a lost draft is asked again: the first, and the longest, time.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
# For the first answer, before which programs are compiled.
_OPENING_SECONDS = 300.0
_ABOUT_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Remote:
  """A draft in another process; `drafters.link.Link` asks it.

  Attributes:
    address: where `python -m specdec_t5x.link` listens: host:port, or unix:path.
    mbits: bandwidth of an emulated link, in Mbit/s each way; 0 is what there is.
    delay_ms: its delay each way.
    timeout_ms: how long an answer may take, beyond what the emulated link does.
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
      raise ValueError("timeout_ms of a link must be above 0: no answer is so quick.")
    if not isinstance(self.address, str) or not self.address:
      raise ValueError(
        f"The link needs an address, host:port or unix:path, got {self.address!r}: "
        "where `python -m specdec_t5x.contrib.link --draft DIR --address ...` listens."
      )

  def check(self, vocab_size: int) -> None:
    """Raises a ValueError where no draft answers, or one of another vocabulary."""
    found = _asker(self).vocab_size()
    if found != vocab_size:
      raise ValueError(
        f"Target and draft must share a vocabulary: the target's vocab_size is "
        f"{vocab_size}, that of the draft at {self.address} {found}. Start "
        "`python -m specdec_t5x.contrib.link` with a draft of the target's vocabulary."
      )

  def check_batch(self, terms: Terms, rows: int, inputs: int, slots: int) -> None:
    """Raises a ValueError where no message, or not the draft, holds such a batch."""
    _asker(self).check(Setup(terms, rows, inputs, slots))

  def ask(self, terms: Terms, *arrays: Any) -> tuple[np.ndarray, ...]:
    """Returns a draft of every row; see `drafters.link.Remote`."""
    return _asker(self).ask(terms, *map(np.asarray, arrays))

  def counts(self) -> Mapping[str, int]:
    """Returns what went over the link so far, in this process."""
    return dataclasses.asdict(_asker(self).counts)


@dataclasses.dataclass
class Counts:
  """What went over a link.

  Attributes:
    requests: that were answered with drafts.
    tokens: drafted tokens that came.
    bits_sent: to the draft, of all requests.
    bits_received: from it, of all replies.
    lost: requests without a draft in time.
    skipped: drafts that were not asked for, while the link was lost.
  """

  requests: int = 0
  tokens: int = 0
  bits_sent: int = 0
  bits_received: int = 0
  lost: int = 0
  skipped: int = 0


class Lost(Exception):
  """There is no draft this time; says why."""


class Mirror:
  """What the draft's process is taken to know: all that it has answered to.

  Args:
    setup: of the session.
  """

  def __init__(self, setup: Setup):
    self.number = random.getrandbits(32)
    self.setup = setup
    self.is_open = False
    self._source = np.zeros((setup.rows, setup.inputs), np.int32)
    self._sequences = np.zeros((setup.rows, setup.slots), np.int32)
    self._lengths = np.zeros(setup.rows, np.int32)

  def ask(self, source, sequences, lengths, ended, uniforms) -> Ask:
    """Returns the question, which says what is not known yet."""
    same = np.cumprod(self._sequences == sequences, axis=1).sum(axis=1)
    known = np.minimum(same, np.minimum(self._lengths, lengths))
    known = np.where((self._source == source).all(axis=1) & self.is_open, known, 0)
    return Ask(~ended, known, lengths, source, sequences, uniforms)

  def answered(self, ask: Ask) -> None:
    """Notes that a question was answered."""
    live = ask.live[:, None]
    self._source = np.where(live, ask.source, self._source)
    self._sequences = np.where(live, ask.sequences, self._sequences)
    self._lengths = np.where(ask.live, ask.lengths, self._lengths)
    self.is_open = True


class Asker:
  """Asks the draft at one address, and counts.

  Args:
    remote: the address and the emulated link.
    call: sends a request to a method, with seconds to wait; by default over gRPC.
  """

  def __init__(
    self, remote: Remote, call: Callable[[str, bytes, float], bytes] | None = None
  ):
    self.counts = Counts()
    self._remote = remote
    self._call = call or _over_grpc(remote.address)
    self._mirrors: dict[Setup, Mirror] = {}
    self._wait, self._not_before = 0.0, 0.0
    self._vocab_size: int | None = None

  def vocab_size(self) -> int:
    """Returns the draft's, asked for once; a ValueError where nothing answers."""
    if self._vocab_size is not None:
      return self._vocab_size
    try:
      status, size, _ = wire.beheaded(self._call("about", b"", _ABOUT_SECONDS))
    except (Lost, ValueError) as error:
      raise ValueError(
        f"No draft answers at {self._remote.address} ({error}). Start it with `python "
        f"-m specdec_t5x.contrib.link --draft DIR --address {self._remote.address}`."
      ) from error
    if status != Status.OK:
      raise ValueError(f"What answers at {self._remote.address} is no draft of a link.")
    self._vocab_size = size
    return size

  def check(self, setup: Setup) -> None:
    """Raises a ValueError where the draft's process refuses so large a session.

    Whether it answers at all is no question here: a draft may come back.
    """
    try:
      reply = self._call("about", setup.packed(), _ABOUT_SECONDS)
      status, _, body = wire.beheaded(reply)
      size, most = wire.refused(body) if status == Status.TOO_LARGE else (0, 0)
    except (Lost, ValueError) as error:
      return self._lose(error)
    if size > most:
      raise ValueError(
        f"The draft at {self._remote.address} holds at most {most} bytes of caches, "
        f"and {setup.rows} rows of {setup.inputs} input tokens and {setup.slots} "
        f"places take {size}. Lower BATCH_SIZE, or start `python -m "
        "specdec_t5x.contrib.link` with a larger --cache-gib."
      )

  def ask(
    self, terms: Terms, source, sequences, lengths, ended, uniforms
  ) -> tuple[np.ndarray, ...]:
    """Returns tokens, their probs' tokens and weights, and which rows have a draft."""
    setup = Setup(terms, *source.shape, sequences.shape[1])
    drafts = None
    if time.monotonic() < self._not_before:
      self.counts.skipped += 1
    else:
      try:
        drafts = self._asked(setup, source, sequences, lengths, ended, uniforms)
        self._found()
      except (Lost, ValueError) as error:
        self._lose(error)
    if drafts is None:
      shape = setup.rows, terms.gamma
      distribution = np.zeros((*shape, terms.kept), np.int32)
      return (
        np.zeros(shape, np.int32),
        distribution,
        distribution,
        np.zeros(setup.rows, bool),
      )
    arrays = drafts.tokens, drafts.kept, drafts.weights
    return (*(x.astype(np.int32) for x in arrays), ~ended)

  def _asked(self, setup, *arrays) -> Drafts:
    mirror = self._mirrors.setdefault(setup, Mirror(setup))
    ask, (status, number, body) = self._exchanged(mirror, arrays)
    if status == Status.NO_SESSION and mirror.is_open:
      # The draft's process was started anew.
      mirror = self._mirrors[setup] = Mirror(setup)
      ask, (status, number, body) = self._exchanged(mirror, arrays)
    if (status, number) != (Status.OK, mirror.number):
      raise Lost(f"it answered {_name(status)}")
    drafts = Drafts.unpacked(body, setup, ask.live)
    mirror.answered(ask)
    self.counts.requests += 1
    self.counts.tokens += int(ask.live.sum()) * setup.terms.gamma
    return drafts

  def _exchanged(self, mirror: Mirror, arrays) -> tuple[Ask, tuple[int, int, bytes]]:
    """Returns the question that was sent, and its reply, taken apart."""
    setup, ask = mirror.setup, mirror.ask(*arrays)
    kind = Kind.DRAFT if mirror.is_open else Kind.OPEN
    opening = b"" if mirror.is_open else setup.packed()
    seconds = self._remote.timeout_ms / 1e3 if mirror.is_open else _OPENING_SECONDS
    request = wire.head(kind, mirror.number) + opening + ask.packed(setup)
    return ask, wire.beheaded(self._sent(request, seconds))

  def _sent(self, request: bytes, seconds: float) -> bytes:
    self.counts.bits_sent += 8 * len(request)
    self._travel(request)
    reply = self._call("draft", request, seconds)
    self._travel(reply)
    self.counts.bits_received += 8 * len(reply)
    return reply

  def _travel(self, message: bytes) -> None:
    """Waits as long as a message is on the emulated link."""
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
        "The draft at %s is lost (%s). The target decodes on by itself, and the draft "
        "is asked again from time to time.",
        self._remote.address,
        error,
      )
    self._wait = min(max(2 * self._wait, _FIRST_WAIT), _LONGEST_WAIT)
    self._not_before = time.monotonic() + self._wait

  def _found(self) -> None:
    if self._wait:
      logging.warning("The draft at %s is back.", self._remote.address)
    self._wait = 0.0


@functools.cache
def _asker(remote: Remote) -> Asker:
  """Returns the one asker of equal settings: its sessions outlive any program."""
  return Asker(remote)


def _over_grpc(address: str) -> Callable[[str, bytes, float], bytes]:
  """Returns what sends bytes to a method and waits for bytes."""
  # A process that is started again is found again soon.
  soon = (("grpc.max_reconnect_backoff_ms", 1000),)
  channel = grpc.insecure_channel(address, options=(*OPTIONS, *soon))
  methods = {
    name: channel.unary_unary(f"/{SERVICE}/{name}") for name in ("about", "draft")
  }

  def call(method: str, request: bytes, seconds: float) -> bytes:
    try:
      return methods[method](request, timeout=seconds)
    except grpc.RpcError as error:
      raise Lost(f"{error.code().name}: {error.details()}") from error

  return call


def _name(status: int) -> str:
  known = {member.value: member.name for member in Status}
  return known.get(status, f"status {status}")
