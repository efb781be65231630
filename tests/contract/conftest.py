"""Helpers of the contract tests, which run on any importable `t5x`."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import t5x
import tensorflow as tf
from t5x import checkpoints, decoding, infer, models, partitioning, train_state, utils

from specdec_t5x.network.config import GptConfig, T5Config
from specdec_t5x.network.gpt import GptTransformer
from specdec_t5x.network.transformer import Transformer
from tests.t5x_bridge import tiny

IS_RUNTIME = hasattr(t5x, "PROVIDER")
LENGTHS = {"inputs": 24, "targets": 12}
VOCABULARY = seqio.ByteVocabulary()
TASK = "contract_infer"
EXAMPLES = 11
EXPECTED_INPUTS = [f"text {i} {'x' * (i % 5)}" for i in range(EXAMPLES)]


runtime_only = pytest.mark.skipif(
  not IS_RUNTIME, reason="upstream T5X fails differently here, or does not fail"
)


SIZES = tiny.sizes(16, VOCABULARY.vocab_size)


def tiny_model(**kwargs) -> models.EncoderDecoderModel:
  config = T5Config(num_encoder_layers=1, num_decoder_layers=1, **SIZES)
  module = Transformer(config)
  return models.EncoderDecoderModel(module, VOCABULARY, VOCABULARY, None, **kwargs)


def tiny_decoder_only(**kwargs) -> models.DecoderOnlyModel:
  module = GptTransformer(GptConfig(num_layers=2, **SIZES))
  return models.DecoderOnlyModel(module, VOCABULARY, None, **kwargs)


def tiny_state(model) -> train_state.InferenceState:
  return tiny.state(model.module).replace_step(jnp.asarray(7, jnp.int32))


def register_task(name: str, count: int = EXAMPLES, first=(), metrics=()) -> str:
  """Registers a task of `count` short texts, once per name, and returns the name.

  `first` are preprocessors of texts. `metrics` are seqio's metric functions.
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
    metric_fns=list(metrics),
  )
  return name


def dataset_config(**settings) -> utils.DatasetConfig:
  """Returns a configuration of the short texts, with changes in `settings`."""
  usual = {
    "mixture_or_task_name": register_task(TASK),
    "task_feature_lengths": LENGTHS,
    "split": "test",
    "batch_size": 4,
    "shuffle": False,
    "seed": 0,
  }
  return utils.DatasetConfig(**{**usual, **settings})


def initializer(model, partitioner) -> utils.TrainStateInitializer:
  """Returns an initializer of an encoder-decoder, with parameters for any length."""
  names = ("encoder_input_tokens", "decoder_input_tokens")
  return utils.TrainStateInitializer(
    optimizer_def=None,
    init_fn=model.get_initial_variables,
    input_shapes=dict.fromkeys(names, (1, 8)),
    partitioner=partitioner,
    input_types=dict.fromkeys(names, jnp.int32),
  )


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


EOS = 1


def decoded(decode, model: TableModel, rows=2, length=6, inputs=None, **kwargs):
  """Returns decodes and scores of a T5X sampler; the default inputs are empty."""
  inputs = np.zeros((rows, length), np.int32) if inputs is None else inputs
  decodes, scores = decode(
    inputs=jnp.asarray(inputs),
    cache=model.cache(len(inputs)),
    tokens_to_logits=model,
    eos_id=EOS,
    **kwargs,
  )
  return np.asarray(decodes), np.asarray(scores)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
  """Returns the path of a checkpoint of a tiny model."""
  return save_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def save_checkpoint(directory, state=None):
  state = tiny_state(tiny_model()) if state is None else state
  part = partitioning.PjitPartitioner(num_partitions=1)
  checkpoints.Checkpointer(state, part, str(directory)).save(state)
  return directory / "checkpoint_7"


def sampler(temperature):
  return functools.partial(decoding.temperature_sample, temperature=temperature, topk=0)


def run(
  checkpoint,
  output,
  mode="predict",
  *,
  model=None,
  period=2,
  batch=2,
  temperature=1.0,
  **kwargs,
):
  settings = {"batch_size": batch, **kwargs.pop("dataset", {})}
  infer.infer(
    mode=mode,
    model=model or tiny_model(decode_fn=sampler(temperature)),
    dataset_cfg=dataset_config(**settings),
    restore_checkpoint_cfg=utils.RestoreCheckpointConfig(
      path=str(checkpoint), mode="specific", dtype="float32"
    ),
    partitioner=partitioning.PjitPartitioner(num_partitions=1),
    output_dir=str(output),
    checkpoint_period=period,
    **kwargs,
  )


def result_path(output, mode="predict", shard=0, shards=1):
  return output / f"{TASK}-{mode}.jsonl-{shard:05}-of-{shards:05}"


def records(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def inputs_of(rows):
  return [row["inputs"]["inputs_pretokenized"] for row in rows]


@pytest.fixture(scope="session")
def whole(checkpoint, tmp_path_factory):
  """Returns the folder of an undisturbed run."""
  output = tmp_path_factory.mktemp("whole")
  run(checkpoint, output)
  return output


def writer(before=lambda path: None, after=lambda path: None):
  """Returns T5X's writer of chunks, with calls before and after each chunk."""

  def write(path, *args, **kwargs):
    before(path)
    infer.write_inferences_to_file(path, *args, **kwargs)
    after(path)

  return write


class Killed(Exception):
  pass


def _die(path):
  text = tf.io.gfile.GFile(path).read()
  if EXPECTED_INPUTS[4] in text:
    with open(path, "w") as file:
      file.write(text[: len(text) // 2])
    raise Killed


dying_writer = writer(after=_die)  # Dies with half of the second chunk written.
