"""What the contract's tests share. They run on whichever `t5x` is importable."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import t5x
import tensorflow as tf
from t5x import models, train_state

from specdec_t5x.network.config import T5Config
from specdec_t5x.network.transformer import Transformer

IS_RUNTIME = hasattr(t5x, "PROVIDER")
LENGTHS = {"inputs": 24, "targets": 12}
VOCABULARY = seqio.ByteVocabulary()
EXAMPLES = 11


runtime_only = pytest.mark.skipif(
  not IS_RUNTIME, reason="upstream T5X fails otherwise here, or not at all"
)


def tiny_model(**kwargs) -> models.EncoderDecoderModel:
  config = T5Config(
    vocab_size=VOCABULARY.vocab_size,
    emb_dim=16,
    num_heads=2,
    head_dim=8,
    num_encoder_layers=1,
    num_decoder_layers=1,
    mlp_dim=32,
  )
  module = Transformer(config)
  return models.EncoderDecoderModel(module, VOCABULARY, VOCABULARY, None, **kwargs)


def tiny_variables(model, seed=0):
  shapes = {
    "encoder_input_tokens": (1, LENGTHS["inputs"]),
    "decoder_input_tokens": (1, LENGTHS["targets"]),
  }
  types = dict.fromkeys(shapes, jnp.int32)
  make = jax.jit(lambda rng: model.get_initial_variables(rng, shapes, types))
  variables = make(jax.random.PRNGKey(seed))
  # Random networks of that size barely look at their input; larger weights do.
  return variables.copy(
    {"params": jax.tree.map(lambda x: 3.0 * x, variables["params"])}
  )


def tiny_state(model, seed=0, step=7) -> train_state.InferenceState:
  state = train_state.InferenceState.create(tiny_variables(model, seed))
  return state.replace_step(jnp.asarray(step, jnp.int32))


def register_task(name: str, count: int = EXAMPLES, first=()) -> str:
  """A task of `count` short texts; the same one if called again.

  `first` are preprocessors of texts.
  """
  if name in seqio.TaskRegistry.names():
    return name

  def examples(split, shuffle_files=False, seed=None):
    del split, shuffle_files, seed
    texts = [f"text {i} {'x' * (i % 5)}" for i in range(count)]
    targets = [f"{i}" * (1 + i % 3) for i in range(count)]
    return tf.data.Dataset.from_tensor_slices({"inputs": texts, "targets": targets})

  seqio.TaskRegistry.add(
    name,
    source=seqio.FunctionDataSource(examples, splits=["test"]),
    preprocessors=[
      *first,
      seqio.preprocessors.tokenize,
      seqio.preprocessors.append_eos_after_trim,
    ],
    output_features={k: seqio.Feature(VOCABULARY) for k in LENGTHS},
  )
  return name


class TableModel:
  """A Markov chain as a decoder; its cache counts steps and sums tokens."""

  def __init__(self, seed: int, vocab_size: int = 5, scale: float = 2.0):
    self.logits = scale * np.random.default_rng(seed).normal(
      size=(vocab_size, vocab_size)
    ).astype(np.float32)

  def __call__(self, state):
    cache = {
      "cache_index": state.cache["cache_index"] + 1,
      "sum": state.cache["sum"] + state.cur_token.astype(jnp.float32),
    }
    return jnp.asarray(self.logits)[state.cur_token[:, 0]], cache

  def cache(self, rows: int):
    return {"cache_index": jnp.zeros((), jnp.int32), "sum": jnp.zeros((rows, 1))}

  def log_probs(self, temperature=1.0):
    return np.asarray(jax.nn.log_softmax(jnp.asarray(self.logits) / temperature))
