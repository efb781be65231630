"""T5Gemma and T5Gemma 2: what of a network differs from T5's, as its configuration.

The blocks are `layers`, `attention` and `decoder`, which read off it what differs:
norms by 1 + w, before and after each sublayer; embeddings times sqrt(D); rotary
positions; fewer keys than queries; layers that see a window; caps on scores and logits.
T5Gemma 2 normalises queries and keys, and its decoder attends to itself and to the
input at once.

Sources: T5Gemma, arXiv 2504.06225; T5Gemma 2, arXiv 2512.14856; their blocks are those
of Gemma 2, arXiv 2408.00118, and Gemma 3, arXiv 2503.19786.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from specdec_t5x.network.config import Reach, T5Config

LAYER_TYPES = ("sliding", "full")
# What no parameter's shape tells.
UNTOLD = (
  *("query_scalar", "layer_types", "window", "theta", "full_theta", "full_factor"),
  *("attention_cap", "logits_cap", "start_token"),
)


@dataclasses.dataclass(frozen=True)
class GemmaConfig(T5Config):
  """The shape of a T5Gemma or, `merged`, of a T5Gemma 2; sizes are the decoder's.

  Where there is an `attention_cap`, attention is XLA's whatever `products` says: our
  own kernel has none.

  Attributes:
    num_kv_heads: of keys and values; each serves num_heads / num_kv_heads queries.
    query_scalar: scores are divided by its root.
    layer_types: 'sliding' or 'full', of the first layers; all others repeat them.
    window: tokens that a sliding layer of the decoder sees.
    theta: of rotary positions in sliding layers.
    full_theta: in full layers.
    full_factor: positions are divided by it in full layers.
    attention_cap: scores stay within it, by a tanh; 0 is none.
    logits_cap: logits, too.
    merged: whether a decoder's layer attends to itself and to the input by one softmax,
      with one set of matrices, queries and keys normalised, and the encoder reads the
      decoder's embedding: T5Gemma 2.
    start_token: what the decoder reads first.
    encoder: the encoder's sizes; None is the decoder's. Its layers are
      `num_encoder_layers` all the same.
  """

  mlp_activations: Sequence[str] = ("gelu", "linear")
  dropout_rate: float = 0.0
  logits_via_embedding: bool = True
  float32_attention_logits: bool = True
  num_kv_heads: int = 1
  query_scalar: int = 256
  layer_types: Sequence[str] = LAYER_TYPES
  window: int = 4096
  theta: float = 10_000.0
  full_theta: float = 10_000.0
  full_factor: float = 1.0
  attention_cap: float = 0.0
  logits_cap: float = 0.0
  merged: bool = True
  start_token: int = 2
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
        "GemmaConfig needs num_heads that num_kv_heads divides and an even head_dim, "
        f"got {self.num_heads}, {self.num_kv_heads} and {self.head_dim}."
      )
    if self.merged and self.encoder and self.encoder.emb_dim != self.emb_dim:
      raise ValueError(
        "Encoder and decoder of a T5Gemma 2 have one width, got emb_dim="
        f"{self.encoder.emb_dim} and {self.emb_dim}. merged=False is a T5Gemma."
      )

  @property
  def query_scale(self) -> float:
    """What queries are multiplied by."""
    return self.query_scalar**-0.5

  @property
  def kv_heads(self) -> int:
    """The heads of keys and values."""
    return self.num_kv_heads

  @property
  def has_encoder_table(self) -> bool:
    """Whether the encoder has an embedding of its own."""
    return not self.merged and bool(self.num_encoder_layers)

  @property
  def encoder_side(self) -> "GemmaConfig":
    """The encoder's sizes, run as the decoder is."""
    same = ("num_encoder_layers", "dtype", "sharding", "products", "weights", "merged")
    known = {name: getattr(self, name) for name in same}
    return dataclasses.replace(self.encoder or self, encoder=None, **known)

  def reaches(self, layers: int, is_encoder: bool) -> tuple[Reach, ...]:
    """Returns what each layer of a stack sees, and how it turns positions."""
    # In transformers a T5Gemma's window reaches as far to either side as a decoder's to
    # one, and one token more; a T5Gemma 2's has as many tokens in all.
    both = (self.window + 1) // 2, self.window // 2 + 1
    both = both if self.merged else (self.window + 1,) * 2
    sliding = Reach(both if is_encoder else (self.window, 1), self.theta)
    kinds = {
      "sliding": sliding,
      "full": Reach(None, self.full_theta, self.full_factor),
    }
    types = self.layer_types
    return tuple(kinds[types[i % len(types)]] for i in range(layers))
