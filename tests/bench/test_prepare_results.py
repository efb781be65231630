"""scripts/prepare_results.sh makes every file of a pair that `make results` reads."""

import ast
import os
import re
import stat
import subprocess
import sys

from specdec_t5x.bench import report, results

# Logs the arguments instead of training, and writes the texts that a target writes.
_RECORDER = """#!{python}
import json, os, pathlib, subprocess, sys
if sys.argv[1] != "-m":
  sys.exit(subprocess.run([{python!r}, *sys.argv[1:]]).returncode)
with open({log!r}, "a") as log:
  log.write(json.dumps(sys.argv[1:]) + "\\n")
if "--gin.WRITTEN=8000" in sys.argv:
  folder = pathlib.Path({folder!r}, "heads")
  folder.mkdir()
  for split in ("train", "validation"):
    row = {{"inputs": "a", "targets": "b"}}
    (folder / f"written_8000_{{split}}.jsonl").write_text(json.dumps(row) + "\\n")
"""


_FILES = """
multi30k/train.en multi30k/val.en multi30k/test_2016_flickr.en
multi30k/train.de multi30k/val.de multi30k/test_2016_flickr.de
multi30k/m30k_8k.model t5_spiece/spiece.model tatoeba_deu/deu.txt
t5x_m30k/target_checkpoint_2000 t5x_m30k/draft_checkpoint_1800
cnndm_manuj/cnn_dailymail_validation.csv wmt14_500_multiref/wmt14-en-de.extra_refs.txt
"""


def test_every_file_of_the_plan_is_made(tmp_path):
  folder, log = tmp_path / "pair", tmp_path / "log"
  run = _run(tmp_path, folder, log)
  assert run.returncode == 0, run.stderr
  made = {path for line in log.read_text().splitlines() for path in _made(line)}
  made |= {str(path.relative_to(folder)) for path in folder.rglob("*") if path.exists()}
  commands = dict(results.commands(report.planned(), {"m30k": "DIR"}))
  needed = {
    found
    for command in commands.values()
    for word in command
    for found in re.findall(r"DIR/([^@]+)", word)
  }
  assert len(needed) > 20
  assert needed <= made
  assert (folder / "news.en").read_text() == "A short one.\n"


def test_missing_data_end_the_script_at_once(tmp_path):
  run = _run(tmp_path, tmp_path / "pair", tmp_path / "log", data="nowhere")
  assert run.returncode == 1
  assert "nowhere/multi30k does not exist" in run.stderr
  assert not (tmp_path / "log").exists()


def _run(tmp_path, folder, log, data="data"):
  for name in _FILES.split():
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("A man in a hat is here.\n")
  news = tmp_path / "data" / "wmt14_500_multiref" / "wmt14-en-de.extra_refs.txt"
  news.write_text(f"S-1\tA short one.\nT-1\tKurz.\nS-2\t{'long ' * 23}\n")
  python = tmp_path / "python"
  python.write_text(
    _RECORDER.format(python=sys.executable, log=str(log), folder=str(folder))
  )
  python.chmod(python.stat().st_mode | stat.S_IXUSR)
  return subprocess.run(
    ["scripts/prepare_results.sh", str(tmp_path / data), str(folder)],
    env={**os.environ, "PYTHON": str(python)},
    capture_output=True,
    text=True,
    check=False,
  )


def _made(line):
  """Yields a training job's checkpoints, relative to the folder."""
  words = dict(re.findall(r"--(?:gin\.)?(\w+)=(.*)", "\n".join(ast.literal_eval(line))))
  output = ast.literal_eval(words["OUTPUT_DIR"]).partition("/pair/")[2]
  if words["job"] == "heads":
    kinds = ast.literal_eval(words["HEADS"])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
      yield f"{output}/{kind}/checkpoint_{words['STEPS']}"
  else:
    yield f"{output}/checkpoint_{words.get('STEPS', 0)}"
