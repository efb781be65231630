"""Export of a decode to files that run with only JAX and NumPy.

`jax.export` lowers the whole decode, with the loop and the random numbers, to StableHLO
for the named platforms. Lowering does not need the platforms themselves.

Shapes: B batch, E input length, T output length, N decodes per input.
"""

import dataclasses
import functools
import json
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import seqio
from t5x import utils

from specdec_t5x import environment, tuning
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.core.describe import describe
from specdec_t5x.core.knobs import is_whole
from specdec_t5x.decoding.decoders import Decoder
from specdec_t5x.hugging_face.export import all_or_nothing
from specdec_t5x.native import library
from specdec_t5x.t5x_bridge import preflight
from specdec_t5x.t5x_bridge.examples import number_of
from specdec_t5x.t5x_bridge.writer import what_decodes

INDEX = "export.json"
PARAMS = "params.npz"
VOCABULARY = "vocabulary.model"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
portable = functools.partial(
  library.left_out,
  "exported programs run on other machines, but kernels are compiled on the running "
  "machine",
)
_LEFT_OUT = (
  "kernels for CPUs are compiled on the running machine, so products are XLA's"
)


def check_export(
  model: Any, output_dir: str, platforms: Sequence[str], batch_sizes: Sequence[int]
) -> None:
  """Raises a ValueError if `export` does not support these arguments."""
  folder = pathlib.Path(output_dir)
  if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
    raise ValueError(
      f"--output={output_dir} already exists, and is not an empty folder. Give a new "
      "folder."
    )
  if not platforms or set(platforms) - set(PLATFORMS):
    raise ValueError(f"--platforms must be names among {PLATFORMS}, got {platforms!r}.")
  if not batch_sizes or not all(is_whole(size, 1) for size in batch_sizes):
    raise ValueError(
      "--batch_sizes must be whole numbers of at least 1, as 1,16, got "
      f"{batch_sizes!r}."
    )
  check_decoder(model.decoder)


def check_decoder(decoder: Decoder) -> None:
  """Raises a ValueError if the decoder's program can't run on another machine."""
  if decoder.drafter is not None:
    decoder.drafter.check_export()
  if decoder.observer:
    raise ValueError(
      "A draft that learns can't be exported, because the program returns only "
      "outputs. Leave out configs/contrib/online.gin, and export the learned draft."
    )
  if tuning.needs_times(decoder):
    raise ValueError(
      f"The policy {type(decoder.policy).__name__} uses measured times of this device, "
      "but the program runs on other devices. Set GAMMA, as --gin.GAMMA=5, and leave "
      "out GAMMA_POLICY or set GAMMA_POLICY to 'fixed'; or give "
      "configs/policies/auto.gin the SECONDS of the decoding device."
    )


def follow_generation(model: Any, restore_cfg: utils.RestoreCheckpointConfig) -> None:
  """Sets the end tokens from the target's folder, and prints settings not applied.

  Raises:
    ValueError: if there is no checkpoint, or the folder's settings change the target's
      distribution.
  """
  preflight.follow_generation(model, Checkpoint.open(restore_cfg.path))


def restored(
  model: Any,
  lengths: Mapping[str, int],
  restore_cfg: utils.RestoreCheckpointConfig,
  partitioner: Any,
) -> tuple[dict[str, jax.Array], int]:
  """Returns the parameters of all networks by path, and the target's step."""
  initializer = utils.TrainStateInitializer(
    optimizer_def=None,
    init_fn=model.get_initial_variables,
    input_shapes={
      "encoder_input_tokens": (1, lengths["inputs"]),
      "decoder_input_tokens": (1, lengths["targets"]),
    },
    partitioner=partitioner,
  )
  state, _ = utils.create_checkpoint_manager_and_restore(
    initializer, partitioner, restore_cfg, restore_cfg.path, None
  )
  params = flax.core.unfreeze(state.params)
  return flax.traverse_util.flatten_dict(params, sep="/"), int(state.step)


def lowered(
  model: Any,
  params: Mapping[str, jax.Array],
  lengths: Mapping[str, int],
  platforms: Sequence[str],
  batch_size: int,
) -> jax.export.Exported:
  """Returns the program for batches of one size.

  The program takes the parameters by path, inputs int32 [B, E] and keys uint32 [B, 2],
  the data of one key per input. The program returns the same outputs as the model's
  `predict_batch_with_aux`.
  """

  def decode(params, inputs, keys):
    params = flax.traverse_util.unflatten_dict(params, sep="/")
    keys = jax.random.wrap_key_data(keys)
    return model.decode(params, inputs, keys, lengths["targets"])[0]

  abstract_params = {
    name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in params.items()
  }
  inputs = jax.ShapeDtypeStruct((batch_size, lengths["inputs"]), jnp.int32)
  keys = jax.ShapeDtypeStruct((batch_size, 2), jnp.uint32)
  lower = jax.export.export(jax.jit(decode), platforms=platforms)
  return lower(abstract_params, inputs, keys)


def export(
  model: Any,
  params: Mapping[str, jax.Array],
  lengths: Mapping[str, int],
  task: str,
  output_dir: str,
  platforms: Sequence[str],
  batch_sizes: Sequence[int],
  **about: Any,
) -> None:
  """Writes a folder of programs, parameters, the vocabulary and an index.

  Args:
    model: a model of this project.
    params: parameters of the model's networks, by path.
    lengths: lengths of inputs and outputs, in tokens.
    task: the task's name, which enters the keys of `t5x.infer`'s samples.
    output_dir: a folder that does not exist, or an empty folder.
    platforms: some of `PLATFORMS`.
    batch_sizes: batch sizes; each size gets a program.
    **about: further entries of the index.

  Raises:
    ValueError: if the decode can't be exported, or the folder is not empty.
  """
  check_export(model, output_dir, platforms, batch_sizes)
  new_folder = all_or_nothing(pathlib.Path(output_dir))
  with new_folder as folder, portable(), jax.enable_x64(False):
    programs = {}
    for size in batch_sizes:
      program = lowered(model, params, lengths, platforms, size)
      programs[size] = f"decode_{size}.jax_export"
      (folder / programs[size]).write_bytes(program.serialize())
    np.savez(folder / PARAMS, **{name: _plain(x) for name, x in params.items()})
    decoder = model.decoder
    document = {
      "programs": programs,
      "platforms": list(platforms),
      "calling_convention_version": program.calling_convention_version,
      "arguments": {
        "params": {name: str(x.dtype) for name, x in params.items()},
        "inputs": ["batch", lengths["inputs"]],
        "keys": ["batch", 2],
      },
      "vocabulary": _vocabulary(model.output_vocabulary, folder),
      "eos_id": model.end_ids[0],
      "end_ids": list(model.end_ids),
      "max_length": lengths["targets"],
      "guarantee": decoder.guarantee.name,
      "guarantee_means": decoder.guarantee.value,
      "target": what_decodes(decoder.target),
      "decoder": describe(decoder),
      "sampling": describe(model.sampling),
      "seed": model.seed,
      "task": number_of(task),
      "left_out": _LEFT_OUT,
      **about,
      **environment.of_run(),
    }
    (folder / INDEX).write_text(json.dumps(document, indent=2) + "\n")


def inference_function(
  create: Callable[..., Callable[..., Any]], *, model: Any, **of_t5x: Any
) -> Callable[..., Any]:
  """Returns the function that upstream T5X's `export_lib.save` turns into a SavedModel.

  Users bind this function to `create_inference_function_fn`. The function's outputs are
  tokens and scores, as T5X's postprocessor expects. Seeds are the decoder_param
  decode_rng.

  Args:
    create: T5X's `create_inference_function`.
    model: a model of this project.
    **of_t5x: T5X's other arguments.

  Raises:
    ValueError: if the decode can't be exported.
  """
  check_decoder(model.decoder)
  run = create(model=_Served(model), **of_t5x)

  def portable_run(params, batch):
    with portable():
      return run(params, batch)

  return portable_run


@dataclasses.dataclass(frozen=True)
class _Served:
  """A model that returns tokens and scores only."""

  model: Any

  def predict_batch_with_aux(self, *args, **kwargs):
    tokens, aux = self.model.predict_batch_with_aux(*args, **kwargs)
    return tokens, aux["scores"]


def _plain(array: jax.Array) -> np.ndarray:
  """Returns a NumPy array; dtypes unknown to NumPy, such as bfloat16, become uints."""
  array = np.asarray(array)
  is_extension = array.dtype.kind == "V"
  return array.view(f"u{array.dtype.itemsize}") if is_extension else array


def _vocabulary(
  vocabulary: seqio.Vocabulary, folder: pathlib.Path
) -> dict[str, Any] | None:
  """Copies a vocabulary's SentencePiece model, if there is a model, or returns None."""
  path = getattr(vocabulary, "sentencepiece_model_file", None)
  if path is None:
    return None
  shutil.copyfile(path, folder / VOCABULARY)
  return {"file": VOCABULARY, "extra_ids": vocabulary.extra_ids}
