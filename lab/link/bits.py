"""The sizes of drafted tokens in messages, as the papers count.

Source: TK-SLT, arXiv 2509.04576; TSLT, arXiv 2512.16273.
"""

_WEIGHT_BITS = 16


def probs_bits(top_k: int, vocab_size: int) -> int:
  """Returns the bits of a drafted token with a distribution, as the papers count.

  The number is K (16 + ceil(log2 V)) + ceil(log2 V). A full distribution is sent
  without token ids. A message of `contrib.link.wire` has 16 or 32 bits per token id.

  >>> probs_bits(32, 32128), probs_bits(32, 8064), probs_bits(32128, 32128)
  (1007, 941, 514063)
  """
  id_bits = token_bits(vocab_size)
  kept_bits = _WEIGHT_BITS + (id_bits if top_k < vocab_size else 0)
  return top_k * kept_bits + id_bits


def token_bits(vocab_size: int) -> int:
  """Returns ceil(log2 V), the bits of a token id."""
  return max(1, (vocab_size - 1).bit_length())
