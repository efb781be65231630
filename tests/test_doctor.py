"""The doctor's findings on good and bad facts, and a real run."""

import os
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.specifiers import SpecifierSet

from specdec_t5x.doctor import checks, facts
from specdec_t5x.doctor.__main__ import render
from specdec_t5x.doctor.checks import Finding
from specdec_t5x.doctor.facts import Device
from specdec_t5x.native import library
from tests.real_data import ROOT

CPU, GPU = Device("cpu", "cpu"), Device("gpu", "NVIDIA H200", 139 * 2**30)


WANTED = SpecifierSet(">=0.10,<0.13")
JAX = "pip install 'jax<0.13,>=0.10'"
SEEN = "/dev/nvidia[0-9]* is there, but JAX sees a CPU only"


@pytest.mark.parametrize(
  ("findings", "problem", "fix"),
  [
    ([checks.python((3, 10, 2))], "Python is 3.10.2, expected 3.11 or newer", "3.11"),
    ([checks.package("jax", "0.9.2", WANTED)], "jax is 0.9.2, expected <0.13", JAX),
    ([checks.package("jax", "0.13.0", WANTED)], "jax is 0.13.0, expected <0.13", JAX),
    ([checks.package("seqio", None)], "seqio is not installed", "pip install"),
    (
      [checks.project("0.2.0", "0.1.0", "/here")],
      "specdec_t5x 0.2.0 runs, but 0.1.0 is installed",
      "pip install -e .",
    ),
    (checks.t5x(None, None, []), "there is no package t5x", "install ./t5x_runtime"),
    (
      checks.t5x(None, "ImportError: no clu", ["/a"]),
      "t5x can't be imported: ImportError: no clu",
      "docs/t5x_contract.md",
    ),
    # Even if the active package works.
    (
      checks.t5x("upstream in /a", None, ["/a", "/b"]),
      "two packages t5x: /a and /b",
      "keep one package",
    ),
    (checks.devices([CPU], None, ["cuda"]), SEEN, "pip install -e '.[cuda]'"),
    (
      checks.devices([], "RuntimeError: no backend", [], "cuda"),
      "JAX finds no device: RuntimeError: no backend",
      "'cuda'",
    ),
  ],
  ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_problem_has_a_fix(findings, problem, fix):
  (finding,) = (each for each in findings if each.problem)
  assert finding.problem.startswith(problem)
  assert fix in finding.fix


@pytest.mark.parametrize(
  ("findings", "value", "fix"),
  [
    ([checks.python((3, 11, 0))], "3.11.0", None),
    ([checks.python((3, 14, 1))], "3.14.1", None),
    # A user has chosen a release candidate of an allowed release.
    ([checks.package("jax", "0.11.0rc1", WANTED)], "0.11.0rc1 ", None),
    ([checks.package("jax", "0.10.2", WANTED)], "0.10.2 ", None),
    ([checks.package("jaxlib", "0.1")], "0.1", None),
    # Only training needs optax.
    (
      [checks.package("optax", None, SpecifierSet("<0.3"))],
      "not installed",
      "pip install 'optax<0.3', to train drafts",
    ),
    ([checks.project("0.2.0", "0.2.0", "/here")], "0.2.0 in /here", None),
    ([checks.project("0.2.0", None, "/here")], "not installed", "pip install -e ."),
    (checks.t5x("upstream in /a", None, ["/a"]), "upstream in /a", None),
    (checks.triton("3.9.0"), "3.9.0, to be imported before TensorFlow", None),
    (checks.devices([GPU], None, ["cuda"]), "float32", "PARAM_DTYPE=\"'bfloat16'\""),
    (checks.devices([CPU], None, []), "right on a CPU", None),
    # JAX_PLATFORMS was set on purpose.
    (checks.devices([CPU], None, ["cuda"], "cpu"), SEEN, "unset JAX_PLATFORMS"),
    ([checks.products(None, "/kept/kernels-1.so")], "native: /kept/kernels-1.so", None),
    (
      [checks.products("the build failed: no", None)],
      "native products are missing: the build failed: no",
      "install a C++ compiler",
    ),
    ([checks.products("there are 8 devices", "/a.so")], "there are 8 devices", None),
    ([checks.rounded("AVX2")], "native products, by AVX2", None),
    ([checks.rounded(None)], "as float32", "gain nothing on a CPU"),
    *(
      (checks.fusions(version, {"cpu"}), f"jaxlib {version} is rep", checks.NO_FUSIONS)
      for version in ("0.10.2", "0.11.0", "0.11.2", "0.11.1.dev3")
    ),
    (
      checks.devices([GPU, GPU], None, [])[:1],
      "2 x NVIDIA H200, 139.0 GiB each",
      None,
    ),
  ],
  ids=lambda part: part if isinstance(part, str) else "",
)
def test_good_facts_are_no_problem_and_may_have_a_hint(findings, value, fix):
  assert not any(each.problem for each in findings)
  assert value in findings[-1].value
  assert (fix is None) == (findings[-1].fix is None)
  assert fix is None or fix in findings[-1].fix


def test_absent_packages_are_not_mentioned():
  assert checks.triton(None) == checks.fusions("0.11.0", {"gpu"}) == []
  for version in (None, "0.10.1", "0.11.3", "0.12.0", "1.0.0"):
    assert checks.fusions(version, {"cpu"}) == []


def test_installed_t5x_counts_folders_once_and_distributions(tmp_path, monkeypatch):
  for name in ("one", "two"):
    (tmp_path / name / "t5x").mkdir(parents=True)
    (tmp_path / name / "t5x" / "__init__.py").touch()
  (tmp_path / "data" / "t5x").mkdir(parents=True)  # Not a package.
  (tmp_path / "link").symlink_to(tmp_path / "one")
  paths = [str(tmp_path / name) for name in ("one", "two", "data", "link", "none")]
  monkeypatch.setattr(facts, "version", {}.get)
  found = facts.installed_t5x(paths)
  assert found == [os.path.realpath(tmp_path / x / "t5x") for x in ("one", "two")]
  # Two distributions may be installed into a single folder.
  monkeypatch.setattr(facts, "version", dict.fromkeys(facts.PROVIDERS, "1.0").get)
  assert facts.installed_t5x(paths[:1]) == list(facts.PROVIDERS)


@pytest.mark.parametrize("error", [ImportError("no ELF"), AssertionError(), OSError()])
def test_a_broken_jax_is_reported(monkeypatch, error):
  def fail(name):
    raise error

  monkeypatch.setattr(facts.importlib, "import_module", fail)
  devices, why = facts.jax_devices()
  assert devices == []
  assert why.startswith(type(error).__name__)


@pytest.mark.parametrize(
  ("code", "why"),
  [
    ("import clu_that_is_not_there", "ModuleNotFoundError: No module named 'clu_that"),
    ("raise TypeError('Descriptors cannot\\nbe created')", "TypeError: Descriptors ca"),
  ],
)
def test_a_broken_t5x_is_not_treated_as_absent(tmp_path, monkeypatch, capfd, code, why):
  (tmp_path / "t5x").mkdir()
  noise = "import os; os.write(2, b'noise')"
  (tmp_path / "t5x" / "__init__.py").write_text(f"{noise}\n{code}\n")
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, "t5x", raising=False)
  active, error = facts.active_t5x()
  assert active is None
  assert error.startswith(why)
  assert capfd.readouterr().err == "noise"


@pytest.fixture
def products(monkeypatch):
  """Yields the report on products, with nothing kept from before or for later."""
  for name in ("SPECDEC_T5X_CACHE", "JAX_COMPILATION_CACHE_DIR"):
    monkeypatch.delenv(name, raising=False)
  library.problem.cache_clear()
  yield facts.native_products
  library.problem.cache_clear()


def test_a_missing_compiler_is_found_quietly(products, tmp_path, monkeypatch):
  monkeypatch.setenv("CXX", str(tmp_path / "no_compiler"))
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path))
  reason, path = products()
  assert "no_compiler" in reason
  assert path is None


def test_without_a_home_the_report_names_the_folder_to_set(products, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", "~no_such_user/cache")
  reason, path = products()
  assert "set SPECDEC_T5X_CACHE to a folder" in reason
  assert path is None
  assert facts.kept_folders() == {}


def test_kept_folders_are_reported_with_sizes(tmp_path, monkeypatch):
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "times"))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
  # Upstream T5X has no such module.
  programs = pytest.importorskip("t5x.kept_programs").folder()
  for folder, size in ((tmp_path / "times", 5), (programs, 3 * 2**19)):
    folder.mkdir(parents=True)
    (folder / "kept").write_bytes(bytes(size))
  assert facts.kept_folders() == {str(tmp_path / "times"): 5, str(programs): 3 * 2**19}
  _, finding = checks.kept(facts.kept_folders())
  assert finding.value.startswith(f"1.5 MiB in {programs}")
  # With an empty folder name, JAX keeps nothing.
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
  assert list(facts.kept_folders()) == [str(tmp_path / "times")]


def test_the_report_ends_with_the_problems():
  bad = Finding("jax", "0.1", "jax is 0.1", "pip install jax")
  hint = Finding("cpu", "4-bit", fix="install clang")
  lines = render({"packages": [bad], "devices": [hint], "t5x": [Finding("t", "x")]})
  assert lines[:3] == ["packages", "  jax   0.1", ""]
  assert lines[-2:] == [
    "hint: cpu -> install clang",
    "problem: jax is 0.1 -> pip install jax",
  ]
  assert render({"t5x": [Finding("t", "x")]})[-1] == "no problem found"


def test_long_values_stay_within_the_line_with_complete_paths():
  paths = [f"runs/kept/part-{i}" + "x" * 20 for i in range(5)]
  lines = render({"kept": [Finding("kept", f"lacks {', '.join(paths)}")]})
  assert max(map(len, lines)) <= 88
  assert all(any(path in line for line in lines) for path in paths)


def test_the_command_runs_from_any_directory_and_is_quiet(tmp_path):
  paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
  process = subprocess.run(
    [sys.executable, "-m", "specdec_t5x.doctor"],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.stderr == ""
  found = [x for x in process.stdout.splitlines() if x.startswith("problem: ")]
  assert process.returncode == bool(found), process.stdout
  names = ["python", "tensorflow-datasets", "active", "cpu", "products"]
  names.append("8, 4 bits")
  if checks.fusions(metadata.version("jaxlib"), {"cpu"}):
    names.append("fusions")
  for name in names:
    assert f"\n  {name} " in process.stdout
