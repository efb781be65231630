"""t5x_runtime keeps compiled programs, unless JAX is told otherwise."""

import jax
import pytest

kept_programs = pytest.importorskip("t5x.kept_programs")


@pytest.fixture
def settings(monkeypatch):
  made = {}
  monkeypatch.setattr(jax.config, "update", made.__setitem__)
  return made


@pytest.mark.parametrize("variable", ["SPECDEC_T5X_CACHE", "XDG_CACHE_HOME"])
def test_programs_are_kept_in_the_user_s_cache(
  variable, settings, monkeypatch, tmp_path
):
  for name in ("JAX_COMPILATION_CACHE_DIR", "SPECDEC_T5X_CACHE"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv(variable, str(tmp_path))
  kept_programs.keep_programs()
  assert settings["jax_compilation_cache_dir"].startswith(f"{tmp_path}/t5x_runtime/")


@pytest.mark.parametrize("folder", ["", "my/folder"])
def test_jax_s_own_setting_wins(settings, monkeypatch, folder):
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", folder)
  kept_programs.keep_programs()
  assert not settings


def test_each_kind_of_processor_has_a_folder(monkeypatch):
  one = kept_programs.folder()
  monkeypatch.setattr(kept_programs, "_processor", lambda: "another")
  assert kept_programs.folder() != one
  assert kept_programs.folder().parent == one.parent


def test_without_a_home_none_are_kept_and_it_is_said(settings, monkeypatch):
  for name in ("JAX_COMPILATION_CACHE_DIR", "SPECDEC_T5X_CACHE"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("XDG_CACHE_HOME", "~no_such_user/cache")
  with pytest.warns(UserWarning, match="set JAX_COMPILATION_CACHE_DIR to a folder"):
    kept_programs.keep_programs()
  assert not settings
