"""Our speculation beside Hugging Face's and upstream T5X's decoding, in one process.

  python scripts/bench_peers.py --target DIR --draft DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --output DIR
  python scripts/bench_peers.py --size base --draft-size small --alpha 0.8 \
    --num-inputs 10 --max-length 64 --output DIR

The first way takes real checkpoints. The second takes random weights of T5 1.1's sizes
and a draft that does its work and then says the target's token with probability alpha.
All programs have the same weights, inputs and gamma, and decode greedily in float32.
Writes peers.json and peers.md. Leave all cores to it: torch's threads wait for each
other, so one busy core slows it down far more than it slows XLA down.

Hugging Face needs the extra `peers`; upstream T5X, in place of t5x_runtime,
requirements/t5x-upstream.txt.
"""

import argparse
import json
import sys
from collections.abc import Sequence

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

import numpy as np
import sentencepiece
from etils import epath

from specdec_t5x import api
from specdec_t5x.bench.peers import table
from specdec_t5x.bench.peers.comparison import compare
from specdec_t5x.bench.peers.programs import Workload
from specdec_t5x.network import sizes
from specdec_t5x.network.transformer import Transformer

FILES = ("target", "draft", "vocabulary", "inputs")
NO_END = -1


def main(argv: Sequence[str] | None = None) -> int:
  """Measures what the flags say, prints the table and writes it.

  Args:
    argv: the flags; the process's own where None.

  Returns:
    The exit status: 0, or 1 after printing what is wrong with the input.
  """
  args = _parser().parse_args(argv)
  try:
    work = _random_workload(args) if args.size else _checkpoint_workload(args)
    found = compare(work)
    document = table.document(work, found, _settings(args))
    text = table.markdown(found, document)
    folder = epath.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.json").write_text(json.dumps(document, indent=2) + "\n")
    (folder / "peers.md").write_text(text)
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  print(text, end="")
  return 0


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--target", metavar="DIR", help="checkpoint, in T5X's format or Orbax's")
  add("--draft", metavar="DIR", help="checkpoint")
  add("--vocabulary", metavar="FILE", help="the SentencePiece model of both")
  add("--inputs", metavar="FILE", help="an input a line")
  add("--prefix", default="", help="before each line")
  add("--size", choices=sizes.SIZES, help="of a target with random weights")
  add("--draft-size", choices=sizes.SIZES, default="small", help="(%(default)s)")
  add("--alpha", type=float, default=0.8, help="with --size (%(default)s)")
  add("--input-length", type=int, default=64, help="with --size (%(default)s)")
  add("--gamma", type=int, default=7, help="tokens drafted a call (%(default)s)")
  add("--num-inputs", type=int, default=100, help="the first so many (%(default)s)")
  add("--max-length", type=int, default=128, help="room for an output (%(default)s)")
  add("--seed", type=int, default=0, help="with --size: of weights, inputs and oracle")
  add("--output", metavar="DIR", required=True, help="for peers.json and peers.md")
  return parser


def _checkpoint_workload(args: argparse.Namespace) -> Workload:
  for flag in FILES:
    path = getattr(args, flag)
    if path is None or not epath.Path(path).exists():
      raise ValueError(
        f"--{flag}: expected what exists, got {path!r}. Give "
        f"{', '.join(f'--{name}' for name in FILES)}, or --size for random weights."
      )
  lines = epath.Path(args.inputs).read_text().splitlines()[: _at_least_one(args)]
  if not lines:
    raise ValueError(f"--inputs: {args.inputs!r} has no line. Give an input a line.")
  processor = sentencepiece.SentencePieceProcessor(model_file=args.vocabulary)
  eos_id = processor.eos_id()
  ids = [[*processor.encode(args.prefix + line), eos_id] for line in lines]
  return Workload(
    target=api.load_model(args.target),
    draft=api.load_model(args.draft),
    inputs=[np.asarray(row) for _, row, _ in api.padded_batches(ids, batch_size=1)],
    gamma=args.gamma,
    max_length=args.max_length,
    eos_id=eos_id,
  )


def _random_workload(args: argparse.Namespace) -> Workload:
  if not 0 <= args.alpha <= 1:
    raise ValueError(f"--alpha: expected a probability, got {args.alpha}.")

  def model(size, seed):
    network = Transformer(sizes.t5_1_1(size))
    return api.Model(network, sizes.random_params(network, seed))

  # Not the padding token, nor rows of padding beyond the vocabulary.
  shape = (_at_least_one(args), 1, args.input_length)
  inputs = np.random.default_rng(args.seed).integers(1, 32_000, shape, np.int32)
  return Workload(
    target=model(args.size, args.seed),
    draft=model(args.draft_size, args.seed + 1),
    inputs=list(inputs),
    gamma=args.gamma,
    max_length=args.max_length,
    eos_id=NO_END,
    alpha=args.alpha,
    seed=args.seed,
  )


def _at_least_one(args: argparse.Namespace) -> int:
  for flag in ("num_inputs", "max_length", "input_length"):
    if getattr(args, flag) < 1:
      name = flag.replace("_", "-")
      raise ValueError(f"--{name}: expected at least 1, got {getattr(args, flag)}.")
  return args.num_inputs


def _settings(args: argparse.Namespace) -> dict[str, str | int]:
  """Returns what says where models and inputs came from, without folders."""
  if args.size:
    return {name: getattr(args, name) for name in ("size", "draft_size", "seed")}
  names = {name: epath.Path(getattr(args, name)).name for name in FILES}
  return {**names, "prefix": args.prefix}


if __name__ == "__main__":
  sys.exit(main())
