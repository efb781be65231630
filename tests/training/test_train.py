"""Training runs learn, resume bit for bit, and write checkpoints that decode."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

import specdec_t5x
from lab.peers import hf_folder
from specdec_t5x.data import tasks
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge.restore import T5XParameters
from specdec_t5x.training import batches, checkpoints, jobs, trainer
from tests.training.conftest import (
  NETWORK,
  STEPS,
  assert_same,
  drafted,
  dying,
  lines,
  logged,
  params_of,
  run,
  saved,
)

pytestmark = pytest.mark.slow


def test_the_loss_falls_and_everything_is_logged(learned):
  loss = {x["step"]: x["loss"] for x in lines(learned) if "loss" in x}
  assert list(loss) == list(range(4, STEPS + 1, 4))
  assert loss[STEPS] < 0.85 * loss[4]
  first, last = logged(learned, "validation_loss")
  assert last < first
  (bleu,) = logged(learned, "bleu")
  assert 0 <= bleu <= 100


def test_the_checkpoint_loads_and_decodes(checkpoint, copy_files):
  config = specdec_t5x.load_model(checkpoint).network.config
  assert dataclasses.replace(config, dropout_rate=0.1) == NETWORK
  # A network that drafts for itself is always accepted.
  outputs = drafted(copy_files, checkpoint, checkpoint, gamma=3)
  assert all(o.accepted == o.drafted > 0 for o in outputs if len(o.tokens) > 1)


def test_a_killed_run_resumes_bit_for_bit_from_the_last_complete_step(data, tmp_path):
  store = T5XParameters(Transformer(NETWORK), str(tmp_path))

  def steps():
    return checkpoints.Checkpoints(str(tmp_path), store).steps()

  def train():
    return run(data, tmp_path, 6, loop={"log_period": 1}, keep=2)

  straight = train()
  losses = logged(tmp_path, "loss")
  left = {p.name for p in tmp_path.iterdir() if p.is_dir()}
  assert left == {"checkpoint_4", "optimizer_4", "checkpoint_6", "optimizer_6"}
  saved = specdec_t5x.load_model(str(tmp_path / "checkpoint_6")).params
  assert_same(straight.params, saved.unfreeze())
  # Leftovers of a kill between the two parts, and in the middle of a part.
  (tmp_path / "checkpoint_6").rename(tmp_path / "checkpoint_6.tmp-partial")
  (tmp_path / "optimizer_8.orbax-checkpoint-tmp-1").mkdir()
  (tmp_path / "optimizer_8").mkdir()
  assert steps() == [4]
  resumed = train()
  assert_same(straight.params, resumed.params)
  assert_same(straight.opt_state, resumed.opt_state)
  assert logged(tmp_path, "loss") == losses
  assert len(losses) == 6
  assert steps() == [4, 6]
  # Parameters without an optimizer state, left by an earlier run, are replaced.
  for child in (tmp_path / "optimizer_6").rglob("*"):
    if child.is_file():
      child.unlink()
  (tmp_path / "optimizer_6").rename(tmp_path / "elsewhere")
  assert_same(straight.params, train().params)


def test_sequence_distillation_data_are_the_target_s_outputs(
  data, checkpoint, copy_files, tmp_path, monkeypatch
):
  """The first run is killed, and finished batches are kept."""
  file = str(tmp_path / "decoded.jsonl")

  def decode(limit=40):
    return jobs.decode_task(data, checkpoint, file, "few", limit=limit)

  numbers = dying(monkeypatch, after=20)
  with pytest.raises(KeyboardInterrupt):
    decode()
  assert not pathlib.Path(file).exists()
  assert sum(decode(2).values()) == 2  # A run with other settings has other outputs.
  counts = decode()
  assert len(numbers) < 40 + 2 + 40
  assert counts["written"] + counts["unfinished"] == 40
  records = [json.loads(x) for x in pathlib.Path(file).read_text().splitlines()]
  assert len(records) == counts["written"] > 0
  model = specdec_t5x.load_model(checkpoint)
  inputs = [r["inputs"] for r in records]
  path = copy_files[0].sentencepiece_model_file
  expected = specdec_t5x.generate(inputs, model, None, path, max_length=64)
  assert [r["targets"] for r in records] == [o.text for o in expected]
  name = tasks.from_records("decoded", {"train": file}, vocabulary=copy_files[0])
  batch, _ = next(batches.train_batches(dataclasses.replace(data, task=name)))
  assert "encoder_input_tokens" in batch


@pytest.mark.parametrize("ends", [[5], [1, 9, 7]])
def test_sequence_distillation_uses_the_end_ids_of_the_target_s_folder(
  ends, data, checkpoint, copy_files, tmp_path
):
  model = specdec_t5x.load_model(checkpoint)
  folder = tmp_path / "theirs"
  hf_folder.write(str(folder), model.network.config, model.params)
  (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
  file = tmp_path / "decoded.jsonl"
  jobs.decode_task(data, str(folder), str(file), "validation", limit=8)
  records = [json.loads(line) for line in file.read_text().splitlines()]
  outputs = specdec_t5x.generate(
    [record["inputs"] for record in records],
    specdec_t5x.load_model(str(folder)),
    None,
    copy_files[0].sentencepiece_model_file,
    max_length=64,
  )
  assert records
  assert [record["targets"] for record in records] == [x.text for x in outputs]
  assert all(output.tokens[-1] in ends for output in outputs)
  (folder / "generation_config.json").write_text(json.dumps({"min_length": 3}))
  with pytest.raises(ValueError, match="sets min_length=3"):
    jobs.decode_task(data, str(folder), str(file), "validation", limit=8)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"mode": "distill_tokens"}, "needs TARGET_CHECKPOINT_PATH"),
    ({"target_checkpoint": "t"}, "'supervised' takes no target"),
    ({"network": dataclasses.replace(NETWORK, vocab_size=16)}, "vocab_size is 16"),
    ({"keep": -1}, "KEEP must be"),
  ],
)
def test_bad_settings_are_refused(data, tmp_path, settings, message):
  with pytest.raises(ValueError, match=message):
    run(data, tmp_path, **{"steps": 1, **settings})


def test_an_output_folder_of_a_different_run_is_refused(data, learned, tmp_path):
  with pytest.raises(ValueError, match=r"other settings \(seed differ\)"):
    run(data, learned, STEPS + 1, seed=5)
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match=r"OUTPUT_DIR=.*can't be written"):
    run(data, tmp_path / "file" / "under", 1)
  with pytest.raises(ValueError, match=r"^OUTPUT_DIR=.*can't be written"):
    checkpoints.new_checkpoint(str(tmp_path / "file" / "under"))
  network = Transformer(NETWORK)
  saved(network, tmp_path / "alone", params_of(network))
  with pytest.raises(ValueError, match="checkpoint_1 but no optimizer state"):
    run(data, tmp_path / "alone", 1)


@pytest.mark.parametrize(
  "accuracies", [[0.5, 0.6, 0.6, 0.4, 0.3], [0.5, 0.4, 0.3, 0.2]]
)
def test_a_run_ends_when_the_accuracy_stops_rising(
  accuracies, data, tmp_path, monkeypatch
):
  """The best of the measurements, the first of them before training, is the result."""
  best = 2 * int(np.argmax(accuracies))
  left = iter(accuracies)

  def measured(*_):
    return {"loss": 0.0, "correct": next(left), "tokens": 1.0}

  monkeypatch.setattr(trainer.state_lib, "make_eval_step", lambda *_: measured)
  loop = {"validation_period": 2, "validation_batches": 1, "patience": 3}
  state = run(data, tmp_path, 100, loop=loop, keep=1)
  assert not list(left)
  assert state.step == best
  again = run(data, tmp_path, 100, loop=loop, keep=1)
  assert_same(state.params, again.params)
  assert logged(tmp_path, "validation_accuracy") == accuracies


def test_a_diverged_run_stops_before_its_checkpoint(data, tmp_path, monkeypatch):
  info = {"loss": np.float32("nan"), "grad_norm": np.float32(1)}
  make = trainer.state_lib.make_train_step

  def broken(*args):
    step = make(*args)
    return lambda *inputs: (step(*inputs)[0], info)

  monkeypatch.setattr(trainer.state_lib, "make_train_step", broken)
  with pytest.raises(FloatingPointError, match="diverged: at step 1"):
    run(data, tmp_path, 1)
  assert not list(tmp_path.glob("checkpoint_*"))
