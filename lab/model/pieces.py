"""The pieces of a decode as programs, compiled for a device from shapes alone.

A repeated piece is compiled inside a loop (`benchmarks.timed`). Work that happens once,
such as laying out weights, is then not part of a repetition.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from benchmarks.oracle import ROUNDED, paired
from benchmarks.sizes import random_params, t5_1_1
from benchmarks.study import Decode
from benchmarks.timed import iterated
from lab.model import work
from lab.model.devices import Device
from lab.model.hlo import Program
from specdec_t5x.core import tree
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import score_tree
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.network.transformer import Transformer


@dataclasses.dataclass(frozen=True)
class Piece:
  """A part of a decode to compile."""

  # "call": a network on `width` tokens a row; "encoder": encoding the inputs;
  # "iteration": a turn of the speculative loop that drafts `width` tokens.
  kind: str
  size: str  # Size of the network or of the target, from `benchmarks.sizes.SIZES`.
  width: int = 0  # Tokens; 0 for an encoder.
  batch: int = 1  # Batch rows.
  # The draft of an iteration: a size, or a name in `ROUNDED`. For a call, a name in
  # `ROUNDED` means a call of the rounded network instead of `size`.
  draft: str = ""
  dtype: str = "bfloat16"  # Dtype of parameters and activations.
  input_length: int = 128  # Tokens of an input.
  max_length: int = 128  # The most tokens of an output.
  products: str = "auto"  # How CPUs multiply few rows, see `network.config`.

  @property
  def network(self) -> str:
    """The called network: a size, or a name in `ROUNDED`."""
    return self.draft if self.kind == "call" and self.draft else self.size


@dataclasses.dataclass(frozen=True)
class Cost:
  """The work of a turn of a piece, read from the compiled program."""

  # `moved`, `operations` and `cycles` are as in `lab.model.work.Work`.
  moved: int
  operations: int
  cycles: int
  # Floating-point operations in XLA's count. Loops inside a turn count once. For a CPU,
  # products are counted before the compiler replaces them by kernels.
  flops: float
  held: int  # Bytes of arguments and temporary buffers.
  compiling: float  # Seconds of compilation.

  def roofline(self, device: Device) -> float:
    """Returns the larger of the seconds for moving bytes and the seconds for FLOPs."""
    return max(self.moved / device.bandwidth, self.flops / device.peak)

  def by_cycles(self, device: Device) -> float:
    """Returns the compiler's estimate in seconds."""
    return self.cycles / device.clock if device.clock else 0.0

  def seconds(self, device: Device) -> float:
    """Returns the larger of roofline and estimate; prefetching overlaps with work."""
    return max(self.roofline(device), self.by_cycles(device))


def compiled(piece: Piece, device: Any) -> Cost:
  """Compiles a piece for a device; the device may be absent."""
  place = SingleDeviceSharding(device)
  # Accelerators keep 4-bit codes as int4, even if this machine keeps them as int8.
  in_four = device.platform != "cpu" and ROUNDED.get(piece.draft, (0,))[0] == 4

  def kept(dtype):
    return jnp.int4 if in_four and dtype == jnp.int8 else dtype

  def shaped(x):
    return jax.ShapeDtypeStruct(x.shape, kept(x.dtype), sharding=place)

  run, arguments = program(piece)
  traced = run.trace(*jax.tree.map(shaped, jax.eval_shape(arguments)))
  begin = time.perf_counter()
  executable = traced.lower(lowering_platforms=(device.platform,)).compile()
  seconds = time.perf_counter() - begin
  parsed = Program.read(executable.as_text())
  counted = work.total(parsed) if piece.kind == "encoder" else work.turn(parsed)
  memory = executable.memory_analysis()
  flops = executable.cost_analysis()["flops"]
  if device.platform == "cpu":
    # XLA does not count the work of native kernels, so count XLA's own products.
    as_xla = dataclasses.replace(piece, products="xla")
    run, arguments = program(as_xla)
    flops = run.lower(*jax.eval_shape(arguments)).cost_analysis()["flops"]
  return Cost(
    **dataclasses.asdict(counted),
    flops=float(flops),
    held=memory.argument_size_in_bytes + memory.temp_size_in_bytes,
    compiling=seconds,
  )


def program(
  piece: Piece, params: Any = None
) -> tuple[Callable[..., Any], Callable[[], tuple]]:
  """Returns the program of a piece, and a function that makes the arguments.

  `jax.eval_shape` of the function gives the shapes alone.
  """
  make = (lambda network: random_params(network, 0)) if params is None else None
  return _PROGRAMS[piece.kind](piece, make or (lambda network: params))


def words(piece: Piece) -> str:
  """Returns a description of a piece without the batch size."""
  if piece.kind == "encoder":
    return f"{piece.size}, encoder"
  if piece.kind == "iteration":
    return f"{piece.size} with {piece.draft}, iteration of gamma {piece.width}"
  tokens = "a token" if piece.width == 1 else f"{piece.width} tokens"
  return f"{piece.size}{piece.draft and ' in '}{piece.draft}, {tokens}"


def _network(piece, size):
  config = dataclasses.replace(t5_1_1(size, piece.dtype), products=piece.products)
  return Transformer(config)


def _decoder(piece):
  """Returns the decoder of a piece; a decoder of blocks without a draft."""
  network = _network(piece, piece.size)
  if not piece.draft:
    return Decoder(network, block=piece.width)
  is_rounded = piece.draft in ROUNDED
  draft = piece.draft if is_rounded else _network(piece, piece.draft)
  return paired(network, draft, piece.width)


def _inputs(piece):
  return jnp.ones((piece.batch, piece.input_length), jnp.int32)


def _encoder(piece, weights):
  network = _network(piece, piece.size)

  @jax.jit
  def run(params, inputs):
    def apply(*args, **how):
      return network.apply({"params": params}, *args, **how)

    encoded = apply(inputs, enable_dropout=False, method=network.encode)
    return apply(encoded, inputs, piece.max_length, method=network.start)

  return run, lambda: (weights(network), _inputs(piece))


def _call(piece, weights):
  decoder = _decoder(piece)
  start = _from_state(_start(piece, decoder))

  def prepare(*arguments):
    how, state = start(*arguments)
    extend = decoder.drafter.extend(how) if piece.draft else how.target.extend
    return extend, state

  shape = tree.chain(piece.width - 1)
  blank = jnp.zeros((piece.batch, shape.size), jnp.int32)

  @jax.jit
  def run(count, *arguments):
    extend, state = prepare(*arguments)

    def call(_, carry):
      state, zero = carry
      cache = state.target_cache.at(state.lengths - 1)
      block = jnp.concatenate([state.last_tokens()[:, None], blank], axis=1) + zero
      logits, _, cache = score_tree(extend, cache, block, shape)
      # XLA can't skip a repetition: the next one reads a zero that needs all logits.
      logits = jax.lax.optimization_barrier(logits)
      zero = (logits.ravel()[-1] == -12345).astype(jnp.int32)
      return state.replace(target_cache=cache), zero

    return jax.lax.fori_loop(0, count, call, (state, jnp.int32(0)))[1]

  return run, _arguments(piece, decoder, weights)


def _iteration(piece, weights):
  decoder = _decoder(piece)
  run = iterated(_from_state(_start(piece, decoder)))
  return run, _arguments(piece, decoder, weights)


def _start(piece, decoder):
  return Decode(decoder, None, GREEDY, piece.max_length).start


def _from_state(prepare):
  """Returns `prepare` with the state's arrays as an argument, so nothing is encoded."""

  def start(arrays, *args):
    how, state = prepare(*args)
    return how, jax.tree.unflatten(jax.tree.structure(state), arrays)

  return start


def _arguments(piece, decoder, weights):
  prepare = _start(piece, decoder)

  def make():
    networks = decoder.networks.items()
    params = {name: weights(network) for name, network in networks}
    derived = decoder.derive(GREEDY).items()
    params |= {name: derive(params["target"]) for name, derive in derived}
    keys = row_keys(jax.random.key(0), piece.batch)
    inputs = _inputs(piece)

    # A list, because a state can't be built from shapes alone.
    @jax.jit
    def leaves(params, inputs, keys):
      return jax.tree.leaves(prepare(params, inputs, keys)[1])

    return jnp.int32(1), leaves(params, inputs, keys), params, inputs, keys

  return make


_PROGRAMS = {"call": _call, "encoder": _encoder, "iteration": _iteration}
