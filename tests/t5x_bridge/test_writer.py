import dataclasses
import json
import re
import types

import numpy as np
import pytest
import seqio
import tensorflow as tf

from specdec_t5x import environment
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.rules.lenient import Lenient
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.native import library, platforms
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.t5x_bridge import writer
from tests import processes
from tests.t5x_bridge import tiny

NAME = "task-predict_with_aux.jsonl-0000{}-of-00002"
WHOLE = "task-predict_with_aux.jsonl-00000-of-00001"


def aux(accepted, tried):
  counts = {
    "scores": -1.0,
    "tokens": accepted + 2,
    "target_calls": 2,
    "drafted": tried + 1,
    "accepted": accepted,
    "acceptance_mass": accepted + 0.5,
    "acceptance_positions": tried,
  }
  return {"aux": counts}


class Model:
  """The members of a T5X model that the summary reads."""

  def __init__(self, decoder, sampling=GREEDY):
    self.decoder = decoder
    self.sampling = sampling
    self.tuned = {}
    self.derived_bytes = {}
    self.clock = None


def merge(directory, shard, rows, name=NAME, model=Model(tiny.decoder())):  # noqa: B008
  chunks = directory / f"tmp{shard}"
  chunks.mkdir()
  name = name.format(shard)
  for i, row in enumerate(rows):
    (chunks / f"{name}-chunk{i:05}").write_text(json.dumps(row) + "\n")
  writer.merge_and_summarize(str(directory), name, str(chunks), 7, model)
  return json.loads((directory / "speculation.json").read_text())


def test_summary_pools_every_finished_shard(tmp_path):
  first = merge(tmp_path, 0, [aux(3, 4), aux(1, 4)])
  assert first["statistics"]["examples"] == 2
  summary = merge(tmp_path, 1, [aux(2, 4)])
  statistics = summary["statistics"]
  assert summary["files"] == [NAME.format(0), NAME.format(1)]
  assert statistics["examples"] == 3
  assert statistics["alpha_by_counts"]["value"] == pytest.approx(6 / 12)
  assert statistics["alpha_by_mass"]["value"] == pytest.approx(7.5 / 12)
  assert statistics["tokens_per_target_call"]["value"] == pytest.approx(12 / 6)
  low, high = (statistics["alpha_by_counts"][end] for end in ("low", "high"))
  assert low < 0.5 < high
  assert summary["guarantee"] == "EXACT"
  assert summary["sampling"] == {**vars(GREEDY), "kind": "Sampling"}
  assert summary["checkpoint_step"] == 7
  assert {"t5x", "versions", "device", "products"} <= set(summary)
  assert isinstance(summary["iteration_seconds"], list)


def test_results_of_any_number_of_shards_are_found(tmp_path):
  names = [f"task-predict.jsonl-{x:05}-of-200000" for x in (7, 100_001)]
  for name in (*names, f"{names[0]}.COMPLETED", "task-score.jsonl-00000-of-00001"):
    (tmp_path / name).touch()
  assert [x.name for x in writer.result_files(str(tmp_path), "predict")] == names


@pytest.mark.parametrize("reason", [None, "there are 2 devices"])
def test_the_summary_names_the_kind_of_products(monkeypatch, reason):
  monkeypatch.setattr(library, "problem", lambda: reason)
  assert environment.of_run()["products"] == (reason or "native")


def test_the_last_of_two_simultaneous_shards_counts_every_shard(tmp_path, monkeypatch):
  of_run = environment.of_run
  others = [(1, [aux(2, 4)])]

  def late():
    if others:
      merge(tmp_path, *others.pop())
    return of_run()

  monkeypatch.setattr(environment, "of_run", late)
  assert merge(tmp_path, 0, [aux(3, 4)])["statistics"]["examples"] == 2
  assert not list(tmp_path.glob("*.tmp"))


DECODERS = {
  **{rule: tiny.decoder(rule=rule) for rule in RULES},
  "lenient, 0.5": tiny.decoder(rule=Lenient(0.5)),
  "plain": Decoder(Transformer(tiny.TARGET)),
}


@pytest.mark.parametrize("name", DECODERS)
def test_only_token_and_greedy_verification_have_alpha_by_mass(tmp_path, name):
  summary = merge(tmp_path, 0, [aux(3, 4)], model=Model(DECODERS[name]))
  statistics = summary["statistics"]
  assert statistics["alpha_by_counts"]["value"] == pytest.approx(3 / 4)
  if name in ("token", "lenient", "greedy", "plain"):
    assert statistics["alpha_by_mass"]["value"] == pytest.approx(3.5 / 4)
  else:
    assert statistics["alpha_by_mass"] is None


def test_joined_shards_count_once(tmp_path):
  for shard in (0, 1):
    merge(tmp_path, shard, [aux(3, 4)])
    (tmp_path / f"{NAME.format(shard)}.COMPLETED").touch()
  processes.join_shards(tmp_path)
  summary = merge(tmp_path, 2, [aux(3, 4)], name=f"other-{WHOLE}")
  assert summary["statistics"]["examples"] == 3


@pytest.mark.parametrize(
  ("drafts", "same_bits", "slots", "said"),
  [
    (False, None, 4, "Yes: decoding is plain"),
    (True, True, 0, "Yes: every call of the target scores 8 tokens"),
    (True, False, 1, "Not by the settings: .* SAME_BITS=True"),
    (True, None, 1, "Not by the settings"),  # The device is a CPU.
  ],
)
def test_the_settings_tell_whether_bits_are_plain_decoding_s(
  drafts, same_bits, slots, said
):
  target = Transformer(tiny.TARGET)
  settings = {"same_bits": same_bits, "slots": slots}
  decoder = Decoder(target, **settings)
  if drafts:
    draft = DraftModel(Transformer(tiny.DRAFT), 3)
    decoder = Decoder(target, draft, **settings)
  assert re.match(said, writer.same_bits_as_plain(decoder))
  has_condition = said.startswith("Not")
  assert (writer.condition(decoder) is not None) == has_condition


def test_on_an_accelerator_a_single_row_has_plain_decoding_s_bits(monkeypatch):
  monkeypatch.setattr(platforms, "wide_blocks_cost_more", lambda: False)
  target = Transformer(tiny.TARGET)
  decoder = Decoder(target, DraftModel(target, 3), slots=1)
  assert writer.same_bits_as_plain(decoder).startswith("Yes: every call")
  four = dataclasses.replace(decoder, slots=4)
  assert writer.same_bits_as_plain(four).startswith("Not by the settings")


def test_modes_without_statistics_have_no_statistics(tmp_path):
  name = "task-predict.jsonl-00000-of-00001"
  summary = merge(tmp_path, 0, [{"prediction": "x"}], name=name)
  assert summary["statistics"] is None


PATH = f"/somewhere/{NAME.format(0)}-chunk00003"
BYTES = seqio.ByteVocabulary()
TEXTS = ["a dog", "a cat", "a man"]
TASK_DS = tf.data.Dataset.from_tensor_slices(
  {"inputs": [[*BYTES.encode(x), 1] for x in TEXTS], "inputs_pretokenized": TEXTS}
)
NAN = float("nan")


def write_decoded(mode, predictions, **aux):
  written = []

  def write_fn(*args):
    written.append(args)

  results = (predictions, aux)
  model = Model(tiny.decoder())
  args = (PATH, results, TASK_DS, mode, BYTES)
  writer.write_decoded(*args, write_fn=write_fn, model=model)
  assert written == [args]


def test_results_without_nan_are_written():
  """Results without NaN are written; the next test refuses NaN."""
  write_decoded("predict", [[5]] * 3)
  write_decoded("score", [-1.0, -2.0, -3.0])
  fine = {"scores": [-1.0, 0.0, -2.0], "acceptance_mass": [0.0, 1.0, 1.5]}
  write_decoded("predict_with_aux", [[5]] * 3, **fine)
  write_decoded("predict_with_aux", [[5]] * 3, scores=[[-1.0, -0.5]] * 3)


@pytest.mark.parametrize(
  ("mode", "predictions", "aux", "network"),
  [
    ("score", [-1.0, NAN, NAN], {}, "target"),
    ("score", np.float32([-1.0, NAN, NAN]), {}, "target"),
    ("predict_with_aux", [[5]] * 3, {"scores": [0.0, NAN, NAN]}, "target"),
    ("predict_with_aux", [[5]] * 3, {"scores": [[0, 0], [0, NAN], [NAN, 0]]}, "target"),
    (
      "predict_with_aux",
      [[5]] * 3,
      {"scores": [0.0] * 3, "acceptance_mass": [1.0, NAN, NAN]},
      "draft",
    ),
  ],
)
def test_an_example_with_nan_is_named(mode, predictions, aux, network):
  place = r"Example 1 of chunk00003, {'inputs_pretokenized': 'a cat'}: "
  with pytest.raises(ValueError, match=f"{place}.* from the {network}, in 2 of 3 exam"):
    write_decoded(mode, predictions, **aux)


def tokens_of(text, length, end, begin=()):
  room = length - len(begin) - len(end)
  return [*begin, *BYTES.encode(text)[:room], *end]


@pytest.mark.parametrize(
  ("frame", "texts", "cut_to"),
  [
    ({"end": (1,)}, ["seven b", "eight by", "nine byte", ""], [0, 8, 8, 0]),
    ({"end": ()}, ["eight by", "nine byte"], [0, 8]),
    ({"begin": (2,), "end": (1,)}, ["six by", "seven b"], [0, 8]),
    ({"end": (1,)}, ["short", "short"], None),
    ({"end": (1,)}, ["\u00fc\u00fc\u00fc\u00fc", "\u00fc\u00fc\u00fc"], [8, 0]),
  ],
)
def test_cut_inputs_are_marked(frame, texts, cut_to):
  rows = [
    {"inputs": np.array(tokens_of(x, 8, **frame)), "inputs_pretokenized": x.encode()}
    for x in texts
  ]
  written = []
  writer.write_decoded(
    PATH,
    ([[5]] * len(rows), {"scores": [-1.0] * len(rows)}),
    types.SimpleNamespace(as_numpy_iterator=lambda: iter(rows)),
    "predict_with_aux",
    BYTES,
    write_fn=lambda *args: written.append(args),
    model=Model(tiny.decoder()),
  )
  ((_, (_, written_aux), *_),) = written
  assert written_aux.get(writer.CUT) == cut_to


def test_the_last_lines_count_the_cut_inputs(tmp_path, capsys):
  whole, cut = aux(3, 4), aux(3, 4)
  cut["aux"][writer.CUT] = 64
  rows = merge(tmp_path, 0, [whole, cut, whole], name=WHOLE)["statistics"]
  assert rows["inputs_cut"] == {"examples": 1, "tokens": 64}
  last_line = capsys.readouterr().err.splitlines()[-1]
  assert last_line.startswith("1 of 3 inputs was cut to 64 tokens. Raise TASK_FEATURE")


@pytest.mark.parametrize(
  ("dtype", "products", "same_bits", "said"),
  [
    ("bfloat16", "xla", None, "In bfloat16 with XLA's products, blocks"),
    ("bfloat16", "xla", True, None),
    ("float32", "xla", None, "In float32 with XLA's products, blocks"),
  ],
)
def test_a_guarantee_has_the_condition(
  tmp_path, capsys, dtype, products, same_bits, said
):
  config = dataclasses.replace(tiny.TARGET, dtype=dtype, products=products)
  draft = DraftModel(Transformer(tiny.DRAFT), 3)
  decoder = Decoder(Transformer(config), draft, same_bits=same_bits)
  summary = merge(tmp_path, 0, [aux(3, 4)], name=WHOLE, model=Model(decoder))
  condition = summary["guarantee_condition"]
  assert condition is None if said is None else condition.startswith(said)
  last_line = capsys.readouterr().err.splitlines()[-1]
  is_printed = said is not None and dtype == "bfloat16"
  assert last_line.startswith("EXACT: the target's distribution. In") == is_printed
