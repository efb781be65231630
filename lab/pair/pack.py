"""Puts the trained pair into the package, with the test set and a model card.

Parameters are rounded to bfloat16. The card has measurements of the rounded parameters.
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

from benchmarks import environment
from lab.pair import texts
from lab.pair.recipe import Part
from specdec_t5x import api
from specdec_t5x.core.theory import ratio
from specdec_t5x.data import metrics
from specdec_t5x.demo import embedded
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.t5x_bridge.restore import T5XParameters

_MAX_LENGTH = 80


def pack(target: Part, draft: Part) -> None:
  """Packs the networks, the vocabulary and the test set, then the card."""
  folder = embedded.FOLDER
  parts = {"target": target, "draft": draft}
  folder.mkdir(exist_ok=True)
  texts.write(str(folder), "test", texts.SIZES["test"])
  shutil.copyfile(texts.VOCABULARY, embedded.vocabulary())
  for name, part in parts.items():
    shutil.rmtree(folder / name, ignore_errors=True)
    network = api.load_model(part.checkpoint).network
    trained = T5XParameters(network, str(pathlib.Path(part.checkpoint).parent))
    rounded = jax.tree.map(
      lambda x: x.astype(jnp.bfloat16), trained.restore(part.steps)
    )
    T5XParameters(network, str(folder / name)).save(part.steps, rounded)
  card = json.dumps(make_card(parts), indent=1)
  (folder / "card.json").write_text(card + "\n")
  print(card)


def make_card(parts: dict[str, Part]) -> dict[str, Any]:
  """Decodes the test set; returns the card of the packed "target" and "draft"."""
  models = {name: api.load_model(embedded.checkpoint(name)) for name in parts}
  plain = _decode(models["target"], None, 0.0)
  alone = _decode(models["draft"], None, 0.0)
  drafted = [_decode(models["target"], models["draft"], t) for t in (0.0, 1.0)]
  networks = {}
  for name, part in parts.items():
    networks[name] = {
      "parameters": sum(x.size for x in jax.tree.leaves(models[name].params)),
      "gin_file": part.gin_file,
      "steps": part.steps,
      "seed": 0,
      "bleu": _bleu(plain if name == "target" else alone),
      "sha256": digest(embedded.FOLDER / name),
    }
  alphas = [_alpha(outputs) for outputs in drafted]
  tokens = sum(len(output.tokens) for output in drafted[0])
  return {
    "about": "English-German sentences that a grammar made; no result on real data",
    "license": "Apache-2.0",
    "examples": texts.SIZES,
    "data_seed": 0,
    "dtype": "bfloat16",
    **networks,
    "gamma": DEFAULT_GAMMA,
    "alpha": {"T=0": alphas[0], "T=1": alphas[1]},
    "tokens_per_target_call": tokens / sum(x.target_calls for x in drafted[0]),
    "code": environment.code(environment.ROOT),
    "made": datetime.date.today().isoformat(),
  }


def digest(folder: pathlib.Path) -> str:
  """Returns the SHA-256 of the names and contents of all files in a folder."""
  sha256 = hashlib.sha256()
  for path in sorted(path for path in folder.rglob("*") if path.is_file()):
    sha256.update(f"{path.relative_to(folder)}\0".encode())
    sha256.update(path.read_bytes())
  return sha256.hexdigest()


def _decode(target, draft, temperature: float) -> list[api.Generation]:
  inputs, _ = embedded.examples()
  return api.generate(
    inputs,
    target,
    draft,
    embedded.vocabulary(),
    gamma=draft and DEFAULT_GAMMA,
    max_length=_MAX_LENGTH,
    sampling=api.Sampling(temperature),
  )


def _bleu(outputs: Sequence[api.Generation]) -> float:
  _, references = embedded.examples()
  return metrics.bleu(references, [output.text for output in outputs])["bleu"]


def _alpha(outputs: Sequence[api.Generation]) -> dict[str, float]:
  accepted = [output.accepted for output in outputs]
  return dataclasses.asdict(ratio(accepted, [output.tried for output in outputs]))
