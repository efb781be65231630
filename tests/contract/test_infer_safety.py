"""infer() under damage, full disks and concurrent jobs; tests/stress kills processes.

Upstream T5X lacks these checks (docs/t5x_commands.md).
"""

import concurrent.futures
import contextlib
import errno
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

import gin
import pytest
from etils import epath
from t5x import infer

from tests import processes
from tests.commands import contents
from tests.contract.conftest import (
  IS_RUNTIME,
  Killed,
  dying_writer,
  result_path,
  run,
  writer,
)
from tests.damage import STREAMS, files_of_at_most, halve

if not IS_RUNTIME:
  pytest.skip("upstream T5X lacks these checks", allow_module_level=True)

from t5x import inference_files
from t5x.inference_files import only_job

pytestmark = pytest.mark.slow


@pytest.fixture
def expected(whole):
  """Returns the result of an undisturbed run."""
  return result_path(whole).read_bytes()


@pytest.fixture(scope="module")
def left(checkpoint, tmp_path_factory):
  """Returns the output of a run that was killed while it wrote the second chunk."""
  output = tmp_path_factory.mktemp("left")
  with pytest.raises(Killed):
    run(checkpoint, output, write_fn=dying_writer)
  return output


@pytest.fixture
def killed(left, tmp_path):
  """Returns a copy of the killed run's output."""
  return pathlib.Path(shutil.copytree(left, tmp_path, dirs_exist_ok=True))


def chunk_files(output, chunk=0):
  """Returns a chunk's file and the chunk's marker."""
  (directory,) = output.glob("tmp-*")
  name = f"{result_path(output).name}-chunk{chunk:05}"
  return directory / name, directory / f"{name}.COMPLETED"


# ---- Damage ----


def garble(path):
  path.write_text("{")


def test_a_damaged_chunk_is_named_and_decoded_again_after_deletion(
  killed, checkpoint, expected
):
  chunk, marker = chunk_files(killed)
  for damage, file in ((halve, chunk), (garble, marker)):
    content = file.read_bytes()
    damage(file)
    before = contents(killed)
    with pytest.raises(ValueError, match=r"is damaged.*Delete") as error:
      run(checkpoint, killed)
    assert str(chunk) in str(error.value).replace(str(marker), "")
    assert str(marker) in str(error.value)
    assert contents(killed) == before
    file.write_bytes(content)
  chunk.unlink()
  marker.unlink()
  run(checkpoint, killed)
  assert result_path(killed).read_bytes() == expected


def test_a_chunk_damaged_during_the_run_is_not_merged(checkpoint, tmp_path):
  def damage(path):
    if "chunk00002" in path:
      halve(chunk_files(tmp_path)[0])

  with pytest.raises(ValueError, match="chunk00000 is damaged"):
    run(checkpoint, tmp_path, write_fn=writer(after=damage))
  assert not result_path(tmp_path).exists()


def test_only_missing_chunks_are_decoded_again(checkpoint, expected, tmp_path):
  with pytest.raises(ValueError, match="merged result could not"):
    run(checkpoint, tmp_path, merge_fn=full)
  # Markers of upstream T5X are empty.
  chunk_files(tmp_path)[1].write_text("")
  chunk_files(tmp_path, 2)[0].unlink()
  written = []
  run(checkpoint, tmp_path, write_fn=writer(lambda path: written.append(path[-10:])))
  assert written == ["chunk00000", "chunk00002"]
  assert result_path(tmp_path).read_bytes() == expected


def test_a_finished_result_that_changed_is_damaged(checkpoint, tmp_path):
  run(checkpoint, tmp_path)
  halve(result_path(tmp_path))
  with pytest.raises(ValueError, match=r"-00000-of-00001 is damaged.*COMPLETED"):
    run(checkpoint, tmp_path)


def test_files_of_a_run_killed_after_the_merge_are_removed(checkpoint, tmp_path):
  run(checkpoint, tmp_path)
  before = contents(tmp_path)
  directory = tmp_path / "tmp-contract_infer-00000-of-00001"
  directory.mkdir()
  (directory / f"{result_path(tmp_path).name}-chunk00002").write_text("")
  run(checkpoint, tmp_path, summarize_config_fn=None)
  assert contents(tmp_path) == before
  assert not directory.exists()


# ---- Concurrent jobs ----


def during_the_run(job):
  """Returns a writer of chunks that first runs another job."""
  jobs = [job]
  return writer(lambda path: jobs and jobs.pop()())


def test_a_second_job_is_refused_without_changes(checkpoint, expected, tmp_path):
  def second():
    before = contents(tmp_path)
    message = f"another job.*pid {os.getpid()} on {socket.gethostname()}.*Wait until"
    with pytest.raises(ValueError, match=message):
      run(checkpoint, tmp_path, period=1, summarize_config_fn=None)
    assert contents(tmp_path) == before

  run(checkpoint, tmp_path, write_fn=during_the_run(second))
  assert result_path(tmp_path).read_bytes() == expected
  assert not [path for path in tmp_path.rglob("*") if "lock" in path.name]


def test_modes_and_shards_run_side_by_side(checkpoint, expected, tmp_path):
  def others():
    run(checkpoint, tmp_path, "score")
    run(checkpoint, tmp_path, shard_id=1, num_shards=2)

  run(checkpoint, tmp_path, write_fn=during_the_run(others))
  assert result_path(tmp_path).read_bytes() == expected
  assert result_path(tmp_path, "score").exists()
  assert not list(tmp_path.glob("tmp-*"))


HOLDER = """
import sys
from etils import epath
from t5x.inference_files import only_job
with only_job(epath.Path(sys.argv[1]), "results"):
  print("held", flush=True)
  sys.stdin.read()
"""


def test_the_kernel_frees_the_lock_of_a_killed_job(tmp_path):
  lock = epath.Path(tmp_path) / "below" / ".lock"
  process = subprocess.Popen(
    [sys.executable, "-c", HOLDER, str(lock)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    env=processes.environment(),
  )
  assert process.stdout.readline() == b"held\n"
  with pytest.raises(ValueError, match=f"pid {process.pid} "), only_job(lock, "x"):
    pass
  process.send_signal(signal.SIGKILL)
  process.wait()
  assert lock.exists()
  with only_job(lock, "x"):
    assert lock.read_text().startswith(f"pid {os.getpid()} ")
  assert not lock.parent.exists()


def test_two_jobs_never_hold_a_lock_while_jobs_create_and_remove_it(tmp_path):
  lock = epath.Path(tmp_path) / "below" / ".lock"
  inside = tmp_path / "inside"

  def job(_):
    held = 0
    for _ in range(200):
      with contextlib.suppress(ValueError), only_job(lock, "x"):
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        held += 1
        os.unlink(inside)
    return held

  with concurrent.futures.ThreadPoolExecutor(4) as jobs:
    assert sum(jobs.map(job, range(4))) > 0
  assert not lock.parent.exists()


def test_the_configuration_has_gin_s_bindings():
  long = {"inputs": list(range(100)), "targets": "a = b\n"}
  gin.parse_config(f"GAMMA = 3\nTASK = {long}\nINFER_OUTPUT_DIR = 'x'\n")
  assert inference_files.configuration() == {"GAMMA": "3", "TASK": str(long)}


# ---- File systems that refuse writes, with the kernel's errors ----


def full(path, *args, **kwargs):
  with open("/dev/full", "w") as file:
    file.write("x")


# A write_fn of a gin file: gin raises copies of errors without error numbers.
full_by_gin = gin.external_configurable(full, "a_full_disk", module="tests")


def beyond_the_limit(path, *args, **kwargs):
  with files_of_at_most(100):
    infer.write_inferences_to_file(path, *args, **kwargs)


def without_rights(path, *args, **kwargs):
  directory = os.path.dirname(path)
  os.chmod(directory, 0o500)
  user = os.geteuid()
  if user == 0:  # Root may write anywhere.
    os.seteuid(65534)
  try:
    infer.write_inferences_to_file(path, *args, **kwargs)
  finally:
    os.seteuid(user)
    os.chmod(directory, 0o700)


REFUSALS = (
  (full, errno.ENOSPC, "free space"),
  (full_by_gin, errno.ENOSPC, "free space"),
  (beyond_the_limit, errno.EFBIG, "ulimit -f"),
  (without_rights, errno.EACCES, "permission to write"),
)


def test_a_chunk_that_cannot_be_written_leaves_earlier_chunks(
  checkpoint, expected, killed
):
  """The first chunk exists, and the same command is refused repeatedly."""
  for refusing, reason, advice in REFUSALS:
    message = (
      rf"INFER_OUTPUT_DIR={killed}: chunk 1 could not be written "
      rf"\({os.strerror(reason)}.*\). The earlier chunk is kept: .*{advice}.* and "
      "run the command again"
    )
    with pytest.raises(ValueError, match=message):
      run(checkpoint, killed, write_fn=refusing)
    assert not [path for path in killed.rglob("*") if "partial" in path.name]
  run(checkpoint, killed)
  assert result_path(killed).read_bytes() == expected


def test_a_merge_that_cannot_be_written_leaves_all_chunks(
  checkpoint, expected, tmp_path
):
  message = r"merged result could not.*\(No space left.*3 earlier chunks are kept"
  with pytest.raises(ValueError, match=message):
    run(checkpoint, tmp_path, merge_fn=full)
  run(checkpoint, tmp_path, write_fn=None)  # No chunk is left to write.
  assert result_path(tmp_path).read_bytes() == expected


def test_a_configuration_that_cannot_be_recorded_ends_the_run(checkpoint, tmp_path):
  message = r"config.gin.* could not be written \(No space left on device\). Free space"
  with pytest.raises(ValueError, match=message):
    run(checkpoint, tmp_path, summarize_config_fn=lambda **kwargs: full(None))


# ---- Lines of the merged file ----


@pytest.mark.parametrize("count", [1, 12, 100_003])
def test_all_chunks_are_merged_in_order(tmp_path, count):
  chunks = tmp_path / "chunks [1]"
  chunks.mkdir()
  for number in range(count):
    (chunks / f"x.jsonl-chunk{number:05}").write_text(f"{number}\n")
    if number in (0, count - 1):
      (chunks / f"x.jsonl-chunk{number:05}.COMPLETED").write_text("{}")
  (chunks / "x.jsonl-of-another-task-chunk00000").write_text("another\n")
  infer.merge_chunks_to_file(str(tmp_path), "x.jsonl", str(chunks), None)
  lines = (tmp_path / "x.jsonl").read_text().split()
  assert lines == [str(number) for number in range(count)]


def without_a_line(output_dir, output_fname, tmp_dir, step):
  infer.merge_chunks_to_file(output_dir, output_fname, tmp_dir, step)
  result = pathlib.Path(output_dir) / output_fname
  result.write_text("".join(result.read_text().splitlines(keepends=True)[1:]))


def test_a_merge_that_loses_a_line_leaves_all_chunks(checkpoint, expected, tmp_path):
  with pytest.raises(ValueError, match="has 10 lines, expected 11, one per example"):
    run(checkpoint, tmp_path, merge_fn=without_a_line)
  assert not list(tmp_path.glob("*.COMPLETED"))
  run(checkpoint, tmp_path, write_fn=None)  # No chunk is left to write.
  assert result_path(tmp_path).read_bytes() == expected


def test_shards_of_any_number_have_folders_of_their_own(tmp_path):
  folders = {
    inference_files.ChunkFiles(
      str(tmp_path), "task", f"predict.jsonl-{shard:05}-of-300000", {}
    ).directory.name
    for shard in (0, 100_000, 200_000)
  }
  assert folders == {f"tmp-task-{x}-of-300000" for x in ("00000", "100000", "200000")}


def test_a_shard_without_examples_ends_well(checkpoint, tmp_path):
  for _ in range(2):  # The second run finds the first one's marker.
    run(checkpoint, tmp_path, shard_id=12, num_shards=13)
  result = result_path(tmp_path, shard=12, shards=13)
  assert result.read_bytes() == b""
  assert result.with_name(f"{result.name}.COMPLETED").exists()


def test_a_task_without_examples_is_refused(tmp_path):
  name = "x-predict.jsonl-00000-of-00001"
  with pytest.raises(ValueError, match="the input had no examples"):
    infer.merge_chunks_to_file(str(tmp_path), name, str(tmp_path), None)
  assert not list(tmp_path.iterdir())


# ---- Messages that nobody can read, and Ctrl-C ----


@pytest.mark.parametrize("stream", STREAMS)
def test_results_do_not_depend_on_stderr(
  checkpoint, expected, tmp_path, monkeypatch, stream
):
  monkeypatch.setattr(sys, "stderr", stream())
  run(checkpoint, tmp_path)
  assert result_path(tmp_path).read_bytes() == expected


PROTECTED = """
import contextlib, os, sys
{close}
from t5x import messages, quiet_start
messages.protect("a command")
file = open({path!r}, "w")
with contextlib.suppress(OSError):
  os.write(2, b"a library's message")
messages.say("a message")
print("a message on stdout", flush=True)
quiet_start.announce()
file.write("results")
file.close()
"""
CLOSED = "os.close(2)", "os.close(1); os.close(2)", "sys.stderr = sys.stdout = None"


@pytest.mark.parametrize("close", ["", *CLOSED])
def test_a_command_without_stderr_writes_results_alone(tmp_path, close):
  path = tmp_path / "results"
  processes.printed("-c", PROTECTED.format(close=close, path=str(path)))
  assert path.read_text() == "results"


def test_a_command_ends_well_if_the_reader_of_messages_has_ended(tmp_path):
  path = tmp_path / "results"
  reader, writer_end = os.pipe()
  os.close(reader)
  command = [sys.executable, "-c", PROTECTED.format(close="", path=str(path))]
  code = subprocess.run(
    command,
    stdout=writer_end,
    stderr=writer_end,
    env=processes.environment(),
    check=False,
  ).returncode
  os.close(writer_end)
  assert (code, path.read_text()) == (0, "results")


def interrupted(after):
  """Returns a writer of chunks that gets Ctrl-C after so many chunks."""
  chunks = []

  def interrupt(path):
    chunks.append(path)
    if len(chunks) > after:
      raise KeyboardInterrupt

  return writer(interrupt)


@pytest.mark.parametrize(
  ("after", "kept"),
  [
    (0, r"No results are kept\. Run the same command to start again\."),
    (2, r"The results of 8 examples are kept in .* Run the same command"),
  ],
)
def test_ctrl_c_says_what_is_kept(checkpoint, expected, tmp_path, after, kept):
  with pytest.raises(KeyboardInterrupt) as error:
    run(checkpoint, tmp_path, write_fn=interrupted(after))
  (note,) = error.value.__notes__
  assert re.match(kept, note)
  run(checkpoint, tmp_path)
  assert result_path(tmp_path).read_bytes() == expected


INTERRUPTED = """
from t5x import messages
messages.protect("t5x.infer")
error = KeyboardInterrupt()
{add_note}
raise error
"""


@pytest.mark.parametrize(
  ("add_note", "says"),
  [
    ("error.add_note('4 are kept.')", "t5x.infer: interrupted. 4 are kept.\n"),
    ("", "t5x.infer: interrupted. Run the same command again.\n"),
  ],
)
def test_ctrl_c_prints_one_line(add_note, says):
  process = processes.finished("-c", INTERRUPTED.format(add_note=add_note))
  assert process.stderr == says
  assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
