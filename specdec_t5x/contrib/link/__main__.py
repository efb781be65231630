r"""`python -m specdec_t5x.contrib.link`: drafts for a target in another process.

  python -m specdec_t5x.contrib.link --draft DIR --address localhost:50051

DIR is a draft model's checkpoint, in T5X's format or Orbax's, or a table of n-grams.
The process serves one target at a time. Whoever reaches the address can have drafts, so
listen at localhost, and reach other machines through a tunnel. The target's side is
configs/contrib/link.gin, or `contrib.link.drafter.Link(contrib.link.client.Remote(
address))`. Ctrl+C ends the process.
"""

import argparse
import sys
from collections.abc import Sequence

from specdec_t5x import console
from specdec_t5x.quiet import import_quietly


def main(argv: Sequence[str] | None = None) -> int:
  """Loads the draft, and answers until the process is interrupted.

  Returns the exit status: 0, or 1 after an error message about the input.
  """
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x.contrib.link",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--draft", metavar="DIR", required=True, help="the draft's checkpoint")
  about = "host:port, or unix:path (%(default)s); port 0 takes a free port"
  add("--address", default="localhost:50051", help=about)
  add("--dtype", default="float32", help="dtype of the draft (%(default)s)")
  args = parser.parse_args(argv)
  import_quietly("tensorflow")
  from specdec_t5x.api import load_model
  from specdec_t5x.contrib.link.server import Drafting, serve

  try:
    drafting = Drafting.of(load_model(args.draft, args.dtype))
    server, port = serve(drafting, args.address)
  except ValueError as error:
    console.say(f"error: {error}")
    return 1
  host, colon, _ = args.address.rpartition(":")
  is_path = args.address.startswith("unix")
  address = args.address if is_path else f"{host}{colon}{port}"
  console.announce(f"Drafting with {args.draft} at {address}.")
  try:
    server.wait_for_termination()
  except KeyboardInterrupt:
    server.stop(grace=1)
  return 0


if __name__ == "__main__":
  sys.exit(main())
