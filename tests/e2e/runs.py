"""Runs `python -m t5x.infer` and `t5x.eval` in a shell or in this process."""

import contextlib
import io
import json
import string
import sys

import t5x

from tests import commands, processes
from tests.real_data import ROOT
from tests.t5x_bridge import tiny

EXAMPLES = 20  # Examples of the tiny pair's task, in the tests that share the task.
TINY_NETWORKS = (ROOT / "tests/e2e/tiny_networks.gin").read_text()
_TASK = string.Template((ROOT / "tests/e2e/translation.gin").read_text())


def translation(name, text, vocabulary, inputs=40, targets=12, **macros):
  """Returns the gin text of macros and of a task over a file of sentences."""
  task = _TASK.substitute(
    name=repr(name),
    text=repr(str(text)),
    vocabulary=repr(str(vocabulary)),
    inputs=inputs,
    targets=targets,
  )
  return task + bindings(**macros)


def bindings(**macros):
  """Returns the gin text of macros."""
  return "".join(f"{macro} = {value!r}\n" for macro, value in macros.items())


def tiny_pair(root, examples):
  """Writes the files of a tiny pair without the draft and returns the gin file."""
  text = root / "text.en"
  text.write_text("\n".join(tiny.sentences(examples, seed=5)) + "\n")
  gin_file = root / "pair.gin"
  settings = translation(
    f"tiny_{root.name}",  # A name can be registered once per process.
    text,
    tiny.train_vocabulary(root),
    TARGET_CHECKPOINT_PATH=tiny.save_t5x(root / "target", tiny.TARGET, seed=1),
    BATCH_SIZE=8,
  )
  gin_file.write_text(TINY_NETWORKS + settings)
  return gin_file


def infer(*gin_files, **settings):
  return processes.finished(*command(*gin_files, **settings)[1:])


def command(*gin_files, module="t5x.infer", flags=(), **bindings):
  return [
    *(sys.executable, "-m", module, *flags),
    *(f"--gin_file={file}" for file in gin_files),
    *(f"--gin.{name}={value!r}" for name, value in bindings.items()),
  ]


def completed(*gin_files, **settings):
  """Runs the command to the end and returns the printed text.

  The command runs in this process, because the imports take most of a new process's
  time. Upstream T5X's command can only be started from the shell.
  """
  if not hasattr(t5x, "PROVIDER"):
    process = infer(*gin_files, **settings)
    assert process.returncode == 0, process.stderr[-4000:]
    return process.stdout
  _, _, module, *arguments = command(*gin_files, **settings)
  run = {
    "t5x.infer": commands.infer,
    "t5x.eval": commands.evaluation,
  }[module]
  printed = io.StringIO()
  with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed):
    run(*arguments)
  return printed.getvalue()


def records(directory, mode="predict_with_aux"):
  (file,) = directory.glob(f"*-{mode}.jsonl-00000-of-00001")
  return [json.loads(line) for line in file.read_text().splitlines()]


def tokens(directory, mode="predict_with_aux"):
  return [record["prediction_tokens"] for record in records(directory, mode)]


def summary(directory):
  return json.loads((directory / "speculation.json").read_text())
