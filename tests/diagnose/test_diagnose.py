"""`python -m specdec_t5x.diagnose` on a correct tiny pair and with planted bugs."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import api
from specdec_t5x.core import greedy
from specdec_t5x.core.greedy import Greedy
from specdec_t5x.core.types import Verdict
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.diagnose import __main__ as diagnose
from specdec_t5x.diagnose import divergence, precision
from specdec_t5x.diagnose.divergence import Difference, Report, Spread
from tests import near_ties
from tests.t5x_bridge import tiny

FLAGS = ("--gamma=3", "--max_length=10", "--batch_size=4")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """Returns the paths of a pair, a vocabulary and five lines of text by flag."""
  root = tmp_path_factory.mktemp("diagnose")
  text = root / "lines.txt"
  text.write_text("\n".join(tiny.sentences(5, seed=4)))
  return {**tiny.save_pair(root, tiny.config(1, 16)), "input": str(text)}


def run(files, *flags):
  return diagnose.main(
    [*(f"--{name}={path}" for name, path in files.items()), *FLAGS, *flags]
  )


def test_equal_bits_are_reported(files, tmp_path, capsys):
  path = tmp_path / "report.json"
  assert run(files, "--strict", "--dtypes=bfloat16", f"--json={path}") == 0
  printed = capsys.readouterr().out
  assert "bfloat16: 0 of 5 outputs differ: 0 ties, 0 DIFFERENT" in printed
  assert "-> Nothing to do." in printed
  document = json.loads(path.read_text())
  assert document["settings"]["gamma"] == 3
  (report,) = document["dtypes"].values()
  assert report["identical"] == report["positions"] > 5
  assert report["distance"]["largest"] == 0


TIE = Difference(
  *(2, 4, (5, 6), ((9.0, 8.9), (8.9, 9.0), (9.0, 9.0)), (0.1, 0.1), 0.2, 0.3),
  *("tie", "both tokens are best up to rounding"),
)
BUG = dataclasses.replace(TIE, example=3, verdict="DIFFERENT", reason="a bug")
CLEAN = Report(5, 40, 0, Spread(0.1, 0.2), Spread(0.1, 0.2), 0.01, 3, 0, ())


@pytest.mark.parametrize(
  ("flags", "changes", "status", "advice"),
  [
    ([], {}, 0, "Nothing to do."),
    ([], {"differences": (TIE,)}, 0, "The differences are rounding, not a bug"),
    (["--strict"], {"differences": (TIE,)}, 0, "the machine does not compute"),
    ([], {"differences": (TIE, BUG)}, 1, "Rounding does not explain the differences"),
    ([], {"beyond": 2}, 0, "other inputs will show the bug"),
    ([], {"not_numbers": (3,)}, 1, "logits are NaN or infinite"),
  ],
)
def test_every_dtype_has_a_verdict_and_advice(
  files, monkeypatch, capsys, flags, changes, status, advice
):
  reports = {
    "float32": dataclasses.replace(CLEAN, identical=40),
    "bfloat16": dataclasses.replace(CLEAN, **changes),
  }
  monkeypatch.setattr(diagnose, "_compare", lambda *args: reports[args[-1]])
  assert run(files, "--dtypes", "float32", "bfloat16", *flags) == status
  first, second = capsys.readouterr().out.split("\n\nbfloat16: ")
  assert first.startswith("float32: 0 of 5 outputs differ")
  assert first.endswith("-> Nothing to do.")
  assert advice in " ".join(second.split())
  assert ("  3     5         " in second) == ("differences" in changes)
  has_bug = BUG in changes.get("differences", ())
  assert ("DIFFERENT: line 4: a bug" in second) == has_bug
  assert ("the logits of 1 examples, line 4" in second) == ("not_numbers" in changes)


def test_a_model_of_nan_fails(files, monkeypatch, capsys):
  def load(path, dtype):
    model = real_load(path, dtype)
    if path != files["target"]:
      return model
    params = jax.tree.map(lambda x: np.full_like(x, np.nan), model.params)
    return api.Model(model.network, params)

  real_load = api.load_model
  monkeypatch.setattr(api, "load_model", load)
  assert run(files) == 1
  printed = capsys.readouterr().out
  assert "the logits of 5 examples, line 1 first" in printed
  assert "Nothing to do" not in printed


@pytest.mark.parametrize(("setting", "bits"), [(None, 23), ("tensorfloat32", 10)])
def test_the_rounding_limit_is_the_products_epsilon(files, monkeypatch, setting, bits):
  epsilons = []

  def recorded(*args):
    epsilons.append(args[-1])
    return diagnose_outputs(*args)

  def on_gpu(setting, *device):
    return real_precision(setting, "gpu", "8.0")

  diagnose_outputs, real_precision = divergence.diagnose, precision.product_precision
  monkeypatch.setattr(divergence, "diagnose", recorded)
  monkeypatch.setattr(precision, "product_precision", on_gpu)
  # Without a setting, products keep all digits.
  with jax.default_matmul_precision(setting):
    assert run(files, "--dtypes=float32") == 0
  assert epsilons == [2.0**-bits]


class Gullible(Greedy):
  """A rule with a planted bug: every drafted token is accepted."""

  def verify(self, target_probs, proposal, uniforms):
    verdict = super().verify(target_probs, proposal, uniforms)
    return Verdict(proposal.num_valid, verdict.next_token)


def test_a_gullible_rule_is_different(files, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(greedy, "Greedy", Gullible)
  path = tmp_path / "report.json"
  assert run(files, f"--json={path}") == 1
  printed = capsys.readouterr().out
  assert (
    "the speculative run's token is not the best token of the run's logits" in printed
  )
  assert "-> Rounding does not explain the differences" in printed
  (report,) = json.loads(path.read_text())["dtypes"].values()
  assert report["bugs"] == len(report["differences"]) > 0
  difference = report["differences"][0]
  assert difference["text"] in pathlib.Path(files["input"]).read_text()
  assert len(difference["pieces"]) == len(difference["tokens"]) == 2
  assert difference["verdict"] == "DIFFERENT"


def corrupted(prepare):
  """Wraps `prepare` to negate the first token's values in one layer."""

  def prepare_corrupted(*args):
    spec, state = prepare(*args)
    target = spec.context.target

    def extend(cache, tokens, *tree):
      def forget(buffer):
        return buffer.at[:, :, 0].multiply(jnp.float32(-1.0))

      is_later = (cache.index > 0)[:, None, None, None]
      values = jnp.where(is_later, forget(cache.values[0]), cache.values[0])
      cache = cache.replace(values=(values, *cache.values[1:]))
      return target.extend(cache, tokens, *tree)

    corrupted_target = dataclasses.replace(target, extend=extend)
    context = dataclasses.replace(spec.context, target=corrupted_target)
    return dataclasses.replace(spec, context=context), state

  return prepare_corrupted


def test_a_corrupted_cache_is_different(files, monkeypatch, capsys):
  monkeypatch.setattr(
    SpeculativeDecoder, "prepare", corrupted(SpeculativeDecoder.prepare)
  )
  assert run(files) == 1
  assert "the runs' logits differ by more than rounding" in capsys.readouterr().out


def test_near_ties_are_ties(files, monkeypatch, capsys):
  network, params = near_ties.target("float32")
  twin = api.Model(network, params)
  _, both = near_ties.pair("float32", gamma=3)
  draft = api.Model(network, both["draft"])

  def load(path, dtype):
    return twin if path == files["target"] else draft

  monkeypatch.setattr(api, "load_model", load)
  assert run(files, "--max_length=30") == 0
  printed = capsys.readouterr().out
  assert " 0 DIFFERENT" in printed
  assert "  tie\n" in printed
  assert "-> The differences are rounding, not a bug" in printed
  # Even these outputs are equal in blocks of equal shape:
  # tests/decoding/test_baseline.py.


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--target=nowhere"], "--target: 'nowhere' does not exist. Give a file"),
    (
      ["--json=nowhere/a.json"],
      "--json: the folder of 'nowhere/a.json' does",
    ),
    (["--gamma=0"], "gamma must be at least 1"),
    (["--examples=0"], "--examples must be at least 1"),
    (["--dtypes", "float64"], "invalid choice: 'float64'"),
  ],
)
def test_bad_input_is_one_line_and_status_2(files, flags, message, capsys):
  with pytest.raises(SystemExit) as stopped:
    run(files, *flags)
  assert stopped.value.code == 2
  captured = capsys.readouterr()
  last = captured.err.splitlines()[-1]
  assert message in last
  assert last.startswith("python -m specdec_t5x.diagnose: error: ")
  assert captured.out == ""


def test_the_demo_s_lines_are_the_default():
  args = diagnose._parser().parse_args(["--examples=3"])
  texts = diagnose._texts(args)
  assert len(texts) == 3
  assert all(text.startswith("translate English to German: ") for text in texts)
  args = diagnose._parser().parse_args(["--examples=501"])
  with pytest.raises(ValueError, match="has 500 lines"):
    diagnose._texts(args)
