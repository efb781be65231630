"""The code blocks of README and of the documentation run, and the tutorial.

A block that is not run has its reason in a comment above, `<!-- not run: reason -->`.
`<!-- file: NAME -->` above a block writes the block to a file.
"""

import ast
import contextlib
import itertools
import json
import sys
import time

import pytest
import seqio

from specdec_t5x.demo import embedded
from tests.docs import sandbox
from tests.docs.blocks import Block, blocks
from tests.real_data import ROOT

pytestmark = pytest.mark.slow

PAGES = sorted(
  [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
)
PAGES = [page for page in PAGES if "_build" not in page.parts]
RUN = ("bash", "python")
ALL = list(itertools.chain(*map(blocks, PAGES)))
NAMED = {
  page: [b for b in ALL if b.page == page and b.language in RUN] for page in PAGES
}
TO_RUN = [page for page in PAGES if any(not b.why_not for b in NAMED[page])]


def name(page):
  return str(page.relative_to(ROOT))


@pytest.fixture(scope="session")
def agreement(folder):
  """Returns the outputs of the plain command on the demo pair, and of later runs."""
  agreement = sandbox.Agreement()
  for block in ALL:
    if block.file:  # Every page may need the file: pages run in any order, or alone.
      (folder / block.file).write_text(block.text)
  with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
    patch.setattr(embedded, "FOLDER", folder / "pair")
    patch.setattr(seqio.TaskRegistry, "_REGISTRY", {})
    started = time.time()
    plain = ["--gin_file=configs/baseline_ende.gin", "--gin.INFER_OUTPUT_DIR='plain'"]
    sandbox.run(["-m", "t5x.infer", *plain])
    agreement.check(started)
  return agreement


@pytest.mark.filterwarnings("ignore:.*the outputs keep")
@pytest.mark.usefixtures("empty_registry")
@pytest.mark.parametrize("page", TO_RUN, ids=name)
def test_the_commands_of_a_page_run(page, folder, agreement, unchecked):
  """Greedy runs that keep the target's outputs match the plain command's outputs."""
  variables = {"__name__": "documented"}
  started = time.time()
  with contextlib.chdir(folder):
    for block in NAMED[page]:
      if not block.why_not and not block.file:
        run(block, variables)
    agreement.check(started)


def run(block: Block, variables):
  if block.language == "python":
    exec(compile(block.text, f"{block.page}:{block.line}", "exec"), variables)
    return
  commands = block.commands()
  assert commands, f"{block.page}:{block.line} runs nothing: say why above it"
  for command in commands:
    sandbox.run(command)


def test_the_example_s_drafter_gives_the_target_s_text_in_fewer_calls(capsys):
  """The networks are the pair embedded in the package."""
  sandbox.run_script(str(ROOT / "examples/write_a_drafter.py"))
  lines = capsys.readouterr().out.splitlines()
  plain, echoed = (line.split(" calls of the target: ") for line in lines)
  assert echoed[1] == plain[1]
  assert int(echoed[0]) < int(plain[0])


# ---- docs/tutorial.ipynb. ----

CODE = [
  cell
  for cell in json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())["cells"]
  if cell["cell_type"] == "code"
]
# Slow parts of cells, and the shorter replacements.
SHORTER = {
  "examples(8)": "examples(1)",
  "max_length=80": "max_length=12",
  "range(4)": "range(2)",
  "[1, 3, 5, 7]": "[5]",
}


@pytest.mark.usefixtures("empty_registry", "unchecked")
def test_the_tutorial_runs(folder, monkeypatch):
  """The cells run in this process; a cell displays the values of its expressions."""
  pytest.importorskip("IPython", reason="the extra `test` brings it")
  source = "\n".join("".join(cell["source"]) for cell in CODE)
  for long, short in SHORTER.items():
    assert long in source
    source = source.replace(long, short)
  shown = []
  variables = {"__name__": "tutorial"}
  monkeypatch.setattr(sys, "displayhook", shown.append)
  with contextlib.chdir(folder):
    cells = ast.Interactive(ast.parse(source).body)
    exec(compile(cells, "tutorial", "single"), variables)
  assert {"SVG", "HTML"} <= {type(value).__name__ for value in shown}
  assert len(variables["right"].lines) == 3
