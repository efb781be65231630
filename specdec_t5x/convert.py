"""`python -m specdec_t5x.convert`: Hugging Face's folders to checkpoints, and back.

  python -m specdec_t5x.convert --from flan-t5-base --to runs/flan_base
  python -m t5x.infer --gin_file=configs/spec_ende.gin \
    --gin_file=runs/flan_base/target.gin --gin_file=runs/flan_small/draft.gin ...

writes checkpoint_0, the files of the vocabulary, and the network's sizes and paths as
target.gin and draft.gin, to be added to a run. With --to-hugging-face the other way: a
folder that transformers' from_pretrained reads.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from specdec_t5x import console
from specdec_t5x.quiet import import_quietly

_FORMATS = ("t5x", "orbax")
# Fields of a configuration that other gin files bind.
_RUN_FIELDS = (
  *("dtype", "dropout_rate", "float32_attention_logits"),
  *("sharding", "products", "weights", "head"),
)


def main(argv: Sequence[str] | None = None) -> int:
  """Converts the folder that the flags name, and returns the exit status."""
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x.convert",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--from", dest="source", metavar="DIR", required=True, help="folder to convert")
  add("--to", metavar="DIR", required=True, help="a new folder")
  add(
    "--to-hugging-face",
    action="store_true",
    help="convert a T5X or Orbax checkpoint to a Hugging Face folder",
  )
  add(
    "--format",
    choices=_FORMATS,
    default="t5x",
    help="format of the new checkpoint (%(default)s)",
  )
  add("--vocabulary", metavar="FILE", help="SentencePiece model, for --to-hugging-face")
  add(
    "--extra-ids",
    type=int,
    default=0,
    help="number of sentinels after the vocabulary (%(default)s)",
  )
  args = parser.parse_args(argv)
  import_quietly("tensorflow")
  try:
    convert = _to_hugging_face if args.to_hugging_face else _to_t5x
    written = convert(args)
  except (ValueError, OSError) as error:
    console.say(f"error: {error}")
    return 1
  console.announce(f"Written: {written}")
  return 0


def _to_hugging_face(args) -> str:
  from specdec_t5x.checkpoints.checkpoint import Checkpoint
  from specdec_t5x.hugging_face import export

  checkpoint = Checkpoint.open(args.source)
  network = checkpoint.network()
  params = checkpoint.load(network)
  export.write(args.to, network.config, params, args.vocabulary, args.extra_ids)
  return args.to


def _to_t5x(args) -> str:
  """Checks the flags, then writes a checkpoint and gin files."""
  from specdec_t5x.checkpoints.checkpoint import HuggingFace
  from specdec_t5x.checkpoints.parameters import T5XParameters
  from specdec_t5x.data.hints import how_to_make
  from specdec_t5x.hugging_face import generation
  from specdec_t5x.hugging_face.export import all_or_nothing
  from specdec_t5x.hugging_face.folder import is_folder, lacking

  if not is_folder(args.source):
    raise ValueError(
      f"{args.source} is not a Hugging Face folder: config.json is missing. Give a "
      "Hugging Face folder, or add --to-hugging-face to convert in the other "
      f"direction.{lacking(args.source)}{how_to_make(args.source)}"
    )
  to = pathlib.Path(args.to).absolute()
  vocabulary_files, vocabulary_macros = _vocabulary(args.source, to)
  made = ("checkpoint_0", "target.gin", "draft.gin", generation.GENERATION)
  for name in (*made, *vocabulary_files):
    if (to / name).exists():
      raise ValueError(f"{args.to} already holds a {name}. Give another folder.")
  checkpoint = HuggingFace(args.source)
  network = checkpoint.network()
  with all_or_nothing(to) as folder:
    writer = T5XParameters(network, str(folder), args.format)
    params = checkpoint.folder.unread() if writer.streams else checkpoint.load(network)
    writer.save(0, params)
    for name, path in vocabulary_files.items():
      shutil.copyfile(path, folder / name)
    # config.json may name the end tokens, too, but is not copied.
    if checkpoint.generation.eos_ids:
      ends = {"eos_token_id": list(checkpoint.generation.eos_ids)}
      (folder / generation.GENERATION).write_text(json.dumps(ends) + "\n")
    for name, extra_macros in (("target", vocabulary_macros), ("draft", {})):
      macros = {f"{name.upper()}_CHECKPOINT_PATH": str(to / "checkpoint_0")}
      macros |= extra_macros
      (folder / f"{name}.gin").write_text(_gin(name, network.config, macros))
  return args.to


def _vocabulary(source: str, to: pathlib.Path) -> tuple[dict[str, str], dict[str, Any]]:
  """Returns the files of a folder's vocabulary, and the vocabulary's gin macros."""
  from specdec_t5x.vocabularies import folder

  if not folder.is_in(source):
    return {}, {}
  # `open_folder` raises an error if a file can't be read.
  folder.open_folder(source)
  files = {name: os.path.join(source, name) for name in folder.FILES}
  files = {name: path for name, path in files.items() if os.path.isfile(path)}
  extra_ids = folder.sentinel_count(source)
  return files, {"VOCABULARY_PATH": str(to), "VOCABULARY_EXTRA_IDS": extra_ids}


def _gin(name, config, macros) -> str:
  lines = [f"{macro} = {value!r}" for macro, value in macros.items()]
  module = "gemma" if config.is_gemma else "config"
  wiring = ["include 'configs/runs/gemma.gin'", ""] if config.is_gemma else []
  return "\n".join(
    (
      "from __gin__ import dynamic_registration",
      "",
      f"from specdec_t5x.network import {module}",
      "",
      *wiring,
      *lines,
      *_sizes(name, config, f"{module}.{type(config).__name__}"),
      "",
    )
  )


def _sizes(scope, config, kind) -> Iterator[str]:
  """Yields the bindings of a configuration and of a nested encoder configuration."""
  encoder = f"{scope}_encoder"
  yield from ("", f"{scope}/{kind}:")
  for field in (x.name for x in dataclasses.fields(config)):
    value = getattr(config, field)
    if field == "encoder" and value:
      yield f"  encoder = @{encoder}/{kind}()"
    elif field not in _RUN_FIELDS:
      yield f"  {field} = {value!r}"
  if getattr(config, "encoder", None):
    yield from _sizes(encoder, config.encoder, kind)


if __name__ == "__main__":
  sys.exit(main())
