"""The code blocks of README and of the documentation run, and internal links are valid.

A block that is not run has its reason in a comment above, `<!-- not run: reason -->`.
The files and macros in the block are checked anyway. `<!-- file: NAME -->` above a
block writes the block to a file.
"""

import collections
import contextlib
import itertools
import json
import re
import sys
import time

import pytest
import seqio

from specdec_t5x.demo import embedded
from tests import test_ways, ways
from tests.docs import sandbox
from tests.docs.blocks import Block, blocks
from tests.real_data import ROOT

sys.path.append(str(ROOT / "docs"))
import gin_reference

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
    sandbox.run(["-m", "t5x.infer", "--gin_file=configs/baseline_ende.gin"])
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


@pytest.mark.parametrize("block", ALL, ids=lambda b: f"{name(b.page)}:{b.line}")
def test_files_modules_and_macros_of_a_block_exist(block):
  assert block.language, f"{name(block.page)}:{block.line}: a block without a language"
  if block.language != "bash":
    return
  files = re.findall(r"--gin_file=(configs/\S+|examples/\S+)", block.text)
  files += re.findall(r"python ((?:scripts|examples)/\S+\.py)", block.text)
  modules = re.findall(r"python -m ((?:specdec_t5x|tests|lab)\b[\w.]*)", block.text)
  for file in files:
    assert (ROOT / file).is_file(), file
  for module in modules:
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
  unknown = set(re.findall(r"--gin\.([A-Z_0-9]+)=", block.text)) - MACROS
  assert not unknown, unknown


MACROS = {
  knob.name
  for path in (ROOT / "configs").rglob("*.gin")
  for knob in gin_reference.read(path, ROOT / "configs").knobs
}


def test_a_bad_block_is_reported(tmp_path):
  page = tmp_path / "page.md"
  page.write_text(
    "<!-- not run: why -->\n```bash\npython -m x\n```\n\nText\n"
    "```bash\nfor i in 1 2 3 4; do python -m y --n=$i 'a b'; done\n```\n"
  )
  marked, plain = blocks(page)
  assert marked.why_not == "why"
  assert plain.why_not is None
  assert plain.commands() == [["-m", "y", f"--n={i}", "a b"] for i in (1, 4)]
  page.write_text("```bash\nnot_a_command\n```\n")
  (block,) = blocks(page)
  with pytest.raises(AssertionError, match="not_a_command"):
    block.commands()


def text_of(page):
  """Returns the Markdown of a page or notebook without code blocks."""
  text = page.read_text()
  if page.suffix == ".ipynb":
    cells = json.loads(text)["cells"]
    text = "\n\n".join(
      "".join(c["source"]) for c in cells if c["cell_type"] == "markdown"
    )
  return re.sub(r"```.*?```", "", text, flags=re.S)


def anchors(page):
  """Yields the anchors of a page's headings, as GitHub and MyST make anchors."""
  seen = collections.Counter()
  for heading in re.findall(r"^#{1,3} (.+)$", text_of(page), re.M):
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
    yield f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
    seen[anchor] += 1


def broken_links(page):
  """Yields a page's links within the repository without a target file or heading."""
  text = re.sub(r"`[^`\n]*`", "", text_of(page))
  for link in re.findall(r"\]\(([^)\s]+)\)", text):
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    if re.match(r"https?:", link):
      continue
    if not target.exists() or (anchor and anchor not in set(anchors(target))):
      yield link


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs/tutorial.ipynb"], ids=name)
def test_links_within_the_repository_are_valid(page):
  gin_reference.write(ROOT)  # Building the site writes the page.
  assert not list(broken_links(page))


def test_a_broken_link_is_reported(tmp_path):
  other = tmp_path / "other.md"
  other.write_text("# One `x_y`\n## Twice\n## Twice\n#### Too deep\n")
  page = tmp_path / "page.md"
  right = ("other.md", "other.md#one-x_y", "other.md#twice-1", "#own", "https://x.y/#z")
  wrong = ("none.md", "other.md#twice-2", "other.md#too-deep", "#one-x_y")
  page.write_text("# Own\n" + "\n".join(f"[a]({link})" for link in right + wrong))
  assert tuple(broken_links(page)) == wrong
  cell = {"cell_type": "markdown", "source": ["# Own\n", "[a](#own), [b](#none)"]}
  notebook = tmp_path / "page.ipynb"
  notebook.write_text(json.dumps({"cells": [cell]}))
  assert list(broken_links(notebook)) == ["#none"]


def test_every_example_has_a_page_and_is_run():
  examples = {path.stem for path in (ROOT / "examples").glob("*.py")}
  pages = {page.stem: page for page in (ROOT / "docs/examples").glob("*.md")}
  assert pages.keys() - {"index"} == examples
  for example in examples:
    text = pages[example].read_text()
    command = f"python examples/{example}.py"
    assert f"```{{literalinclude}} ../../examples/{example}.py\n" in text
    assert f"\n{command}" in text
    assert [b for b in ALL if command in b.text and not b.why_not], command


def test_the_example_s_drafter_gives_the_target_s_text_in_fewer_calls(capsys):
  """The networks are the pair embedded in the package."""
  sandbox.run_script(str(ROOT / "examples/write_a_drafter.py"))
  lines = capsys.readouterr().out.splitlines()
  plain, echoed = (line.split(" calls of the target: ") for line in lines)
  assert echoed[1] == plain[1]
  assert int(echoed[0]) < int(plain[0])


def test_every_way_to_draft_has_a_page_that_names_the_gin_files():
  folder = ROOT / "docs" / "methods"
  pages = {page.stem: page.read_text() for page in folder.glob("*.md")}
  text = "\n".join(pages.values())
  for name, way in ways.WAYS.items():
    assert way.page in pages, name
    for file in way.files or ():
      assert f"{file.split('/')[1]}.gin" in text, (name, file)


def test_every_way_is_compared_with_plain_decoding_token_for_token():
  """tests/test_ways.py compares a way, or a greedy run on a page does (`Agreement`)."""
  compared = {*ways.ON_TABLES, *ways.ON_NETWORKS} - test_ways.SIMILAR
  compared |= {*ways.ON_TABLES, *test_ways.GREEDILY}
  shown = [b for b in ALL if b.language == "bash" and not (b.why_not or b.file)]
  runs = [" ".join(command) for block in shown for command in block.commands()]
  runs = [run for run in runs if "t5x.infer" in run and "TEMPERATURE" not in run]
  assert "-m t5x.infer --gin_file=configs/spec_ende.gin" in runs
  compared.add("draft model by name")
  for name, way in ways.IN_GIN.items():
    files = [f"{file}.gin" for file in way.files if file != "drafters/heads"]
    compared |= {name for run in runs if files and all(file in run for file in files)}
  assert compared == {*ways.WAYS}


def test_every_method_has_a_page():
  from specdec_t5x.build import DRAFTERS
  from specdec_t5x.core.rules import RULES
  from specdec_t5x.policies import POLICIES

  folder = ROOT / "docs" / "methods"
  pages = {page: page.read_text() for page in folder.glob("*.md")}
  index = pages.pop(folder / "index.md")
  for page, text in pages.items():
    assert f"\n{page.stem}\n" in index
    for part in ("Idea", "Formula", "Guarantee", "When", "Use", "Source"):
      assert f"\n**{part}.**" in text, f"{page.name} lacks {part}"
  described = "\n".join(pages.values())
  for word in (*RULES, *DRAFTERS, *POLICIES):
    assert f"'{word}'" in described or f"drafters/{word}.gin" in described, word
