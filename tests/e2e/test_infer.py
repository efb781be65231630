"""The commands with our gin files, on generated checkpoints."""

import re
import runpy
import socket
import subprocess
import sys

import flax
import numpy as np
import pytest

from scripts import show_run
from tests import processes
from tests.contract.conftest import runtime_only
from tests.e2e import runs
from tests.t5x_bridge import tiny


def free_port():
  with socket.socket() as server:
    server.bind(("localhost", 0))
    return server.getsockname()[1]


@pytest.mark.slow
def test_speculation_writes_the_plain_model_s_tokens(infer, speculative, tmp_path):
  infer(tmp_path, config="baseline_ende")
  assert runs.tokens(speculative) == runs.tokens(tmp_path)
  assert len(runs.tokens(speculative)) == runs.EXAMPLES
  summary = runs.summary(tmp_path)
  assert summary["statistics"]["tokens_per_target_call"]["value"] == 1
  assert summary["decoder"]["kind"] == "Decoder"


@runtime_only
@pytest.mark.slow
def test_overflowing_logits_end_the_run_and_name_the_example(infer, tmp_path):
  """tests/test_api.py has the cases of samples and of the rules."""
  params = flax.core.unfreeze(tiny.drawn(tiny.TARGET))
  head = params["decoder"]["logits_dense"]
  head["kernel"] = np.where(head["kernel"] > 0, 3e38, -3e38).astype(np.float32)
  bad = {"TARGET_CHECKPOINT_PATH": tiny.save(tmp_path, tiny.TARGET, params)}
  with pytest.raises(SystemExit) as exit_:
    infer(tmp_path / "out", config="baseline_ende", **bad)
  assert re.search("Example 0 of chunk00000, {.*}: expected numbers", exit_.value.code)
  assert not list((tmp_path / "out").glob("*.jsonl-*"))


@pytest.mark.slow
def test_coupled_samples_equal_the_baseline_s_in_any_batch(infer, pair, tmp_path):
  """Samples at different places differ, even for equal lines."""
  text, same = tmp_path / "text.en", tmp_path / "same.gin"
  text.write_text("the dog sees the cat\n" * 11)
  same.write_text(runs.translation("same", text, pair[0].parent / "tiny.model"))
  sampled = {"TEMPERATURE": 1.0, "NUM_DECODES": 2}
  infer(tmp_path / "plain", same, config="baseline_ende", COUPLED=True, **sampled)
  pieces = {"infer.num_shards": 2, "infer.checkpoint_period": 1, "BATCH_SIZE": 2}
  for shard in range(2):
    words = {"flags": [f"--shard_id={shard}"], "VERIFICATION": "coupled"}
    infer(tmp_path / "spec", same, **words, **sampled, **pieces)
  processes.join_shards(tmp_path / "spec")
  tokens = runs.tokens(tmp_path / "plain")
  assert runs.tokens(tmp_path / "spec") == tokens
  assert runs.summary(tmp_path / "spec")["guarantee"] == "EXACT"
  assert len({str(decode) for decodes in tokens for decode in decodes}) == 22


@runtime_only
@pytest.mark.slow
def test_two_processes_write_the_output_of_one_process(pair, speculative, tmp_path):
  """The processes share the batch, and two devices per process share the networks."""
  gin_file, draft = pair
  address = f"localhost:{free_port()}"
  started = [
    subprocess.Popen(
      runs.command(
        *("configs/spec_ende.gin", gin_file),
        flags=[
          f"--coordinator_address={address}",
          "--process_count=2",
          f"--process_index={index}",
        ],
        DRAFT_CHECKPOINT_PATH=draft,
        INFER_OUTPUT_DIR=str(tmp_path),
        GAMMA=3,
        BATCH_SIZE=2,
        **{"partitioning.PjitPartitioner.num_partitions": 2},
      ),
      cwd=runs.ROOT,
      env=processes.environment(devices=2),
      stderr=subprocess.PIPE,
      text=True,
    )
    for index in range(2)
  ]
  messages = [process.communicate()[1] for process in started]
  assert [process.returncode for process in started] == [0, 0], messages
  assert runs.tokens(tmp_path) == runs.tokens(speculative)
  assert runs.summary(tmp_path)["device"]["count"] == 4
  assert show_run.main([str(tmp_path)]) == 0


@pytest.mark.slow
def test_each_example_and_the_run_have_statistics(speculative):
  for record in runs.records(speculative):
    aux = record["aux"]
    assert aux["tokens"] == len(record["prediction_tokens"])
    assert aux["accepted"] <= aux["acceptance_positions"] <= aux["drafted"]
    assert 1 <= aux["target_calls"] <= aux["tokens"]
  summary = runs.summary(speculative)
  assert summary["guarantee"] == "EXACT"
  # A fixed GAMMA is drafted at any cost.
  assert summary["statistics"]["drafted"] > 2 * summary["statistics"]["target_calls"]
  decoder = summary["decoder"]
  assert decoder["target"]["config"]["num_decoder_layers"] == 2
  assert decoder["drafter"]["network"]["config"]["num_decoder_layers"] == 1
  assert summary["configuration"]["GAMMA"] == "3"
  assert summary["statistics"]["examples"] == runs.EXAMPLES
  assert (speculative / "model-info.txt").exists()
  assert (speculative / "config.gin").exists()


@pytest.mark.slow
def test_settings_reach_the_loop_and_bounded_runs_print_bounded_first(infer, tmp_path):
  rule = {"VERIFICATION": "lenient", "LENIENCE": 0.5}
  printed = infer(tmp_path, TEMPERATURE=1.0, TOPK=5, NUM_DECODES=2, SEED=3, **rule)
  assert printed.startswith("BOUNDED: this run keeps no token's probability")
  summary = runs.summary(tmp_path)
  assert summary["guarantee"] == "BOUNDED"
  sampling = {"temperature": 1.0, "top_k": 5, "top_p": 0.0, "coupled": False}
  assert summary["sampling"] == {"kind": "Sampling", **sampling}
  assert summary["decoder"]["rule"] == {"kind": "Lenient", "lenience": 0.5}
  assert summary["configuration"]["SEED"] == "3"
  for record in runs.records(tmp_path):
    aux = record["aux"]
    # Two decodes, the better decode last: five tokens to choose from at each place.
    assert -12 * 2 * 5 < aux["scores"][0] <= aux["scores"][1] < 0
    assert len(record["prediction"]) == len(record["prediction_tokens"]) == 2
    lengths = [sum(map(bool, tokens)) for tokens in record["prediction_tokens"]]
    assert aux["tokens"] == sum(lengths)
    assert 0 < aux["acceptance_mass"] < aux["acceptance_positions"]


ROUNDED = {"WEIGHTS": "int8"}


@pytest.fixture(scope="module")
def plain(infer, tmp_path_factory):
  """Returns the output folder of the rounded target and the printed text."""
  output = tmp_path_factory.mktemp("plain")
  return output, infer(output, config="baseline_ende", **ROUNDED)


def test_the_record_names_the_rounded_model(plain, speculative):
  output, printed = plain
  rounded, full = runs.summary(output), runs.summary(speculative)
  assert rounded["target"].endswith(
    "rounded to 8 bits (WEIGHTS='int8'), another model than the checkpoint's"
  )
  assert f"The target is {rounded['target']}." in printed
  assert full["target"] == "the checkpoint's network"
  assert rounded["decoder"]["target"]["config"]["weights"] == "int8"
  assert full["decoder"]["target"]["config"]["weights"] == "float32"
  assert runs.tokens(output) != runs.tokens(speculative)


@pytest.mark.slow
def test_speculation_gives_the_rounded_target_s_outputs(infer, plain, tmp_path):
  """The draft has the target's weights, rounded to 4 bits."""
  rounded = {"BITS": 4, "GROUP": 8, "DRAFT_CHECKPOINT_PATH": None}
  infer(tmp_path, "configs/drafters/quantized.gin", **ROUNDED, **rounded)
  assert runs.tokens(tmp_path) == runs.tokens(plain[0])
  summary = runs.summary(tmp_path)
  assert summary["statistics"]["drafted"] > 0
  assert summary["decoder"]["target"]["config"]["weights"] == "int8"
  (size,) = summary["derived"].values()
  assert 0 < size["bytes"] < size["bytes_of_target"]


@runtime_only
def test_main_runs_the_named_command():
  process = runs.infer(module="t5x.main", flags=["--run_mode=infer"])
  assert process.returncode == 1
  assert "t5x.infer: expected --gin_file" in process.stderr


@runtime_only
@pytest.mark.parametrize("flags", [[], ["--run_mode=precompile"]])
def test_an_unknown_or_absent_mode_is_refused(flags, monkeypatch):
  monkeypatch.setattr(sys, "argv", ["t5x.main", *flags])
  with pytest.raises(SystemExit):
    runpy.run_module("t5x.main", run_name="__main__", alter_sys=True)
