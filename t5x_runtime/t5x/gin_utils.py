"""gin on the command line, and a record of the configuration in the output.

All errors of a configuration become a ValueError with a one-line message. gin itself
raises a dozen types, with messages of several lines.
"""

import difflib
import inspect
import os
import pathlib
import re
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gin
import jax
from absl import app, flags, logging
from etils import epath

_MACRO = "gin.macro"
# gin's additions to an error, one per configurable in the trace.
_CALLS = re.compile(r"\n  In call to configurable '[^\n]*")
# The fixes of gin's errors, by type; the first matching type counts.
_FIXES = (
  (
    (SyntaxError, tokenize.TokenError),
    "Values are Python literals: write text in quotes, as in --gin.NAME=\"'text'\".",
  ),
  (ImportError, "Check the name, or install the modules that the gin file imports."),
  (OSError, "Check --gin_file, `include` and --gin_search_paths."),
  (UnicodeError, "A gin file is text in UTF-8. Convert the file, or give another."),
  (Exception, "Check the spelling. A gin file must import the modules that it binds."),
)

# An `include` at the start of a line, with the path.
_INCLUDE = re.compile(r"^include\s+(['\"])(.+?)\1", re.MULTILINE)


def parse_gin_flags(
  gin_search_paths: Sequence[str],
  gin_files: Sequence[str],
  gin_bindings: Sequence[str],
) -> None:
  """Parses gin files in order, then bindings, and locks gin; later bindings win.

  Args:
    gin_search_paths: folders of relative file names, in the order of the search.
    gin_files: paths of gin files.
    gin_bindings: single bindings, `NAME = value`.

  Raises:
    ValueError: with a one-line message, if a file or binding can't be parsed, a macro
      has no value, or a binding sets a macro that no file sets or reads.
  """
  folders = ["", *map(os.path.expanduser, gin_search_paths)]
  gin_files = [os.path.expanduser(file) for file in gin_files]
  where = ""
  names: dict[str, str] = {}
  try:
    with tempfile.TemporaryDirectory() as copies:
      for file in gin_files:
        where = f"--gin_file={file}: "
        gin.parse_config_file(_copied(file, folders, copies, names))
    file_macros = {*macros(), *_macros_read()}
    where = "--gin.NAME=VALUE: "
    gin.parse_config(gin_bindings)
    _check_known(gin_bindings, file_macros, gin_files)
    where = ""
    for values in gin.config._CONFIG.values():
      values.update({name: _at_home(value) for name, value in values.items()})
    _check_set()
    gin.finalize()
    logging.info("gin configuration:\n%s", gin.config_str())
  # gin files import modules and bind their contents, so errors may have any type.
  except Exception as error:
    message = str(_explained(error, where))
    for copy, name in names.items():
      message = message.replace(copy, name)
    raise ValueError(message) from error


def _copied(
  name: str, folders: Sequence[str], copies: str, names: dict[str, str]
) -> str:
  """Copies a gin file and the included files, and returns the path of the copy.

  Copies include each other by absolute paths. gin's own search takes the folder of a
  relative path for a package, and raises a TypeError at a folder without `__init__.py`.

  Args:
    name: path of the file, relative to any of `folders`.
    folders: the folders to search, in order.
    copies: folder of the copies.
    names: gets the name of each copy.

  Raises:
    FileNotFoundError: if there is no such file.
  """
  paths = [os.path.join(folder, name) for folder in folders]
  path = next(filter(os.path.isfile, paths), None)
  if path is None:
    searched = ", ".join(dict.fromkeys(filter(None, folders)))
    raise FileNotFoundError(
      f"Unable to open file: {name}, searched in {searched}."
      f"{_closest_file(name, folders)}"
    )
  text = pathlib.Path(path).read_text(encoding="utf-8")
  copy = os.path.join(copies, f"{len(names)}.gin")
  names[copy] = name

  def absolute(include):
    return f"include '{_copied(include[2], folders, copies, names)}'"

  pathlib.Path(copy).write_text(_INCLUDE.sub(absolute, text), encoding="utf-8")
  return copy


def bound_arguments(function: Callable[..., Any]) -> dict[str, Any]:
  """Returns the evaluated arguments that gin binds to a configurable.

  Args:
    function: the configurable.

  Raises:
    ValueError: with a one-line message, if arguments can't be evaluated, or an argument
      is missing.
  """
  try:
    bound = gin.get_bindings(function)
  # The evaluation calls functions of gin files, so errors may have any type.
  except Exception as error:
    raise _explained(error) from error
  parameters = inspect.signature(function).parameters.values()
  missing = [p.name for p in parameters if p.default is p.empty and p.name not in bound]
  if missing:
    name = function.__name__
    raise ValueError(
      f"No gin file binds {', '.join(f'{name}.{x}' for x in missing)}. Include "
      "t5x/configs/runs/infer.gin, directly or through another file, and bind MODEL."
    )
  return bound


def one_line(error: BaseException) -> str:
  """Returns a one-line message of an error, without gin's trace of configurables."""
  text = str(error)
  if isinstance(error, SyntaxError) and error.text:
    text += f": {error.text.strip()[:200]}"
  return " ".join(_CALLS.sub("", text).split())


def _explained(error: Exception, where: str = "") -> ValueError:
  """Converts an error of gin's to a ValueError with a one-line message and the fix."""
  if isinstance(error, RecursionError):
    # The error's text has an addition per level, and may itself recurse too deep.
    return ValueError(
      f"{where}The gin files have a cycle: a gin file includes itself, or a macro "
      "reads itself. Remove the `include` or the macro."
    )
  message = one_line(error)
  trace = error.__traceback__
  while trace.tb_next is not None:
    trace = trace.tb_next
  # gin's code or gin's reading of a file has raised the error, not a bound function.
  is_gins = trace.tb_frame.f_globals.get("__name__", "").startswith("gin.")
  if isinstance(error, ValueError) and not (is_gins or isinstance(error, UnicodeError)):
    return ValueError(message)
  if isinstance(error, FileNotFoundError) and message.startswith("Unable to open"):
    return ValueError(f"{where}{message}")
  # The gin files of a command give the module `__main__` the command's name.
  if main := re.search(r"resolve selector (infer|eval)_script\.", message):
    return ValueError(
      f"{where}Expected a gin file of this command, got a file of t5x.{main[1]}. Run "
      f"`python -m t5x.{main[1]}`, or give a file of this command."
    )
  missing = re.search(r"missing .*required .*?: ('.*?)(?= No values|$)", message)
  name = re.search(r"In call to configurable '(.*?)'", str(error))
  if isinstance(error, TypeError) and missing and name:
    return ValueError(
      f"{name[1]} needs {missing[1]}, but no gin file binds {missing[1]}. Bind the "
      f"parameter, as in {name[1]}.NAME = value."
    )
  fix = next(fix for kind, fix in _FIXES if isinstance(error, kind))
  kind = type(error).__name__
  message = re.sub(r": <ast\.\w+ object at 0x\w+>", "", message).rstrip(".")
  return ValueError(f"{where}{fix} gin got {kind}: {message}.")


def _closest_file(missing: str, folders: Iterable[str]) -> str:
  """Returns a suggestion of gin files with names similar to a missing file's name."""
  file = pathlib.Path(missing)
  top = file.parts[0] if len(file.parts) > 1 else "configs"
  paths = {}
  if file.is_absolute():
    paths = {other.name: str(other) for other in file.parent.glob("*.gin")}
  else:
    for folder in map(pathlib.Path, folders):
      for pattern in ("*.gin", f"{top}/*.gin", f"{top}/*/*.gin", f"{top}/*/*/*.gin"):
        for other in folder.glob(pattern):
          paths.setdefault(other.name, str(other.relative_to(folder)))
  close = difflib.get_close_matches(file.name, paths, n=2, cutoff=0.7)
  if not close:
    return " Check the name, `include` and --gin_search_paths."
  return f" Did you mean {' or '.join(paths[name] for name in close)}?"


def macros() -> dict[str, Any]:
  """Returns the macros with values, without evaluating the values."""
  # gin has no public function that lists bindings.
  items = gin.config._CONFIG.items()
  return {name: x.get("value") for (name, kind), x in items if kind == _MACRO}


def _at_home(value: Any) -> Any:
  """Returns a value with the user's home for ~/ at the start of texts."""
  if isinstance(value, str) and value.startswith("~/"):
    return os.path.expanduser(value)
  if isinstance(value, dict):
    return {key: _at_home(x) for key, x in value.items()}
  if type(value) in (list, tuple):
    return type(value)(map(_at_home, value))
  return value


def _macros_read() -> set[str]:
  """Returns the macros that bindings read."""
  references = gin.config.iterate_references(gin.config._CONFIG)
  keys = [reference.config_key for reference in references]
  return {name for name, selector in keys if selector == _MACRO}


def _check_known(
  gin_bindings: Sequence[str], file_macros: Iterable[str], gin_files: Sequence[str]
) -> None:
  """Raises a ValueError if a binding sets a macro without an effect.

  The message suggests gin files in folders beside `gin_files` that set the macro.
  """
  known_macros = {*file_macros, *_macros_read()}
  for name in [binding.partition("=")[0].strip() for binding in gin_bindings]:
    if not re.fullmatch(r"[\w/]+", name) or name in known_macros:
      continue
    folders = {pathlib.Path(file).parent for file in gin_files}
    files = [file for folder in folders for file in folder.glob("*/*.gin")]
    sets_macro = re.compile(rf"^{name} *=", re.MULTILINE)
    setters = [
      f"--gin_file={file}"
      for file in sorted(files, key=lambda file: (len(file.name), file))
      if os.access(file, os.R_OK)
      and sets_macro.search(file.read_text(errors="replace"))
    ]
    advice = f" Add {' or '.join(setters[:2])}, which sets {name}."
    raise ValueError(
      f"--gin.{name} sets a macro that no gin file sets or reads."
      f"{advice if setters else _closest(name, known_macros)}"
    )


def _check_set() -> None:
  """Raises a ValueError if a required macro, or a macro in a binding, has no value."""
  values = macros()
  required = [name for name, value in values.items() if repr(value) == "%gin.REQUIRED"]
  if required:
    raise ValueError(
      f"{' and '.join(sorted(required))} must be set in a gin file, or by "
      "--gin.NAME=VALUE (text needs extra quotes: --gin.NAME=\"'text'\")."
    )
  for name in sorted(_macros_read() - values.keys()):
    raise ValueError(
      f"%{name} is read, but no gin file or --gin.{name}=VALUE sets "
      f"{name}.{_closest(name, values)}"
    )


def _closest(name: str, known: Iterable[str]) -> str:
  close = difflib.get_close_matches(name.upper(), sorted(known), n=3, cutoff=0.5)
  if close:
    return f" Did you mean {' or '.join(close)}?"
  return f" The macros are {', '.join(sorted(known))}."


def rewrite_gin_args(args: Sequence[str]) -> list[str]:
  """Converts arguments `--gin.NAME=VALUE` to `--gin_bindings=NAME = VALUE`.

  Raises:
    ValueError: if an argument `--gin.NAME` has no value.
  """
  rewritten = []
  for arg in args:
    name, equals, value = arg.removeprefix("--gin.").partition("=")
    is_binding = arg.startswith("--gin.")
    if is_binding and not equals:
      raise ValueError(f"Expected --gin.<name>=<value>, got {arg}")
    rewritten.append(f"--gin_bindings={name} = {value}" if is_binding else arg)
  return rewritten


def summarize_gin_config(model_dir: str, summary_writer, step: int) -> None:
  """Writes the configuration to `model_dir`/config.gin, in the first process only.

  `summary_writer` and `step` are unused: only training writes to TensorBoard.
  """
  del summary_writer, step
  if jax.process_index() == 0:
    directory = epath.Path(model_dir)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.gin").write_text(gin.config_str())


def run(main: Callable[[Sequence[str]], None]) -> None:
  """Runs `main` as a command with gin bindings among the flags."""
  app.run(main, flags_parser=_parse_flags)


def _parse_flags(args):
  try:
    return flags.FLAGS(rewrite_gin_args(args))
  except (ValueError, flags.Error) as error:
    fix = "--helpfull lists the flags."
    name = getattr(error, "flagname", "")
    if re.fullmatch("[A-Z][A-Z0-9_]*", name):  # A macro, which needs --gin.
      texts = [arg.lstrip("-") for arg in args if re.match(rf"--?{name}=", arg)]
      setting = texts[0] if texts else f"{name}=VALUE"
      quotes = "text needs extra quotes, as in --gin.NAME=\"'text'\"."
      fix = f"Write --gin.{setting}; {quotes}"
    sys.exit(f"{args[0]}: {one_line(error).rstrip('.')}. {fix}")
