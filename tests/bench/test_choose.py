"""The gin file that says how long drafts shall be."""

import gin
import pytest

from specdec_t5x.bench import choose, jobs
from tests.bench.test_costs import COSTS

pytestmark = pytest.mark.usefixtures("steady_parts")


@pytest.fixture(autouse=True)
def own_gin():
  gin.clear_config()
  yield
  gin.clear_config()


def macro(name):
  return gin.query_parameter(f"{name}/macro.value")


def write(pair_flags, path, *flags):
  settings = ["--gammas", "1", "3", f"--output={path}", *flags]
  return choose.COMMAND.main([*pair_flags, *settings])


def test_the_file_has_the_gamma_that_is_predicted_best(
  pair_flags, tmp_path, monkeypatch, capsys
):
  found = []
  found_by = choose.choose
  monkeypatch.setattr(
    choose, "choose", lambda *args: found.append(found_by(*args)) or found[0]
  )
  path = tmp_path / "new" / "gamma.gin"
  assert write(pair_flags, path) == 0
  (chosen,) = found
  best = max((1, 3), key=lambda gamma: chosen.predicted[gamma])
  gin.parse_config_file(str(path))
  assert macro("GAMMA") == chosen.gamma == best
  assert macro("GAMMA_POLICY") == "fixed"
  costs, alpha = chosen.costs[best], chosen.alpha
  predicted = costs.call_improvement(alpha, chosen.tokens)
  assert chosen.predicted[best] == pytest.approx(predicted)
  assert f"| {best} (best) |" in capsys.readouterr().out


def test_the_best_is_the_argmax():
  chosen = choose.Choice(None, 20.0, {}, {1: 1.2, 4: 1.7, 7: 1.5})
  assert chosen.gamma == 4


def test_a_pair_that_does_not_pay_is_said(files, pair_flags):
  study = _study(pair_flags)
  by_gamma = {1: COSTS, 3: COSTS}
  chosen = choose.Choice(0.1, 9.0, by_gamma, {1: 0.8, 3: 0.6})
  text = choose.gin_lines(chosen, study, study.drafts[0], 0.0)
  assert "No gamma is predicted to pay" in text
  gin.parse_config(text)
  assert macro("GAMMA") == 1


def _study(pair_flags):
  args = choose.COMMAND.parser().parse_args([*pair_flags, "--output=x"])
  return jobs.load(args)
