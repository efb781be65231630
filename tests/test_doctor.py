"""The doctor's judgements on facts, bad ones most of all, and one real run."""

import os
import pathlib
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.specifiers import SpecifierSet

from specdec_t5x.demo.recipe import PAIRS
from specdec_t5x.doctor import checks, facts
from specdec_t5x.doctor.__main__ import render
from specdec_t5x.doctor.checks import Finding
from specdec_t5x.doctor.facts import Device
from specdec_t5x.native import library

CPU, GPU = Device("cpu", "cpu"), Device("gpu", "NVIDIA H200", 139 * 2**30)


def problems(findings):
  return [finding for finding in findings if finding.problem]


def test_triton_beside_tensorflow_has_an_order_of_imports():
  assert not checks.triton(None)
  (finding,) = checks.triton("3.9.0")
  assert finding.problem is None
  assert "3.9.0, to be imported before TensorFlow" in finding.value


def test_an_old_python_is_a_problem():
  assert "expected 3.11 or newer" in checks.python((3, 10, 2)).problem
  assert not checks.python((3, 11, 0)).problem
  assert not checks.python((3, 14, 1)).problem


@pytest.mark.parametrize("version", ["0.9.2", "0.13.0"])
def test_a_version_out_of_range_is_a_problem(version):
  finding = checks.package("jax", version, SpecifierSet(">=0.10,<0.13"))
  assert f"jax is {version}, expected" in finding.problem
  assert finding.fix == "pip install 'jax<0.13,>=0.10'"


def test_versions_in_range_and_versions_nobody_limits_are_fine():
  wanted = SpecifierSet(">=0.10,<0.13")
  # A release candidate of an allowed release is one that somebody chose.
  for version in ("0.10.2", "0.11.0rc1"):
    assert not checks.package("jax", version, wanted).problem
  assert not checks.package("jaxlib", "0.1").problem


def test_a_missing_package_is_a_problem_unless_only_training_needs_it():
  assert checks.package("seqio", None).problem == "seqio is not installed"
  optax = checks.package("optax", None, SpecifierSet("<0.3"))
  assert not optax.problem
  assert optax.fix == "pip install 'optax<0.3', to train drafts"


def test_the_installed_project_is_the_one_that_runs():
  assert not checks.project("0.2.0", "0.2.0", "/here").problem
  stale = checks.project("0.2.0", "0.1.0", "/here")
  assert stale.problem == "specdec_t5x 0.2.0 runs, but 0.1.0 is installed"
  absent = checks.project("0.2.0", None, "/here")
  assert not absent.problem
  assert absent.fix.startswith("pip install -e .")


def test_one_t5x_is_fine_none_and_a_broken_one_are_problems():
  assert not problems(checks.t5x("upstream in /a", None, ["/a"]))
  (none,) = checks.t5x(None, None, [])
  assert none.problem == "there is no package t5x"
  assert "pip install ./t5x_runtime" in none.fix
  (broken,) = checks.t5x(None, "ImportError: no clu", ["/a"])
  assert broken.problem == "t5x can't be imported: ImportError: no clu"


def test_two_t5x_are_a_problem_even_if_the_active_one_works():
  found = checks.t5x("upstream in /a", None, ["/a", "/b"])
  assert [x.problem for x in problems(found)] == ["two packages t5x: /a and /b"]


def test_installed_t5x_counts_folders_once_and_distributions(tmp_path, monkeypatch):
  for name in ("one", "two"):
    (tmp_path / name / "t5x").mkdir(parents=True)
    (tmp_path / name / "t5x" / "__init__.py").touch()
  (tmp_path / "data" / "t5x").mkdir(parents=True)  # No package.
  (tmp_path / "link").symlink_to(tmp_path / "one")
  paths = [str(tmp_path / name) for name in ("one", "two", "data", "link", "none")]
  monkeypatch.setattr(facts, "version", {}.get)
  found = facts.installed_t5x(paths)
  assert found == [os.path.realpath(tmp_path / x / "t5x") for x in ("one", "two")]
  # One installed over the other: one folder.
  monkeypatch.setattr(facts, "version", dict.fromkeys(facts.PROVIDERS, "1.0").get)
  assert facts.installed_t5x(paths[:1]) == list(facts.PROVIDERS)


def test_an_accelerator_that_jax_does_not_see_is_a_problem():
  (unused,) = problems(checks.devices([CPU], None, ["cuda"]))
  assert unused.problem == "/dev/nvidia[0-9]* is there, but JAX sees a CPU only"
  assert "pip install -e '.[cuda]'" in unused.fix
  assert not problems(checks.devices([GPU], None, ["cuda"]))
  # Left alone on purpose.
  *_, chosen = checks.devices([CPU], None, ["cuda"], "cpu")
  assert not chosen.problem
  assert "unset JAX_PLATFORMS" in chosen.fix


def test_no_device_at_all_is_a_problem():
  (finding,) = checks.devices([], "RuntimeError: no backend", [], "cuda")
  assert finding.problem == "JAX finds no device: RuntimeError: no backend"
  assert "'cuda'" in finding.fix


def test_devices_are_counted_and_the_dtype_advised():
  gpus, dtype = checks.devices([GPU, GPU], None, ["cuda"])
  assert gpus == Finding("gpu", "2 x NVIDIA H200, 139.0 GiB each")
  assert "--gin.PARAM_DTYPE=\"'bfloat16'\"" in dtype.fix
  _, dtype = checks.devices([CPU], None, [])
  assert not dtype.fix


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
def test_a_broken_t5x_is_reported_and_not_taken_for_none(
  tmp_path, monkeypatch, capfd, code, why
):
  (tmp_path / "t5x").mkdir()
  noise = "import os; os.write(2, b'noise')"
  (tmp_path / "t5x" / "__init__.py").write_text(f"{noise}\n{code}\n")
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, "t5x", raising=False)
  active, error = facts.active_t5x()
  assert active is None
  assert error.startswith(why)
  assert capfd.readouterr().err == "noise"


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0", "0.11.2", "0.11.1.dev3"])
def test_a_jaxlib_reported_to_miscompile_on_cpu_is_a_hint(version):
  (finding,) = checks.fusions(version, {"cpu"})
  assert f"jaxlib {version} is reported to miscompile" in finding.value
  assert not finding.problem
  assert checks.NO_FUSIONS in finding.fix
  assert checks.fusions(version, {"gpu"}) == []


@pytest.mark.parametrize("version", [None, "0.10.1", "0.11.3", "0.12.0", "1.0.0"])
def test_another_jaxlib_is_not_mentioned(version):
  assert checks.fusions(version, {"cpu"}) == []


def test_products_are_native_or_the_report_says_why_not_and_what_to_do():
  native = checks.products(None, "/kept/kernels-1.so")
  assert native == Finding("products", "native: /kept/kernels-1.so")
  without = checks.products("they could not be built: no", None)
  assert "no native ones: they could not be built: no" in without.value
  assert not without.problem
  assert "install a C++ compiler" in without.fix
  several = checks.products("there are 8 devices", "/kept/a.so")
  assert "there are 8 devices" in several.value
  assert several.fix is None


def test_what_multiplies_rounded_weights_is_told():
  found = checks.rounded("AVX2")
  assert found == Finding("8, 4 bits", "native products, by AVX2")
  without = checks.rounded(None)
  assert without.problem is None
  assert "gain nothing on a CPU" in without.fix


def test_products_without_a_compiler_are_found_out_quietly(tmp_path, monkeypatch):
  monkeypatch.setenv("CXX", str(tmp_path / "no_compiler"))
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path))
  library.problem.cache_clear()
  reason, path = facts.native_products()
  library.problem.cache_clear()
  assert "no_compiler" in reason
  assert path is None


def test_without_a_home_the_report_says_which_folder_to_name(monkeypatch):
  for name in ("SPECDEC_T5X_CACHE", "JAX_COMPILATION_CACHE_DIR"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("XDG_CACHE_HOME", "~no_such_user/cache")
  library.problem.cache_clear()
  reason, path = facts.native_products()
  library.problem.cache_clear()
  assert "set SPECDEC_T5X_CACHE to a folder" in reason
  assert path is None
  assert facts.kept_folders() == {}


def test_what_is_kept_is_said_with_its_size(tmp_path, monkeypatch):
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "times"))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
  programs = pytest.importorskip("t5x.kept_programs").folder()  # Upstream has none.
  for folder, size in ((tmp_path / "times", 5), (programs, 3 * 2**19)):
    folder.mkdir(parents=True)
    (folder / "kept").write_bytes(bytes(size))
  assert facts.kept_folders() == {str(tmp_path / "times"): 5, str(programs): 3 * 2**19}
  _, finding = checks.kept(facts.kept_folders())
  assert finding.value.startswith(f"1.5 MiB in {programs}")
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # As JAX has it: nothing is kept.
  assert list(facts.kept_folders()) == [str(tmp_path / "times")]


def test_a_demo_pair_that_lacks_parts_is_a_hint(tmp_path):
  pair = PAIRS["ende"]
  missing = pair.missing(str(tmp_path))
  finding = checks.demo(pair, missing)
  assert not finding.problem
  assert f"`{pair.command}`" in finding.fix
  assert pair.target.checkpoint in finding.value
  assert checks.demo(pair, []) == Finding("ende", "complete")


def test_the_report_ends_with_the_problems():
  bad = Finding("jax", "0.1", "jax is 0.1", "pip install jax")
  hint = Finding("ende", "lacks a/b", fix="make demo")
  lines = render({"packages": [bad], "demo": [hint], "t5x": [Finding("t", "x")]})
  assert lines[:3] == ["packages", "  jax   0.1", ""]
  assert lines[-2:] == [
    "hint: ende -> make demo",
    "problem: jax is 0.1 -> pip install jax",
  ]
  assert render({"t5x": [Finding("t", "x")]})[-1] == "no problem found"


def test_long_values_stay_within_the_line_with_whole_paths():
  paths = [f"runs/demo/ende/part-{i}" + "x" * 20 for i in range(5)]
  lines = render({"demo": [Finding("ende", f"lacks {', '.join(paths)}")]})
  assert max(map(len, lines)) <= 88
  assert all(any(path in line for line in lines) for path in paths)


def test_the_command_runs_from_any_directory_and_is_quiet(tmp_path):
  root = str(pathlib.Path(__file__).parents[1])
  paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
  process = subprocess.run(
    [sys.executable, "-m", "specdec_t5x.doctor"],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.stderr == ""
  found = [x for x in process.stdout.splitlines() if x.startswith("problem: ")]
  assert process.returncode == bool(found), process.stdout
  assert f"demo pairs in {tmp_path}" in process.stdout
  names = ["python", "tensorflow-datasets", "active", "cpu", "cnndm"]
  if checks.fusions(metadata.version("jaxlib"), {"cpu"}):
    names.append("fusions")
  for name in names:
    assert f"\n  {name} " in process.stdout
