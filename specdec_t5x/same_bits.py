"""Decides whether a decode's logits equal plain decoding's bit for bit.

In float32 a difference in the last digit rarely changes an output. In bfloat16 an
output in twenty changes, at a place with two nearly tied best tokens.
docs/math.md ("The same bits") separates proofs from properties of the kernels.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specdec_t5x import console
from specdec_t5x.decoding.widths import FIXED_WIDTH, of_fixed_width
from specdec_t5x.network import functional, products, rounded
from specdec_t5x.network.functional import Network

# The answers of this process, by decoder and rows.
_found: dict[Any, "Answer"] = {}


@dataclasses.dataclass(frozen=True)
class Answer:
  """Whether logits equal plain decoding's at the same batch size, bit for bit.

  Attributes:
    holds: whether the logits are equal.
    reason: the reason for the answer.
  """

  holds: bool
  reason: str

  def line(self) -> str:
    """Returns the message of a greedy run about the outputs."""
    if self.holds:
      return f"Outputs are plain decoding's, bit for bit: {self.reason}."
    return f"Outputs may differ from plain decoding's in near-ties: {self.reason}."


def find(decoder: Any, rows: int, params: Mapping[str, Any]) -> Answer:
  """Returns the answer for a decode; checks the device if blocks have a fixed width.

  Args:
    decoder: the decoder.
    rows: the number of rows decoded at once.
    params: the parameters of the decoder's networks, on the device.
  """
  key = decoder, rows
  if key not in _found:
    _found[key] = _answer(decoder, rows, params)
  return _found[key]


def answers() -> list[Answer]:
  """Returns the answers for all decodes of this process."""
  return list(_found.values())


def _answer(decoder, rows, params) -> Answer:
  if decoder.is_fixed(rows):
    if _depends_on_place(decoder.target, rows, params["target"]):
      reason = "a token's logits depend on the token's place in a block on the device"
      console.say(f"SAME_BITS can't be kept: {reason}. Outputs may differ.")
      return Answer(False, reason)
    return Answer(True, f"every call of the target scores {FIXED_WIDTH} tokens")
  if decoder.drafter is None:
    return Answer(True, "decoding is plain")
  if _are_by_row(decoder.target, rows * (decoder.drafter.tree.size + 1)):
    return Answer(True, "products of a row do not depend on the rest of the rows")
  reason = (
    "products of several tokens are rounded differently from products of one token"
  )
  return Answer(False, f"{reason}; SAME_BITS=True scores blocks of one width")


def _are_by_row(target: Network, tokens: int) -> bool:
  """Returns whether our kernels compute blocks of the given number of tokens."""
  config = target.config
  # Capped attention is XLA's.
  if getattr(config, "attention_cap", 0):
    return False
  choice = getattr(config, "products", "xla")
  # Logits are float32 products, whatever the dtype of the activations.
  most = config.most_rows if rounded.of_weights(config) else products.MAX_ROWS
  return products.are_native(choice, tokens, config.dtype, most)


def _depends_on_place(target: Network, rows: int, params: Any) -> bool:
  """Returns whether a token's logits depend on the token's place in a block.

  The check runs one layer on this device, as all layers' products have equal shapes.
  """
  network, params = functional.first_layers(target, params)
  return not _are_equal(network, rows)(params)


@functools.cache
def _are_equal(network: Network, rows: int):
  """Returns a program that compares the logits of equal tokens at two places.

  The program scores the last three of six tokens twice: in a block of all six tokens,
  and in a block of three tokens.
  """

  def run(params):
    tokens = jnp.arange(2, 2 + 6)[None].repeat(rows, axis=0)
    inputs = jnp.arange(2, 2 + 16)[None].repeat(rows, axis=0)
    _, cache = functional.start_decoding(network, params, inputs, 3 * FIXED_WIDTH)
    extend = of_fixed_width(functional.extend_fn(network, params))
    together, _, _ = extend(cache, tokens)
    _, _, cache = extend(cache, tokens[:, :3])
    apart, _, _ = extend(cache, tokens[:, 3:])
    return jnp.array_equal(together[:, 3:], apart, equal_nan=True)

  return jax.jit(run)
