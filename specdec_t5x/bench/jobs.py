"""From flags to what is to be loaded, checked before anything is."""

import argparse
import dataclasses
import os
import sys
from typing import Any

from specdec_t5x.bench import inputs
from specdec_t5x.bench.study import COPY, Job
from specdec_t5x.demo.recipe import PAIRS, DemoPair

# Of inputs and outputs.
_PAPER_LENGTHS = {"ende": (256, 256), "cnndm": (512, 128)}
_TASKS = {"demo": tuple(PAIRS), "paper": tuple(_PAPER_LENGTHS), None: ()}
# Texts of the demo's test split: more than 10,000 tokens of outputs.
_DEMO_INPUTS = 1000
_PAPER = {"num_tokens": 10_000, "dtype": "bfloat16"}


def preset(args: argparse.Namespace) -> str | None:
  """Returns the preset that holds; None for a pair given by flags."""
  return args.preset or (None if args.target else "demo")


def from_flags(args: argparse.Namespace) -> list[Job]:
  """Returns a job a task.

  Raises:
    ValueError: where what is needed is not there, all of it named at once.
  """
  for flag in ("num_inputs", "max_length", "num_tokens", "runs"):
    value = getattr(args, flag)
    if value is not None and value < 1:
      name = flag.replace("_", "-")
      raise ValueError(f"--{name} must be at least 1, got {value}.")
  chosen = preset(args)
  given = {name: getattr(args, name) for name in ("num_tokens", "dtype", "runs")}
  common = {name: value for name, value in given.items() if value is not None}
  return _MAKERS[chosen](args, _PAPER | common if chosen == "paper" else common)


def known(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the preset and each task's folders of models, for a table's settings."""
  models = {job.task: {"target": job.target, **job.drafts} for job in from_flags(args)}
  return {"preset": preset(args), "models": models}


def demo_job(pair: DemoPair, count: int, with_heads: bool = False, **how) -> Job:
  """Returns a demo pair with its own drafts.

  Args:
    pair: which.
    count: of the first texts of its test split.
    with_heads: whether its heads are drafts, too.
    **how: further fields of the job.
  """
  drafts = pair.drafts + (pair.heads if with_heads else ())
  return Job(
    task=pair.name,
    target=pair.target.checkpoint,
    drafts={part.name: part.checkpoint for part in drafts},
    read=inputs.demo(pair, count),
    max_length=pair.max_output,
    **how,
  )


def _demo_jobs(args, common):
  tasks = _tasks(args)
  missing = {task: PAIRS[task].missing() for task in tasks}
  wanted = [task for task in tasks if not missing[task]]
  if not wanted or (args.tasks and wanted != tasks):
    lacking = [task for task in tasks if missing[task]]
    commands = sorted({PAIRS[task].command for task in lacking})
    raise ValueError(
      f"--preset demo: the demo pair {', '.join(lacking)} is not there: "
      f"{missing[lacking[0]][0]} is missing. Run `{'` or `'.join(commands)}` in the "
      "repository's root first, or give a pair of your own with --target, --draft, "
      "--vocabulary and --inputs."
    )
  jobs = []
  for task in wanted:
    pair = PAIRS[task]
    count = args.num_inputs or _DEMO_INPUTS
    job = demo_job(pair, count, args.with_heads and _has_heads(pair), **common)
    tables = _orders(pair) if args.with_tables else {}
    drafts = job.drafts | tables | _drafts(args, task)
    room = args.max_length or job.max_length
    jobs.append(dataclasses.replace(job, drafts=drafts, max_length=room))
  return jobs


def _has_heads(pair) -> bool:
  """Whether heads draft, too; says so where they were not trained."""
  missing = [part for part in pair.heads if not os.path.isdir(part.checkpoint)]
  for part in missing:
    command = f"python -m specdec_t5x.train --gin_file={part.gin_file}"
    print(f"No heads in {part.checkpoint}: `{command}` trains them.", file=sys.stderr)
  return not missing


def _paper_jobs(args, common):
  jobs, needed = [], []
  for task in _tasks(args):
    target, drafts = _of_task(args.target or [], task), _drafts(args, task)
    if not target or not drafts:
      needed.append(task)
      continue
    max_input, max_output = _PAPER_LENGTHS[task]
    jobs.append(
      Job(
        task=task,
        target=_existing(target[-1], "--target"),
        drafts=drafts,
        read=inputs.published(task, args, max_input),
        max_length=args.max_length or max_output,
        **common,
      )
    )
  if needed:
    raise ValueError(
      f"--preset paper needs checkpoints for {' and '.join(needed)}: --target "
      "[TASK:]DIR, T5 1.1 XXL fine-tuned on the task, and --draft [TASK:]NAME=DIR, "
      "fine-tuned T5 1.1 small, base and large, named T5-small, T5-base and T5-large "
      "to stand beside the paper's; the test sets in --tfds-data-dir, and T5's "
      "vocabulary, from gs:// or with --vocabulary. Name the tasks that you have with "
      "--tasks."
    )
  return jobs


def _own_jobs(args, common):
  # A vocabulary may be a Hugging Face folder.
  for flag, is_there in (("vocabulary", os.path.exists), ("inputs", os.path.isfile)):
    path = getattr(args, flag)
    if path is None or not is_there(path):
      raise ValueError(
        f"--{flag}: expected a file, got {path!r}. A pair of your own needs --target, "
        "--draft, --vocabulary and --inputs."
      )
  if len(args.target) != 1:
    raise ValueError(f"--target: expected one folder, got {args.target}.")
  drafts = _drafts(args, args.task)
  if not drafts:
    raise ValueError(
      "--draft: expected NAME=DIR or `copy`, got none. Give at least one."
    )
  return [
    Job(
      task=args.task,
      target=_existing(args.target[0], "--target"),
      drafts=drafts,
      read=inputs.lines(args),
      max_length=args.max_length or 128,
      **common,
    )
  ]


_MAKERS = {"demo": _demo_jobs, "paper": _paper_jobs, None: _own_jobs}


def _tasks(args):
  known = _TASKS[preset(args)]
  unknown = [task for task in args.tasks or () if task not in known]
  if unknown:
    raise ValueError(f"--tasks: expected some of {known}, got {unknown}.")
  return list(args.tasks or known)


def _orders(pair):
  """Returns a demo pair's table of n-grams as drafts of each order, and copying."""
  orders = {"unigram": 1, "bigram": 2, "trigram": 3}
  drafts = {
    name: f"{table.checkpoint}@{order}"
    for table in pair.tables
    for name, order in orders.items()
  }
  return drafts | {COPY: COPY}


def _of_task(values, task):
  """Returns the values for a task: its own, and those for every task."""
  found = []
  for value in values:
    head, colon, rest = value.partition(":")
    if not colon or head not in PAIRS:  # As in gs://...
      found.append(value)
    elif head == task:
      found.append(rest)
  return found


def _drafts(args, task):
  drafts = {}
  for value in _of_task(args.draft or [], task):
    name, equals, source = value.partition("=")
    if not equals and value != COPY:
      raise ValueError(
        f"--draft: expected NAME=DIR or `{COPY}`, got {value!r}. The name is for the "
        "tables."
      )
    source = source or name
    if name in drafts:
      raise ValueError(f"--draft: {name!r} is given twice. Name drafts apart.")
    drafts[name] = source if source == COPY else _existing(source, "--draft")
  return drafts


def _existing(path, flag):
  if "://" not in path and not os.path.isdir(path.split("@")[0]):
    raise ValueError(f"{flag}: {path!r} is no folder. Give the folder of a checkpoint.")
  return path
