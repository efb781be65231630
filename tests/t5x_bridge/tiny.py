"""A tiny random pair with vocabulary and checkpoints."""

import pathlib

import flax
import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece
import seqio
from t5x import checkpoints, models, partitioning, train_state

from specdec_t5x import ways
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.functional import (
  initial_variables,
  is_decoder_only,
  network_for,
)
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge.model import EncoderDecoderModel
from specdec_t5x.t5x_bridge.restore import (
  CheckpointManager,
  T5XParameters,
  abstract_state,
  one_device,
)
from specdec_t5x.ways import Model

TEXT = "the a old young man woman dog cat sees red house"
WORDS = TEXT.split()
VOCAB_SIZE = 64
LENGTHS = {"inputs": 8, "targets": 12}


def sizes(width, vocab_size):
  return {
    "vocab_size": vocab_size,
    "emb_dim": width,
    "num_heads": 2,
    "head_dim": 8,
    "mlp_dim": 2 * width,
    "mlp_activations": ("gelu", "linear"),
  }


def config(layers, width, vocab_size=VOCAB_SIZE):
  layers = {"num_encoder_layers": 1, "num_decoder_layers": layers}
  return T5Config(**sizes(width, vocab_size), **layers)


TARGET = config(2, 16)
DRAFT = config(1, 8)


def sentences(count, seed=0):
  rng = np.random.default_rng(seed)
  return [" ".join(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(count)]


def train_vocabulary(directory: pathlib.Path, size=30) -> str:
  text = directory / "text.txt"
  text.write_text("\n".join(sentences(300)))
  sentencepiece.SentencePieceTrainer.train(
    input=str(text),
    model_prefix=str(directory / "tiny"),
    vocab_size=size,
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    minloglevel=2,
  )
  return str(directory / "tiny.model")


def save_pair(directory: pathlib.Path, target=TARGET) -> dict[str, str]:
  """Returns the paths of checkpoints of a target and a draft, and of a vocabulary."""
  return {
    "target": save_t5x(directory / "t", target, seed=1),
    "draft": save_t5x(directory / "d", DRAFT, seed=2),
    "vocabulary": train_vocabulary(directory),
  }


def decoder(
  target=TARGET,
  draft=DRAFT,
  drafter="draft_model",
  rule="token",
  gamma=3,
  policy=None,
  **words,
):
  """Returns a decoder from networks and parts; a part may be a name or an object."""
  words |= {"gamma": gamma, "policy": policy}
  network = draft and network_for(draft)
  return ways.decoder(network_for(target), network, drafter, rule, **words)


def model(decoder, vocabulary, sampling=GREEDY, **kwargs):
  return EncoderDecoderModel(decoder, vocabulary, vocabulary, sampling, **kwargs)


_OF_THE_MODEL = ("seed", "default_decoder_params")


def split_settings(settings, names=_OF_THE_MODEL):
  """Splits settings into the decoder's and the model's; `names` are the model's."""
  of_model = {name: settings[name] for name in names if name in settings}
  return {n: x for n, x in settings.items() if n not in of_model}, of_model


def speculative(vocabulary, sampling=GREEDY, **settings):
  of_decoder, of_model = split_settings(settings)
  return model(decoder(**of_decoder), vocabulary, sampling, **of_model)


def plain(vocabulary, sampling=GREEDY, **kwargs):
  return model(Decoder(Transformer(TARGET)), vocabulary, sampling, **kwargs)


def variables(model, seed=0):
  """Returns random parameters with larger weights, so logits have no ties.

  The logit of the padding token is always 0, so greedy decoding never gives padding.
  """
  networks = model.decoder.networks if hasattr(model, "decoder") else {}
  key = model.module, tuple(networks.items()), seed
  if key not in _variables:
    with jax.ensure_compile_time_eval():  # Gives arrays even while tracing.
      _variables[key] = _make_variables(model, seed)
  return _variables[key]


_variables = {}  # By networks and seed, because many tests share variables.


def _make_variables(model, seed):
  shapes = {"encoder_input_tokens": (1, 8), "decoder_input_tokens": (1, 8)}
  types = dict.fromkeys(shapes, jnp.int32)

  def sharpen(path, x):
    is_output = any(getattr(key, "key", None) == "logits_dense" for key in path)
    return 2 * (x.at[:, 0].set(0) if is_output else x)

  @jax.jit
  def make(key):
    tree = model.get_initial_variables(key, shapes, types)
    params = dict(tree["params"])
    if hasattr(model, "decoder"):  # Our models have no initial values.
      networks = model.decoder.networks.items()
      keys = jax.random.split(jax.random.wrap_key_data(key), len(networks))
      for (name, network), key in zip(networks, keys, strict=True):
        params[name] = initial_variables(network, key)["params"]
    params = jax.tree_util.tree_map_with_path(sharpen, flax.core.freeze(params))
    return {**tree, "params": params}

  return make(jax.random.PRNGKey(seed))


def predict(model, params, batch, **kwargs):
  """Returns the tokens and statistics of a batch from a compiled program."""
  key = jax.random.PRNGKey(0)

  def run(params, batch):
    return model.predict_batch_with_aux(params, batch, key, **kwargs)

  return jax.jit(run)(params, batch)


def restored(model, paths, dtype="float32", examples=2, lengths=LENGTHS):
  """Restores the state of a model like T5X, from a checkpoint per network."""
  state = train_state.InferenceState.create(variables(model, seed=3))
  manager = CheckpointManager(
    directory="",
    train_state=jax.eval_shape(lambda: state),
    partitioner=partitioning.PjitPartitioner(num_partitions=1),
    paths=paths,
    restore_dtype=dtype,
    model=model,
    examples=examples,
    lengths=lengths,
  )
  return manager.restore(path=paths["target"])


def state(module, seed=0):
  """Returns an inference state of a network."""
  model = t5x_model(module, seqio.ByteVocabulary())
  return train_state.InferenceState.create(variables(model, seed))


def t5x_model(module, vocabulary, decode_fn=None):
  """Returns T5X's own model of a network."""
  if is_decoder_only(module):
    return models.DecoderOnlyModel(module, vocabulary, None, decode_fn)
  return models.EncoderDecoderModel(module, vocabulary, vocabulary, None, decode_fn)


def pair():
  networks = network_for(TARGET), network_for(DRAFT)
  return [Model(x, state(x, seed).params) for seed, x in enumerate(networks, 1)]


def drawn(config, seed=0):
  """Returns random parameters; an initializer would be compiled."""
  draw = np.random.default_rng(seed).normal
  shapes = abstract_state(network_for(config)).params
  return jax.tree.map(lambda x: draw(size=x.shape).astype(x.dtype), shapes)


def save(directory, config, params, format="t5x", step=7) -> str:
  directory.mkdir(parents=True, exist_ok=True)
  network = network_for(config)
  if format == "t5x":
    T5XParameters(network, str(directory)).save(step, params)
  else:
    state = abstract_state(network).replace_params(params)
    state = state.replace_step(jnp.asarray(step, jnp.int32))
    checkpoints.OrbaxCheckpointManagerInterface(
      str(directory), state, one_device(), save_dtype=None
    ).save(state)
  return str(directory / f"checkpoint_{step}")


def save_t5x(directory, config, seed=0, **how) -> str:
  return save(directory, config, state(network_for(config), seed).params, **how)
