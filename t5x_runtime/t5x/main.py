"""`python -m t5x.main --run_mode=infer` runs `python -m t5x.infer`, and so on."""

import argparse
import os
import sys


def main() -> None:
  """Replaces this process by the command of --run_mode, with the other flags."""
  parser = argparse.ArgumentParser(
    prog="python -m t5x.main", add_help=False, allow_abbrev=False, description=__doc__
  )
  add = parser.add_argument
  add("-run_mode", "--run_mode", choices=("infer", "eval"), required=True)
  args, other_args = parser.parse_known_args()
  command = [sys.executable, "-m", f"t5x.{args.run_mode}", *other_args]
  os.execv(command[0], command)


if __name__ == "__main__":
  main()
