"""The configuration of T5Gemma and T5Gemma 2.

The blocks are in `layers`, `attention` and `decoder`, and read all differences from T5
off the configuration: norms by 1 + w, before and after each sublayer; embeddings times
sqrt(D); rotary positions; fewer key heads than query heads; layers with a window; caps
on scores and logits. T5Gemma 2 normalises queries and keys. T5Gemma 2's decoder attends
to decoder positions and to the input in one softmax.

Sources: T5Gemma, arXiv 2504.06225; T5Gemma 2, arXiv 2512.14856; for the blocks Gemma 2,
arXiv 2408.00118, and Gemma 3, arXiv 2503.19786.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from specdec_t5x.network.config import Reach, T5Config

LAYER_TYPES = ("sliding", "full")
# Fields that can't be read off the shapes of parameters.
UNTOLD = (
  *("query_scalar", "layer_types", "window", "theta", "full_theta", "full_factor"),
  *("attention_cap", "logits_cap", "start_token"),
)


@dataclasses.dataclass(frozen=True)
class GemmaConfig(T5Config):
  """The shape of a T5Gemma or, if `merged`, of a T5Gemma 2.

  Sizes are the decoder's. With an `attention_cap`, XLA computes attention for any
  `products`, because our kernel has no cap.
  """

  mlp_activations: Sequence[str] = ("gelu", "linear")
  dropout_rate: float = 0.0
  logits_via_embedding: bool = True
  float32_attention_logits: bool = True
  # Heads of keys and values; num_heads / num_kv_heads query heads share a head.
  num_kv_heads: int = 1
  query_scalar: int = 256  # Square of the divisor of scores.
  # Types of the first layers, 'sliding' or 'full'. Further layers repeat the
  # sequence.
  layer_types: Sequence[str] = LAYER_TYPES
  window: int = 4096  # Tokens that a sliding layer of the decoder sees.
  theta: float = 10_000.0  # Base of the rotary wavelengths in sliding layers.
  full_theta: float = 10_000.0  # Base of the rotary wavelengths in full layers.
  full_factor: float = 1.0  # Divisor of positions in full layers.
  attention_cap: float = 0.0  # Soft cap of scores, by a tanh; 0 is no cap.
  logits_cap: float = 0.0  # Soft cap of logits, by a tanh; 0 is no cap.
  # Whether the network is a T5Gemma 2. A decoder layer of T5Gemma 2 attends to
  # decoder positions and to the input in one softmax, with one set of matrices and
  # with normalised queries and keys. The encoder uses the decoder's embedding.
  merged: bool = True
  start_token: int = 2  # First token that the decoder reads.
  # Sizes of the encoder; None for the decoder's sizes. The number of layers is
  # `num_encoder_layers` in both cases.
  encoder: "GemmaConfig | None" = None

  is_gemma: ClassVar[bool] = True

  def __post_init__(self):
    object.__setattr__(self, "layer_types", tuple(self.layer_types))
    super().__post_init__()
    if not self.layer_types or set(self.layer_types) - set(LAYER_TYPES):
      raise ValueError(
        f"GemmaConfig.layer_types must be names among {LAYER_TYPES}, got "
        f"{self.layer_types!r}."
      )
    if self.num_heads % self.num_kv_heads or self.head_dim % 2:
      raise ValueError(
        "GemmaConfig.num_heads must be divisible by num_kv_heads, and head_dim must be "
        f"even, got {self.num_heads}, {self.num_kv_heads} and {self.head_dim}."
      )
    if self.merged and self.encoder and self.encoder.emb_dim != self.emb_dim:
      raise ValueError(
        "Encoder and decoder of a T5Gemma 2 must have equal widths, got "
        f"emb_dim={self.encoder.emb_dim} and {self.emb_dim}. For a T5Gemma set "
        "merged=False."
      )

  @property
  def query_scale(self) -> float:
    """The factor of queries."""
    return self.query_scalar**-0.5

  @property
  def has_encoder_table(self) -> bool:
    """Whether the encoder has an embedding apart from the decoder's."""
    return not self.merged and bool(self.num_encoder_layers)

  @property
  def encoder_side(self) -> "GemmaConfig":
    """The encoder's sizes, with the decoder's settings."""
    names = ("num_encoder_layers", "dtype", "sharding", "products", "weights", "merged")
    settings = {name: getattr(self, name) for name in names}
    return dataclasses.replace(self.encoder or self, encoder=None, **settings)

  def reaches(self, layers: int, is_encoder: bool) -> tuple[Reach, ...]:
    """Returns the window and the rotary positions of each layer of a stack."""
    # In transformers, each side of the window of a T5Gemma's encoder is one token wider
    # than the decoder's window. The two sides of a T5Gemma 2's encoder together see as
    # many tokens as the decoder's window.
    if not is_encoder:
      window = (self.window, 1)
    elif self.merged:
      window = ((self.window + 1) // 2, self.window // 2 + 1)
    else:
      window = (self.window + 1, self.window + 1)
    kinds = {
      "sliding": Reach(window, self.theta),
      "full": Reach(None, self.full_theta, self.full_factor),
    }
    types = self.layer_types
    return tuple(kinds[types[i % len(types)]] for i in range(layers))
