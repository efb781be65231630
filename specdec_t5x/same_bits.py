"""Whether a decode's logits have plain decoding's bits, and a check of the device.

In float32 differences of a last digit rarely change an output. In bfloat16 they change
one output in twenty, where the two best tokens are nearly tied. docs/math.md ("The same
bits") says what is proved and what is a property of the kernels.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specdec_t5x import console
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.widths import FIXED_WIDTH, of_fixed_width
from specdec_t5x.network import functional, products, rounded
from specdec_t5x.network.functional import Network

# What was said of decodes in this process, by network, rows and settings.
_found: dict[Any, "Answer"] = {}


@dataclasses.dataclass(frozen=True)
class Answer:
  """Whether logits have the bits of plain decoding at the same batch size.

  Attributes:
    holds: whether they have.
    reason: why.
  """

  holds: bool
  reason: str

  def line(self) -> str:
    """Returns what a greedy run says of its outputs."""
    if self.holds:
      return f"Outputs are plain decoding's, bit for bit: {self.reason}."
    return f"Outputs may differ from plain decoding's in near-ties: {self.reason}."


def find(decoder: Any, rows: int, params: Mapping[str, Any]) -> Answer | None:
  """Returns the answer for a decode; checks the device where blocks have one width.

  None of a beam search, whose hypotheses are not plain decoding's.

  Args:
    decoder: what decodes.
    rows: that decode at once.
    params: of the decoder's networks, on the device.
  """
  if not isinstance(decoder, PlainDecoder | SpeculativeDecoder):
    return None
  key = decoder, rows
  if key not in _found:
    _found[key] = _answer(decoder, rows, params)
  return _found[key]


def answers() -> list[Answer]:
  """Returns the answers for decodes of this process."""
  return list(_found.values())


def _answer(decoder, rows, params) -> Answer:
  if decoder.is_fixed(rows):
    if _depends_on_place(decoder.target, rows, params["target"]):
      reason = "the device gives a token other logits at another place of a block"
      console.say(f"SAME_BITS can't be kept: {reason}. Outputs may differ.")
      return Answer(False, reason)
    return Answer(True, f"every call of the target scores {FIXED_WIDTH} tokens")
  if decoder.drafter is None:
    return Answer(True, "decoding is plain")
  if _are_by_row(decoder.target, rows * (decoder.drafter.tree.size + 1)):
    return Answer(True, "products compute a row alike whatever the other rows are")
  reason = "products of several tokens are rounded otherwise than those of one"
  return Answer(False, f"{reason}; SAME_BITS=True scores blocks of one width")


def _are_by_row(target: Network, tokens: int) -> bool:
  """Returns whether our own kernels compute blocks of so many tokens."""
  config = target.config
  if getattr(config, "attention_cap", 0):  # XLA's attention.
    return False
  choice = getattr(config, "products", "xla")
  # Logits are float32 products, whatever the dtype of the activations.
  most = config.most_rows if rounded.of_weights(config) else products.MAX_ROWS
  return products.are_native(choice, tokens, config.dtype, most)


def _depends_on_place(target: Network, rows: int, params: Any) -> bool:
  """Returns whether a token's logits depend on its place in a block, on this device.

  One layer of the network is asked, whose products have the shapes of all layers'.
  """
  network, params = functional.first_layers(target, params)
  return not _are_equal(network, rows)(params)


@functools.cache
def _are_equal(network: Network, rows: int):
  """Returns the program that compares logits of the same tokens at two places.

  Of six tokens the last three are scored in a block with the others, and in a block of
  their own.
  """

  def run(params):
    tokens = jnp.arange(2, 2 + 6)[None].repeat(rows, axis=0)
    inputs = jnp.arange(2, 2 + 16)[None].repeat(rows, axis=0)
    given = network, params, inputs, 3 * FIXED_WIDTH
    _, cache = functional.start_decoding(*given)
    extend = of_fixed_width(functional.extend_fn(network, params))
    together, _, _ = extend(cache, tokens)
    _, _, cache = extend(cache, tokens[:, :3])
    apart, _, _ = extend(cache, tokens[:, 3:])
    return jnp.array_equal(together[:, 3:], apart, equal_nan=True)

  return jax.jit(run)
