"""A decode as files that run where JAX and NumPy alone are installed.

`jax.export` lowers the whole decode, its loop and its random numbers, to StableHLO for
all platforms that are named; none of them need be there.

Shapes: B batch, E input length, T output length, N decodes an input.
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

from specdec_t5x import tuning
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.describe import describe
from specdec_t5x.decoding.decoders import Decoder
from specdec_t5x.hugging_face.export import all_or_nothing
from specdec_t5x.native import library
from specdec_t5x.t5x_bridge import preflight
from specdec_t5x.t5x_bridge.examples import number_of
from specdec_t5x.t5x_bridge.writer import environment, what_decodes

INDEX, PARAMS, VOCABULARY = "export.json", "params.npz", "vocabulary.model"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
portable = functools.partial(
  library.left_out,
  "exported programs run elsewhere, and kernels are compiled where they run",
)
_LEFT_OUT = "kernels for CPUs, which are compiled where they run: products are XLA's"


def check_export(
  model: Any, output_dir: str, platforms: Sequence[str], batch_sizes: Sequence[int]
) -> None:
  """Raises a ValueError where `export` of these can't be."""
  folder = pathlib.Path(output_dir)
  if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
    raise ValueError(
      f"--output={output_dir} is there, and is no empty folder. Name a new one."
    )
  if not platforms or set(platforms) - set(PLATFORMS):
    raise ValueError(f"--platforms must be some of {PLATFORMS}, got {platforms!r}.")
  if not batch_sizes or not all(is_whole(size, 1) for size in batch_sizes):
    raise ValueError(
      "--batch_sizes must be whole numbers of at least 1, as 1,16, got "
      f"{batch_sizes!r}."
    )
  check_decoder(model.decoder)


def check_decoder(decoder: Decoder) -> None:
  """Raises a ValueError where the decoder's program can't run elsewhere."""
  if decoder.drafter is not None:
    decoder.drafter.check_export()
  if decoder.observer:
    raise ValueError(
      "A draft that learns can't be exported, nor places be kept: nothing reads what "
      "the program keeps. Leave out configs/contrib/online.gin, export the draft that "
      "it made; leave out configs/runs/places.gin."
    )
  if tuning.needs_times(decoder):
    raise ValueError(
      f"The policy {type(decoder.policy).__name__} goes by times of this device, and "
      "the program runs on others. Set GAMMA, as --gin.GAMMA=5, and leave out "
      "GAMMA_POLICY or set it to 'fixed'; or give configs/policies/auto.gin the "
      "SECONDS of the device that decodes."
    )


def follow_generation(model: Any, restore_cfg: utils.RestoreCheckpointConfig) -> None:
  """Ends outputs as the target's folder says, and prints what is not applied.

  Raises:
    ValueError: where there is no checkpoint, or the folder asks for another
      distribution than the target's.
  """
  preflight.follow_generation(model, Checkpoint.open(restore_cfg.path))


def restored(
  model: Any,
  lengths: Mapping[str, int],
  restore_cfg: utils.RestoreCheckpointConfig,
  partitioner: Any,
) -> tuple[dict[str, jax.Array], int]:
  """Returns the parameters of all networks by their paths, and the target's step."""
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

  It takes params by their paths, inputs int32 [B, E] and keys uint32 [B, 2], the data
  of a key an input, and returns what the model's `predict_batch_with_aux` does.
  """

  def decode(params, inputs, keys):
    params = flax.traverse_util.unflatten_dict(params, sep="/")
    keys = jax.random.wrap_key_data(keys)
    return model.decode(params, inputs, keys, lengths["targets"])[0]

  shape = lambda *sizes: jax.ShapeDtypeStruct((batch_size, *sizes), jnp.int32)
  arguments = (
    {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in params.items()},
    shape(lengths["inputs"]),
    shape(2).update(dtype=jnp.uint32),
  )
  return jax.export.export(jax.jit(decode), platforms=platforms)(*arguments)


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
  """Writes a folder of programs, parameters, the vocabulary and what they are.

  Args:
    model: one of this project's.
    params: of its networks, by their paths.
    lengths: of inputs and outputs, in tokens.
    task: its name is part of the keys that `t5x.infer` draws by.
    output_dir: a folder that is not there, or empty.
    platforms: some of `PLATFORMS`.
    batch_sizes: a program each.
    **about: what else is to be on record.

  Raises:
    ValueError: where the decode can't be exported, or the folder is not empty.
  """
  check_export(model, output_dir, platforms, batch_sizes)
  new_folder = all_or_nothing(pathlib.Path(output_dir))
  with new_folder as folder, portable(), jax.enable_x64(False):
    programs = {}
    for size in batch_sizes:
      program = lowered(model, params, lengths, platforms, size)
      programs[size] = name = f"decode_{size}.jax_export"
      (folder / name).write_bytes(program.serialize())
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
      **environment(),
    }
    (folder / INDEX).write_text(json.dumps(document, indent=2) + "\n")


def inference_function(
  create: Callable[..., Callable[..., Any]], *, model: Any, **of_t5x: Any
) -> Callable[..., Any]:
  """Returns what upstream T5X's `export_lib.save` makes a SavedModel of.

  As `create_inference_function_fn`. Outputs are tokens and scores, which its
  postprocessor takes; seeds are the decoder_param decode_rng.

  Args:
    create: T5X's `create_inference_function`.
    model: one of this project's.
    **of_t5x: what T5X passes besides.

  Raises:
    ValueError: where the decode can't be exported.
  """
  check_decoder(model.decoder)
  run = create(model=_Served(model), **of_t5x)

  def portable_run(params, batch):
    with portable():
      return run(params, batch)

  return portable_run


@dataclasses.dataclass(frozen=True)
class _Served:
  """A model of which tokens and scores are wanted."""

  model: Any

  def predict_batch_with_aux(self, *args, **kwargs):
    tokens, aux = self.model.predict_batch_with_aux(*args, **kwargs)
    return tokens, aux["scores"]


def _plain(array: jax.Array) -> np.ndarray:
  """Returns an array as NumPy alone has it: of bfloat16 and the like, their bits."""
  array = np.asarray(array)
  is_own = array.dtype.kind == "V"
  return array.view(f"u{array.dtype.itemsize}") if is_own else array


def _vocabulary(
  vocabulary: seqio.Vocabulary, folder: pathlib.Path
) -> dict[str, Any] | None:
  """Copies the SentencePiece model; None where the vocabulary has none."""
  path = getattr(vocabulary, "sentencepiece_model_file", None)
  if path is None:
    return None
  shutil.copyfile(path, folder / VOCABULARY)
  return {"file": VOCABULARY, "extra_ids": vocabulary.extra_ids}
