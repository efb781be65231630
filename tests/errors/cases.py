"""Users' mistakes, read from cases.toml, which explains the format."""

import dataclasses
import pathlib
import re
import string
import tomllib
from collections.abc import Callable, Mapping, Sequence

from tests import commands
from tests.errors import folders, inputs

_FILE = pathlib.Path(__file__).with_name("cases.toml")
_READ = tomllib.loads(_FILE.read_text(encoding="utf-8"))


@dataclasses.dataclass(frozen=True)
class Case:
  """A bad input; cases.toml explains the fields."""

  did: str
  says: str
  fix: str
  section: str = ""
  base: str = "speculative"
  files: Sequence[str] = ()
  settings: Sequence[str] = ()
  flags: Sequence[str] = ()
  gin: str = ""
  task: str = ""
  test: str = ""
  text: Mapping[str, str] = dataclasses.field(default_factory=dict)
  make: str = ""
  write: Mapping = dataclasses.field(default_factory=dict)
  json: Mapping[str, Mapping] = dataclasses.field(default_factory=dict)
  arrays: str = ""
  code: int = 1
  alone: bool = False

  @property
  def run(self) -> Callable[..., None]:
    name = _READ["base"][self.base]["command"]
    return getattr(commands, name, None) or commands.script(name)

  def arguments(self, pair: inputs.Pair, here: pathlib.Path) -> list[str]:
    """Makes the case's files and returns the command's arguments."""
    fill = filler(pair, here)
    arguments = [
      *_READ["base"][self.base].get("arguments", ()),
      *(f"--gin_file=configs/{file}.gin" for file in self.files),
      *(f"--gin.{setting}" for setting in self.settings),
      *self.flags,
    ]
    if f"HERE/{folders.NAME}" in "".join(arguments):
      folders.make(self, here / folders.NAME, fill)
      if self.make:
        getattr(folders, self.make)(here / folders.NAME)
    elif self.make:
      getattr(inputs, self.make)(pair, here)
    texts = dict(self.text)
    gin = self.gin
    if self.task:
      gin = string.Template(_READ["task"]).substitute(task=self.task, test=self.test)
    if gin:
      texts["case.gin"] = gin
      arguments.append("--gin_file=HERE/case.gin")
    for name, text in texts.items():
      (here / name).write_bytes(fill(text).encode("latin-1"))
    return [fill(argument) for argument in arguments]


def filler(pair: inputs.Pair, here: pathlib.Path) -> Callable[[str], str]:
  """Returns a function that replaces HERE, PAIR and NAME by a test's paths."""
  values = {"HERE": str(here), "PAIR": str(pair.root), "NAME": f"bad_{here.name}"}
  return lambda text: re.sub(
    r"\b(HERE|PAIR|NAME)\b", lambda match: values[match[0]], text
  )


CASES = [Case(**case) for case in _READ["case"]]
