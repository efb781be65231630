"""t5x_runtime caches compiled programs unless a setting of JAX decides."""

import jax
import pytest

kept_programs = pytest.importorskip("t5x.kept_programs")


@pytest.fixture
def settings(monkeypatch):
  updates = {}
  monkeypatch.setattr(jax.config, "update", updates.__setitem__)
  return updates


@pytest.mark.parametrize("variable", ["SPECDEC_T5X_CACHE", "XDG_CACHE_HOME"])
def test_programs_are_cached_in_the_user_s_cache_folder(
  variable, settings, monkeypatch, tmp_path
):
  for name in ("JAX_COMPILATION_CACHE_DIR", "SPECDEC_T5X_CACHE"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv(variable, str(tmp_path))
  kept_programs.keep_programs()
  assert settings["jax_compilation_cache_dir"].startswith(f"{tmp_path}/t5x_runtime/")


@pytest.mark.parametrize("folder", ["", "my/folder"])
def test_the_setting_of_jax_wins(settings, monkeypatch, folder):
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", folder)
  kept_programs.keep_programs()
  assert not settings


def test_without_a_home_a_warning_replaces_the_cache(settings, monkeypatch):
  for name in ("JAX_COMPILATION_CACHE_DIR", "SPECDEC_T5X_CACHE"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("XDG_CACHE_HOME", "~no_such_user/cache")
  with pytest.warns(UserWarning, match="set JAX_COMPILATION_CACHE_DIR to a folder"):
    kept_programs.keep_programs()
  assert not settings


@pytest.mark.parametrize("place", ["file", "file/folder", "/proc/folder"])
def test_a_cache_that_can_t_be_written_is_not_used(
  settings, monkeypatch, tmp_path, place
):
  (tmp_path / "file").write_text("")
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / place))
  with pytest.warns(UserWarning, match="Compiled programs are not kept"):
    kept_programs.keep_programs()
  assert not settings
