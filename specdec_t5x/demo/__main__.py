"""`python -m specdec_t5x.demo`: decodes a test set with and without speculation.

Translates the sentences of the pair in the package at batch size 1, plainly and with
drafts in turn, and compares times and outputs. The sentences are synthetic.
"""

import argparse
import os
import statistics
import sys
import time

from specdec_t5x.demo import embedded
from specdec_t5x.platforms import check_platform
from specdec_t5x.quiet import import_quietly

_ROUNDS = 3
_MAX_LENGTH = 80
_TEMPERATURES = (0.0, 1.0)
_NEXT = """
To try next, with the Python of .venv:
  python scripts/show_trace.py                  # one decode, call by call
  python -m t5x.infer --gin_file=configs/spec_ende.gin
  python -m t5x.infer --gin_file=configs/spec_ende.gin --gin.DRAFTER="'quantized'" \\
    --gin.INFER_OUTPUT_DIR="'runs/quantized'\""""


def compare(count: int) -> list[str]:
  """Decodes the first examples of the test set; returns the lines of a table."""
  import_quietly("tensorflow")  # Importing metrics would import TensorFlow.
  import specdec_t5x
  from specdec_t5x.data import metrics

  texts, references = embedded.examples(count)
  target = specdec_t5x.load_model(embedded.target())
  drafts = {
    "the draft": specdec_t5x.load_model(embedded.draft()),
    "target in 8 bits": "quantized",
  }

  def decode(draft, temperature):
    return specdec_t5x.generate(
      texts,
      target,
      draft,
      embedded.vocabulary(),
      gamma=draft and embedded.card()["gamma"],
      policy=draft and "fixed",
      sampling=specdec_t5x.Sampling(temperature),
      max_length=_MAX_LENGTH,
      batch_size=1,
    )

  lines = [_line("drafts by", "T", "tokens/call", "speed-up", "same outputs", "BLEU")]
  for temperature in _TEMPERATURES:
    ways = {"no draft": None, **drafts}
    outputs = {}
    seconds = {name: [] for name in ways}
    for turn in range(_ROUNDS + 1):
      for name, draft in ways.items():
        begin = time.perf_counter()
        outputs[name] = decode(draft, temperature)
        if turn:  # The first round compiles.
          tokens = sum(len(output.tokens) for output in outputs[name])
          seconds[name].append((time.perf_counter() - begin) / tokens)
    for name, found in outputs.items():
      calls = sum(output.target_calls for output in found)
      times = zip(seconds["no draft"], seconds[name], strict=True)
      pairs = zip(outputs["no draft"], found, strict=True)
      same = sum(plain.tokens == ours.tokens for plain, ours in pairs)
      lines.append(
        _line(
          name,
          f"{temperature:g}",
          f"{sum(len(output.tokens) for output in found) / calls:.2f}",
          f"{statistics.median(plain / ours for plain, ours in times):.2f}",
          "sampled" if temperature else f"{same} of {count}",
          f"{metrics.bleu(references, [output.text for output in found])['bleu']:.1f}",
        )
      )
  return lines


def _line(*cells: str) -> str:
  return "  ".join(cell.ljust(16 if i == 0 else 12) for i, cell in enumerate(cells))


def main() -> None:
  """Parses the command line and prints the comparison."""
  size = len(embedded.examples()[0])
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x.demo", description=__doc__
  )
  parser.add_argument(
    "--inputs", type=int, default=100, help=f"number of sentences, 1 to {size} (100)"
  )
  count = parser.parse_args().inputs
  if not 1 <= count <= size:
    parser.error(f"--inputs must be 1 to {size}, got {count}.")
  # A second demo reuses compiled programs.
  compiled = os.path.abspath(os.path.join("runs", "demo", "compiled"))
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", compiled)
  try:
    check_platform()
    print(f"Decoding {count} sentences in turn, for a minute or two.", flush=True)
    lines = compare(count)
  except (ValueError, FloatingPointError) as error:
    sys.exit(f"specdec_t5x.demo: {error}")
  print("\n".join([*lines, _NEXT]))


if __name__ == "__main__":
  main()
