"""Python keeps compiled programs between processes, unless a setting of JAX decides."""

import pathlib
import shutil

import jax
import pytest

from specdec_t5x import programs
from specdec_t5x.native import library
from tests.processes import printed

SCRIPT = """
import jax, specdec_t5x
from specdec_t5x.demo import embedded
target = specdec_t5x.load_model(embedded.target())
(output,) = specdec_t5x.generate([[17, 5, 1]], target, None, embedded.vocabulary())
print(jax.config.jax_compilation_cache_dir)
print(output.tokens)
"""
DIR = "jax_compilation_cache_dir"


@pytest.fixture
def built():
  """Returns the files of the kernels, in the folder that tests share."""
  library.problem()
  return list(library.folder().glob("kernels-*.so"))


@pytest.fixture
def unset(monkeypatch, tmp_path):
  """Removes the settings of JAX, and returns the cache's folder."""
  for name in (DIR, *programs._SETTINGS):
    monkeypatch.delenv(name.upper(), raising=False)
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "cache"))
  programs._made.cache_clear()
  yield tmp_path / "cache"
  programs._made.cache_clear()


@pytest.fixture
def settings(unset, monkeypatch):
  """Returns the settings of JAX that are made."""
  updates = {}
  monkeypatch.setattr(jax.config, "update", updates.__setitem__)
  monkeypatch.setattr(type(jax.config), DIR, None)
  return updates


def decodes(folder):
  """Returns the kept decodes; small programs take too little time to be kept always."""
  return sorted(path.name for path in folder.rglob("jit__lambda*-cache"))


def test_a_process_reads_the_programs_of_an_earlier_process(built, unset):
  unset.mkdir()
  for path in built:  # Building the kernels would take most of the time.
    shutil.copy(path, unset)
  first, tokens = printed("-c", SCRIPT).splitlines()
  assert first.startswith(f"{unset}/programs-")
  kept = decodes(unset)
  assert kept
  for option in ("-B", "-OO"):
    assert printed(option, "-c", SCRIPT).splitlines() == [first, tokens]
    assert decodes(unset) == kept


def test_programs_are_kept_in_the_folder_of_the_processor(settings, unset):
  programs.keep()
  folder = pathlib.Path(settings.pop(DIR))
  assert folder.parent == unset
  assert folder.name.startswith("programs-")
  assert settings == programs._SETTINGS


@pytest.mark.parametrize("folder", ["", "my/folder"])
def test_the_user_s_folder_wins(folder, settings, monkeypatch):
  monkeypatch.setenv(DIR.upper(), folder)
  programs.keep()
  assert not settings


def test_the_user_s_settings_win(settings, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(type(jax.config), DIR, "my/folder")
    programs.keep()
  assert not settings
  for name in programs._SETTINGS:
    monkeypatch.setenv(name.upper(), "7")
  programs.keep()
  assert list(settings) == [DIR]


@pytest.mark.parametrize(
  ("how", "says"),
  [
    ("a file", "programs are not kept: "),
    (
      "no home",
      "(?i)are not kept: .*set JAX_COMPILATION_CACHE_DIR to a folder",
    ),
    ("read-only", "programs are not kept: .* is not writable. Set "),
  ],
)
def test_a_warning_replaces_a_folder_that_can_t_be_written(
  how, says, settings, unset, monkeypatch
):
  if how == "a file":
    unset.write_text("")
  elif how == "no home":
    monkeypatch.delenv("SPECDEC_T5X_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "~no_such_user/cache")
  else:
    monkeypatch.setattr("os.access", lambda path, mode: False)
  with pytest.warns(UserWarning, match=says):
    programs.keep()
  programs.keep()  # Warns once.
  assert not settings
