"""Packs the pair that `make demo-train` trained into the package, with a model card.

  python -m specdec_t5x.demo.embed

Run the command in the repository's root. Parameters are rounded to bfloat16, and all
measurements of the card use the rounded parameters.
"""

import dataclasses
import datetime
import hashlib
import json
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from specdec_t5x import api, environment
from specdec_t5x.analysis.acceptance import ratio
from specdec_t5x.checkpoints.parameters import T5XParameters
from specdec_t5x.demo import embedded, held_out, recipe, tasks
from specdec_t5x.demo.corpora import translation
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA

_PAIR = recipe.ENDE
_TEXTS = tasks.ENDE_SIZES["test"]


def main() -> None:
  """Packs the target, the draft, the vocabulary and the test set, then the card."""
  folder = embedded.FOLDER
  parts = {"target": _PAIR.target, "draft": _PAIR.drafts[0]}
  folder.mkdir(exist_ok=True)
  _write_test_set(folder)
  for name, part in parts.items():
    shutil.rmtree(folder / name, ignore_errors=True)
    _pack(part.checkpoint, folder / name)
  card = make_card(parts)
  (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")
  print(json.dumps(card, indent=1))


def make_card(parts: dict[str, recipe.Part]) -> dict[str, Any]:
  """Decodes the test set; returns the card of the packed "target" and "draft"."""
  packed = {"target": embedded.target(), "draft": embedded.draft()}
  models = {name: api.load_model(path) for name, path in packed.items()}
  plain = _decode(models["target"], None, 0.0)
  alone = _decode(models["draft"], None, 0.0)
  drafted = [_decode(models["target"], models["draft"], t) for t in (0.0, 1.0)]
  networks = {}
  for name, part in parts.items():
    networks[name] = {
      "parameters": sum(x.size for x in jax.tree.leaves(models[name].params)),
      "gin_file": part.gin_file,
      "steps": int(pathlib.Path(packed[name]).name.removeprefix("checkpoint_")),
      "seed": 0,
      "bleu": _bleu(plain if name == "target" else alone),
      "sha256": digest(embedded.FOLDER / name),
    }
  alphas = [_alpha(outputs) for outputs in drafted]
  tokens = sum(len(output.tokens) for output in drafted[0])
  return {
    "about": "English-German sentences that a grammar made; no result on real data",
    "license": "Apache-2.0",
    "task": "demo_synthetic_ende",
    "examples": tasks.ENDE_SIZES,
    "data_seed": 0,
    "dtype": "bfloat16",
    **networks,
    "gamma": DEFAULT_GAMMA,
    "alpha": {"T=0": alphas[0], "T=1": alphas[1]},
    "tokens_per_target_call": tokens / sum(x.target_calls for x in drafted[0]),
    "code": environment.code(pathlib.Path(api.__file__).parent),
    "made": datetime.date.today().isoformat(),
  }


def digest(folder: pathlib.Path) -> str:
  """Returns the SHA-256 of the names and contents of all files in a folder."""
  sha256 = hashlib.sha256()
  for path in sorted(path for path in folder.rglob("*") if path.is_file()):
    sha256.update(f"{path.relative_to(folder)}\0".encode())
    sha256.update(path.read_bytes())
  return sha256.hexdigest()


def _pack(checkpoint: str, folder: pathlib.Path) -> None:
  """Writes a checkpoint into a folder, in bfloat16."""
  network = api.load_model(checkpoint).network
  step = int(pathlib.Path(checkpoint).name.removeprefix("checkpoint_"))
  params = T5XParameters(network, str(pathlib.Path(checkpoint).parent)).restore(step)
  rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  T5XParameters(network, str(folder)).save(step, rounded)


def _write_test_set(folder: pathlib.Path) -> None:
  rows = translation.rows("test", _TEXTS)
  for side, texts in zip(("en", "de"), zip(*rows, strict=True), strict=True):
    (folder / f"test.{side}").write_text("\n".join(texts) + "\n", "utf-8")


def _decode(target, draft, temperature: float) -> list[api.Generation]:
  texts = [text for text, _ in held_out.held_out_texts("ende", _TEXTS)]
  return api.generate(
    texts,
    target,
    draft,
    embedded.vocabulary(),
    gamma=draft and DEFAULT_GAMMA,
    max_length=_PAIR.max_output,
    sampling=api.Sampling(temperature),
  )


def _bleu(outputs: Sequence[api.Generation]) -> float:
  references = [text for _, text in held_out.held_out_texts("ende", _TEXTS)]
  return held_out.METRICS["ende"](references, [output.text for output in outputs])


def _alpha(outputs: Sequence[api.Generation]) -> dict[str, float]:
  accepted = [output.accepted for output in outputs]
  return dataclasses.asdict(ratio(accepted, [output.tried for output in outputs]))


if __name__ == "__main__":
  main()
