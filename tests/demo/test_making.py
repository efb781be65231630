"""Making the demo's networks, with runs of two steps."""

import pathlib

import pytest

from benchmarks import infer
from specdec_t5x.demo import making, recipe

TWO_STEPS = pathlib.Path(__file__).with_name("two_steps.gin").read_text()


def part(directory, checkpoint):
  gin_file = directory / "two_steps.gin"
  gin_file.write_text(TWO_STEPS.replace("HERE", str(directory)))
  return recipe.Part("two", "two steps", str(gin_file), str(directory / checkpoint), 0)


def test_a_part_is_trained_into_the_recipe_s_folder(tmp_path):
  vocabulary = tmp_path / "vocabulary.model"
  making.demo_vocabulary(str(vocabulary), 2_000)
  with pytest.raises(ValueError, match="checkpoint_3 does not exist"):
    making.make_part(part(tmp_path, "checkpoint_3"))
  assert (tmp_path / "checkpoint_2").is_dir()


def test_a_failing_command_shows_the_end_of_its_log(tmp_path):
  log = tmp_path / "logs" / "run.log"
  with pytest.raises(ValueError, match=r"nowhere\.gin"):
    infer.run(["--gin_file=nowhere.gin"], str(tmp_path / "logs" / "run"))
  assert "nowhere.gin" in log.read_text()


def test_describe_writes_the_inputs_of_a_pair(tmp_path, monkeypatch, capsys):
  from benchmarks import jobs
  from benchmarks.command import Command
  from specdec_t5x.demo import held_out

  monkeypatch.setattr(jobs, "DIRECTORY", str(tmp_path))
  monkeypatch.setattr(making, "_TEXTS", 20)
  for pair in recipe.PAIRS.values():
    making.describe(pair, str(tmp_path))
    texts = (tmp_path / pair.name / "inputs.txt").read_text().splitlines()
    assert texts == [text for text, _ in held_out.held_out_texts(pair.name, 20)]
  # Networks trained in the working directory must not affect the test.
  monkeypatch.chdir(tmp_path)
  parser = Command("", None, jobs.PAIRS, {"tables": True}, "out").parser()
  (job,) = jobs.from_flags(parser.parse_args(["--tasks", "ende"]))
  assert job.target == recipe.ENDE.target.path
  drafts = [part.path for part in recipe.ENDE.drafts]
  assert list(job.drafts.values()) == [*drafts, "copy"]
  (counted,) = recipe.ENDE.tables
  expected = f"No {counted.checkpoint}: `{counted.command}` makes it."
  assert expected in capsys.readouterr().err
  assert job.vocabulary == recipe.ENDE.vocabulary
  ((name, path),) = job.also.items()
  news = pathlib.Path(path).read_text().splitlines()
  assert name == "news (out of domain)"
  assert all(text.startswith("translate English to German: ") for text in news)
