"""Decodes with the CUDA kernels on a CPU (`tests.native.cuda.handlers`)."""

import ctypes
import dataclasses
import functools
import json
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import oracle
from lab.model.hlo import Program
from specdec_t5x import generate, tuning
from specdec_t5x.core.distributions import GREEDY, LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.state import row_keys, unit_uniforms
from specdec_t5x.drafters import draft_model
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.native.cuda import choice
from specdec_t5x.native.cuda import library as of_gpu
from specdec_t5x.native.cuda import step as draft_step
from specdec_t5x.native.cuda.step import DraftStep
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.functional import initial_variables, network_for
from specdec_t5x.network.ngram import NgramConfig
from specdec_t5x.ways import Model, assembled
from tests import networks
from tests.drafters.test_stepwise import Prescribed
from tests.native.cuda import handlers

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")

SIZES = {
  **{"vocab_size": 300, "emb_dim": 128, "num_heads": 2, "head_dim": 64, "mlp_dim": 96},
  **{"num_encoder_layers": 1, "num_decoder_layers": 1},
}
T5_1_1 = {"mlp_activations": ("gelu", "linear"), "logits_via_embedding": False}
T5_1_0 = {"mlp_activations": ("relu",), "logits_via_embedding": True}
INPUTS = jnp.array([[5, 6, 7, 1, 0], [9, 3, 8, 4, 1], [2, 1, 0, 0, 0], [8, 8, 1, 0, 0]])
ROOM = 9
GAMMA = 3


@pytest.fixture
def gpu(monkeypatch, tmp_path):
  """Installs the kernels with times that are faster than XLA's; returns the choices."""
  return handlers.install(monkeypatch, tmp_path)


def network(kind=T5_1_1, dtype="bfloat16", **settings):
  return network_for(T5Config(**{**SIZES, **kind, "dtype": dtype, **settings}))


def model(kind=T5_1_1, dtype="bfloat16", **settings):
  """Returns a model with parameters that do not depend on the dtype."""
  net = network(kind, dtype, **settings)
  ends = Generation(eos_ids=(1,))
  return Model(net, networks.sharp(net), generation=ends)


def close(ours, theirs):
  ours, theirs = (np.asarray(x, np.float64) for x in (ours, theirs))
  return np.linalg.norm(ours - theirs) < 0.06 * np.linalg.norm(theirs)


def decoder_of(**words):
  target = model(dtype="float32")
  draft = model(**words)
  return assembled(target, draft, gamma=GAMMA)


def choose(decoder, params, rows, capsys):
  """Chooses between kernel and XLA and returns the printed lines."""
  capsys.readouterr()
  tuning.tuned(tuning.Job(decoder, rows, 5, GREEDY, ROOM), params)
  return capsys.readouterr().err.splitlines()


# ---- A step in a compiled program. ----


@pytest.mark.parametrize("kind", [T5_1_0, T5_1_1], ids=["1.0", "1.1"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_step_in_a_program_equals_the_network(gpu, kind, rows):
  net = network(kind)
  params = model(kind).params
  weights = jax.jit(draft_step.Prepare(draft_step.of_network(net)))(params)
  xla, cache = networks.start(net, params, INPUTS[:rows], ROOM)
  cache = draft_step.with_scratch(net, cache, has_room=True)
  gpu.decided[draft_step.key_of(net, rows)] = True
  ours = jax.jit(draft_step.extend_fn(net, weights, xla))
  theirs = cache
  exchanges = []
  # XLA computes blocks of two. Token 999 is out of range and clips to the last token.
  for tokens in ([3], [250], [9, 8], [999]):
    block = jnp.broadcast_to(jnp.array(tokens), (rows, len(tokens)))
    logits, features, cache = ours(cache, block)
    expected, xla_features, theirs = xla(theirs, block)
    pairs = (
      (logits, expected),
      (features, xla_features),
      (cache.keys[0], theirs.keys[0]),
    )
    for our, their in (*pairs, (cache.values[0], theirs.values[0])):
      assert our.dtype == their.dtype
      assert close(our, their)
    np.testing.assert_array_equal(cache.index, theirs.index)
    cache = cache.at(cache.index).gathered(jnp.zeros((rows, 1), int), cache.index)
    exchanges.append(int(cache.widened(9).scratch[0, 0]))
  # Changes of a cache between two steps do not reset the scratch memory.
  assert exchanges == [4, 8, 8, 12]


def test_the_scratch_memory_continues_with_another_batch(gpu):
  """Sums of an earlier batch have earlier numbers, so no later step reads old sums."""
  net = network()
  params = model().params
  weights = jax.jit(draft_step.Prepare(draft_step.of_network(net)))(params)
  gpu.decided[draft_step.key_of(net, 2)] = True
  scratch = draft_step.of_network(net).scratch(2)
  for inputs in (INPUTS[:2], INPUTS[2:]):
    xla, cache = networks.start(net, params, inputs, ROOM)
    ours = jax.jit(draft_step.extend_fn(net, weights, xla))
    tokens = jnp.array([[4], [7]])
    logits, _, after = ours(cache.replace(scratch=scratch), tokens)
    assert close(logits, xla(cache, tokens)[0])
    scratch = after.scratch


@pytest.mark.parametrize(("chunks", "fits"), [(4, True), (3, False)])
def test_long_inputs_take_shared_memory_from_the_weights(
  gpu, monkeypatch, chunks, fits
):
  net = network()
  params = model().params
  step = draft_step.of_network(net)
  weights = jax.jit(draft_step.Prepare(step))(params)
  gpu.decided[draft_step.key_of(net, 2)] = True
  # A block has room for just so many chunks beside the step without inputs.
  most = step._bytes(2, inputs=1) + chunks * draft_step._CHUNK
  monkeypatch.setattr(draft_step, "_SHARED", most)
  shared = ctypes.c_int.in_dll(handlers.loaded(), "specdec_most_shared")
  monkeypatch.setattr(shared, "value", most)
  inputs = jnp.full((2, 400), 7)
  xla, cache = networks.start(net, params, inputs, ROOM)
  ours = jax.jit(draft_step.extend_fn(net, weights, xla))
  tokens = jnp.array([[4], [7]])
  cache = draft_step.with_scratch(net, cache, has_room=True)
  if fits:
    assert close(ours(cache, tokens)[0], xla(cache, tokens)[0])
  else:
    with pytest.raises(ValueError, match="inputs of 400 tokens"):
      ours(cache, tokens)


def test_more_than_eight_rows_use_xla(gpu, capsys):
  decoder, params = decoder_of()
  reason = "there are 9 rows; the kernel takes 8"
  lines = choose(decoder, params, 9, capsys)
  assert lines == [f"Step of the draft: XLA's, because {reason}."]
  net = decoder.drafter.network
  assert draft_step.problem_of(net, rows=8) is None
  assert not gpu.is_used(draft_step.key_of(net, 9))


# ---- Decodes. ----


def test_greedy_outputs_of_refilled_rows_equal_plain_decoding(gpu, capsys):
  target = model(T5_1_0, "float32")
  draft = model(T5_1_0)
  decoder, params = assembled(target, draft, gamma=GAMMA)
  decoder = dataclasses.replace(decoder, slots=2)
  xla = networks.run(decoder, params, INPUTS, ROOM)
  assert choose(decoder, params, len(INPUTS), capsys) == [
    "Draft step of 2 rows: our kernel takes 0.16 ms, XLA's 0.42 ms."
  ]
  found = networks.run(decoder, params, INPUTS, ROOM)
  plain = networks.decode(target, None, inputs=INPUTS, room=ROOM)
  np.testing.assert_array_equal(found.tokens, plain.tokens)
  # The draft is the target in bfloat16, so nearly every token is accepted.
  counts = found.statistics
  assert abs(int(counts.accepted.sum() - xla.statistics.accepted.sum())) <= 3
  # The kernel drafts: without the kernel's weights few tokens are accepted.
  nothing = jax.tree.map(jnp.zeros_like, params["draft_step"])
  found = networks.run(decoder, {**params, "draft_step": nothing}, INPUTS, ROOM)
  np.testing.assert_array_equal(found.tokens, plain.tokens)
  assert found.statistics.accepted.sum() < 0.7 * counts.accepted.sum()


def test_states_that_are_copied_into_rows_have_no_scratch_memory(gpu):
  """A new row's scratch memory would reuse the numbers of old sums."""
  decoder, params = decoder_of()
  ctx = decoder.context(params, 2, GREEDY, ROOM, 1)
  keys = row_keys(jax.random.key(0), 2)

  def words(room):
    state = dataclasses.replace(ctx, room=room).first_state(INPUTS[:2], keys)
    return state.drafter_state.cache.scratch.shape[1]

  assert words(0) == 0 < words(ctx.room)


def test_generate_uses_the_kernel_in_every_batch(gpu, capsys):
  target = model(dtype="float32")
  draft = model()
  inputs = [[5, 6, 7], [9, 3], [2], [8, 8, 1], [4, 4, 2]]
  plain = generate(inputs, target, None, max_length=ROOM)
  words = {"max_length": ROOM, "batch_size": 2, "gamma": GAMMA}
  for _ in range(2):
    found = generate(inputs, target, draft, **words)
    assert [x.tokens for x in found] == [x.tokens for x in plain]
    assert sum(x.accepted for x in found) > 0.7 * sum(x.drafted for x in found)
  lines = capsys.readouterr().err.splitlines()
  # The first call builds and chooses; the second call prints nothing.
  assert [line for line in lines if line.startswith("Draft step")] == [
    "Draft step: 0.5 MB beside the draft's 1.4 MB.",
    "Draft step of 2 rows: our kernel takes 0.16 ms, XLA's 0.42 ms.",
  ]


def test_a_timed_pair_calls_the_kernel(gpu, monkeypatch):
  """`make gpu` times the draft step of a real decode."""
  config = network().config
  monkeypatch.setattr(oracle, "t5_1_1", lambda size, dtype: config)
  setup = oracle.Setup("tiny", "tiny", 2, 0.0, GAMMA, "bfloat16", 5, 12)
  pair = oracle.Pair(setup)
  for name, uses in ("iteration", True), ("redrafted", True), ("plain", False):
    function, arguments = pair.functions[name]
    program = function.lower(jnp.int32(1), *arguments).as_text()
    assert ("specdec_step" in program) == uses, name


# ---- Drafts in one launch. ----

COUPLED = Sampling(0.7, coupled=True)
LENGTHS = (GAMMA, 2, 1)


def coupled_pair():
  """Returns a decoder of coupled draws with a draft length for each of three rows."""
  decoder, params = assembled(
    model(dtype="float32"), model(), gamma=GAMMA, rule="coupled"
  )
  return dataclasses.replace(decoder, policy=Prescribed(LENGTHS)), params


def drafts(decoder, params, sampling, eos_id, *, one_launch=True):
  """Drafts for three rows of different lengths.

  Returns:
    The proposal, the draft model's cache, and the computations of the compiled program
    that launch the kernel, by name.
  """
  keys = row_keys(jax.random.key(3), len(LENGTHS))
  ctx, state = networks.prepare(
    decoder, params, INPUTS[: len(LENGTHS)], keys, sampling, ROOM, eos_id
  )
  net = ctx.networks["draft"]
  if not one_launch:
    net = dataclasses.replace(net, draft=None)
  ctx = dataclasses.replace(ctx, networks={"draft": net}, stops_early=False)
  uniforms = unit_uniforms(jax.random.key(4), (len(LENGTHS), GAMMA, LEVELS))
  sequences = state.sequences.at[:, 1:3].set(jnp.array([[0, 0], [7, 0], [9, 4]]))
  leaves, structure = jax.tree.flatten(
    state.replace(sequences=sequences, lengths=jnp.array([1, 2, 3]))
  )

  @jax.jit
  def run(*leaves):
    state = jax.tree.unflatten(structure, leaves)
    return ctx.drafter.propose(ctx, state, uniforms)

  program = run.lower(*leaves).compile()
  parsed = Program.read(program.as_text())
  launches = [
    name
    for name, lines in parsed.computations.items()
    for line in lines
    if line.opcode == "custom-call" and "specdec_step" in line.rest
  ]
  proposal, after = program(*leaves)
  return proposal, after.cache, [name == parsed.entry for name in launches]


def same_drafts(decoder, params, sampling, eos_id):
  """Checks that one launch drafts like a launch per token, and returns the draft."""
  found, cache, launches = drafts(decoder, params, sampling, eos_id)
  assert launches == [True]
  usual, expected, launches = drafts(
    decoder, params, sampling, eos_id, one_launch=False
  )
  assert launches == [False]  # One launch in the body of a loop.
  np.testing.assert_array_equal(found.num_valid, usual.num_valid)
  np.testing.assert_array_equal(found.tokens, usual.tokens)
  np.testing.assert_array_equal(cache.index, expected.index)
  for name in ("keys", "values"):
    pairs = zip(getattr(cache, name), getattr(expected, name), strict=True)
    for ours, theirs in pairs:
      np.testing.assert_array_equal(ours, theirs)
  return found


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_a_draft_is_one_launch(gpu, monkeypatch, sampling, capsys):
  decoder, params = coupled_pair()
  choose(decoder, params, len(LENGTHS), capsys)
  found = same_drafts(decoder, params, sampling, 1)
  np.testing.assert_array_equal(found.num_valid, LENGTHS)
  # The second token of the first row as an end ends the row's draft.
  end = int(found.tokens[0, 1])
  early = same_drafts(decoder, params, sampling, end)
  ends = np.asarray(early.tokens) == end
  lengths = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, GAMMA)
  np.testing.assert_array_equal(early.num_valid, np.minimum(lengths, LENGTHS))
  assert early.num_valid[0] < GAMMA
  # The planted fault: tokens count after an end.
  monkeypatch.setattr(
    draft_model, "is_end", lambda tokens, eos_id: jnp.zeros_like(tokens, bool)
  )
  late, _, _ = drafts(decoder, params, sampling, end)
  assert late.num_valid[0] == GAMMA


@pytest.mark.parametrize(
  "sampling", [Sampling(), Sampling(top_k=3, coupled=True)], ids=["drawn", "top-k"]
)
def test_other_sampling_launches_per_token(gpu, sampling, capsys):
  decoder, params = coupled_pair()
  if not sampling.coupled:
    decoder = dataclasses.replace(decoder, rule=RULES["token"])
  choose(decoder, params, len(LENGTHS), capsys)
  *_, launches = drafts(decoder, params, sampling, 1)
  assert launches == [False]


def test_coupled_outputs_equal_plain_decoding(gpu, capsys):
  decoder, params = coupled_pair()
  choose(decoder, params, len(LENGTHS), capsys)
  inputs = INPUTS[: len(LENGTHS)]
  found = networks.run(decoder, params, inputs, ROOM, COUPLED)
  plain = networks.decode(
    model(dtype="float32"), None, inputs=inputs, room=ROOM, sampling=COUPLED
  )
  np.testing.assert_array_equal(found.tokens, plain.tokens)
  # With the noise of other tokens few drafted tokens would be accepted.
  counts = found.statistics
  assert counts.accepted.sum() > 0.7 * counts.drafted.sum()


# ---- The choice. ----


def planted(**changes):
  """Returns a replacement for `of_network` that gives a wrong step."""
  make = draft_step.of_network

  def of_network(net):
    return dataclasses.replace(make(net), **changes)

  return of_network


def forgetful(self, weights, tokens, cache, *args, call=DraftStep.__call__, **words):
  """Reads a cache without the values of the tokens before."""
  lost = tuple(jnp.zeros_like(x) for x in cache.values)
  return call(self, weights, tokens, cache.replace(values=lost), *args, **words)


def repeating(*args, call=DraftStep.__call__, noise, **words):
  """Scores the first token in all steps, like a kernel that ignores the last choice."""
  first = jax.nn.one_hot(args[2], noise.shape[-1])
  return call(*args, noise=noise * 0 + 1e30 * first, **words)


@pytest.mark.parametrize(
  ("owner", "name", "fault"),
  [
    (draft_step, "of_network", planted(scale=1.2)),
    (draft_step, "of_network", planted(scale=float("nan"))),
    (DraftStep, "__call__", forgetful),
    (DraftStep, "__call__", repeating),
  ],
  ids=["wrong", "NaN", "stale cache", "wrong choice"],
)
def test_a_kernel_with_wrong_results_is_not_used(
  gpu, monkeypatch, owner, name, fault, capsys
):
  decoder, params = decoder_of()
  monkeypatch.setattr(owner, name, fault)
  (line,) = choose(decoder, params, 1, capsys)
  assert line.startswith(
    "Draft step of 1 row: XLA's, because our kernel's results are off"
  )
  assert not gpu.is_used(draft_step.key_of(decoder.drafter.network, 1))


@pytest.mark.parametrize("reason", ["INTERNAL: step_kernel: too large", "ABORTED\nat"])
def test_a_kernel_that_fails_is_not_used(gpu, monkeypatch, tmp_path, reason, capsys):
  decoder, params = decoder_of()

  def fail(*runs):
    raise jax.errors.JaxRuntimeError(reason)

  choices = handlers.choose_by(monkeypatch, fail)
  (line,) = choose(decoder, params, 1, capsys)
  first = reason.splitlines()[0]
  assert line.endswith(f"row: XLA's, because the comparison failed: {first}")
  assert not choices.is_used(draft_step.key_of(decoder.drafter.network, 1))
  assert not list(tmp_path.glob("choice-*"))


def test_an_outcome_that_cannot_be_saved_holds_in_this_process(
  gpu, monkeypatch, tmp_path, capsys
):
  decoder, params = decoder_of()
  (tmp_path / "file").touch()
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "file"))
  with pytest.warns(UserWarning, match="for this process alone"):
    choose(decoder, params, 1, capsys)
  assert gpu.is_used(draft_step.key_of(decoder.drafter.network, 1))


def test_a_slower_kernel_is_used_only_on_request(gpu, monkeypatch, capsys):
  decoder, params = decoder_of()
  choices = handlers.choose_by(monkeypatch, handlers.clock_of(4.2e-4, 1.6e-4))
  line = "Draft step of 1 row: our kernel takes 0.42 ms, XLA's 0.16 ms"
  assert choose(decoder, params, 1, capsys) == [f"{line}: XLA's is used."]
  assert not choices.is_used(draft_step.key_of(decoder.drafter.network, 1))
  decoder = asked_for(decoder)
  assert choose(decoder, params, 1, capsys) == [f"{line}."]
  assert choices.is_used(draft_step.key_of(decoder.drafter.network, 1))


def test_kernel_and_xla_are_timed(gpu, monkeypatch, capsys):
  """The measurement chooses XLA on a CPU, because the kernel's threads are emulated."""
  decoder, params = decoder_of()
  clock = functools.partial(choice.seconds_of, rounds=1)
  handlers.choose_by(monkeypatch, clock)
  (line,) = choose(decoder, params, 1, capsys)
  assert line.endswith(": XLA's is used.")


def test_an_outcome_is_saved_and_reused(gpu, monkeypatch, tmp_path, capsys):
  decoder, params = decoder_of()
  lines = choose(decoder, params, 1, capsys)
  (path,) = tmp_path.glob("choice-*.json")

  def refuse(*runs):
    raise AssertionError("measured again")

  handlers.choose_by(monkeypatch, refuse)
  assert choose(decoder, params, 1, capsys) == lines
  assert choose(decoder, params, 1, capsys) == []
  # Another number of rows is measured separately.
  with pytest.raises(AssertionError, match="measured again"):
    choose(decoder, params, 2, capsys)
  for damaged in ("", "{}", json.dumps({"errors": [1], "agrees": 1, "seconds": []})):
    path.write_text(damaged)
    handlers.choose_by(monkeypatch, handlers.clock_of(1.6e-4, 4.2e-4))
    assert choose(decoder, params, 1, capsys) == lines


# ---- Networks and settings without the kernel, and PRODUCTS='native'. ----

UNFIT = {
  "another head": ({"head_dim": 32}, "head_dim is 32; the kernel takes 64"),
  "float32": ({"dtype": "float32"}, "dtype is 'float32'; the kernel takes 'bfloat16'"),
  "another activation": ({"mlp_activations": ("silu", "linear")}, "mlp_activations is"),
  "biases of layers": ({"relpos_per_layer": True}, "relpos_per_layer is True"),
  "another start": ({"start_token": 2}, "start_token is 2; the kernel takes 0"),
  "an odd width": ({"emb_dim": 96}, "width must be divisible by 32 times the cluster"),
  "many heads": ({"num_heads": 17}, "at most 16 heads and 24 layers, got 17 and 1"),
  "wide layers": ({"num_heads": 1, "mlp_dim": 20_000}, "20000 hidden units a head are"),
  "rounded weights": ({"weights": "int8"}, "weights is 'int8'"),
  "xla": ({"products": "xla"}, "the network's products are XLA's"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_an_unsupported_network_uses_xla(gpu, name):
  settings, reason = UNFIT[name]
  net = network(**{"dtype": "bfloat16", **settings})
  assert reason in draft_step.problem_of(net)
  assert draft_step.derived("draft", net) == {}
  if name != "xla":
    with pytest.raises(
      ValueError, match="products='native' is not available for the dra"
    ):
      draft_step.derived("draft", native(net))


def native(net):
  """Returns the network with PRODUCTS='native', unchecked."""
  config = dataclasses.replace(net.config)
  object.__setattr__(config, "products", "native")
  return net.clone(config=config)


def asked_for(decoder):
  """Returns the decoder with PRODUCTS='native' for the draft."""
  drafter = DraftModel(native(decoder.drafter.network), GAMMA)
  return dataclasses.replace(decoder, drafter=drafter)


def test_native_is_refused_without_kernels(gpu, monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  assert network(products="native").config.products == "native"
  with pytest.raises(
    ValueError, match=r"'float32'; native products support bfloat16\. Use 'auto'"
  ):
    network(products="native", dtype="float32")
  for reason in ("the GPU's compute capability is 8.0", "there are 4 devices"):
    monkeypatch.setattr(of_gpu, "problem", lambda reason=reason: reason)
    with pytest.raises(ValueError, match=f"native' is not available: {reason}"):
      network(products="native")


def test_native_refuses_a_kernel_with_wrong_results(gpu, monkeypatch, capsys):
  decoder, params = decoder_of()
  monkeypatch.setattr(draft_step, "of_network", planted(scale=2.0))
  with pytest.raises(ValueError, match=r"is not available: .* off by .* Use 'auto'"):
    choose(asked_for(decoder), params, 1, capsys)


def test_an_unsupported_gpu_uses_xla(gpu, monkeypatch, capsys):
  reason = "the GPU's compute capability is 8.0; native kernels are for 9.0"
  monkeypatch.setattr(of_gpu, "problem", lambda: reason)
  monkeypatch.setattr(draft_step, "is_for_gpu", lambda: True)
  decoder, params = decoder_of()
  assert set(params) == {"target", "draft"}
  lines = choose(decoder, params, 1, capsys)
  assert lines == [f"Step of the draft: XLA's, because {reason}."]


def ngrams():
  config = NgramConfig(vocab_size=300, contexts=(40,), width=2, order=2)
  table = network_for(config)
  return Model(table, initial_variables(table, jax.random.key(0))["params"])


@pytest.mark.parametrize(
  ("draft", "reason"),
  [
    (None, None),
    (ngrams, "a NgramTable is not an encoder-decoder"),
    (model, "drafts are trees"),
  ],
  ids=["plain", "n-grams", "trees"],
)
def test_other_decoders_use_no_kernel(gpu, draft, reason, capsys):
  draft = draft and draft()
  target = model(dtype="float32")
  words = {"gamma": GAMMA} if draft else {}
  if reason == "drafts are trees":
    words = {"drafter": TreeDraft(draft.network), "rule": "traversal"}
  decoder, params = assembled(target, draft, **words)
  assert set(params) == ({"target", "draft"} if draft else {"target"})
  lines = choose(decoder, params, 2, capsys)
  expected = [f"Step of the draft: XLA's, because {reason}."] if draft else []
  assert [line for line in lines if "XLA's" in line] == expected


@pytest.mark.parametrize(
  ("capability", "count", "reason"),
  [
    ("8.0", 1, "compute capability is 8.0; native kernels are for 9.0"),
    ("12.0", 1, "compute capability is 12.0; native kernels are for 9.0"),
    ("9.0", 4, "there are 4 devices"),
    ("9.0", 1, "the build failed: there is no nvcc"),
  ],
)
def test_a_gpu_s_problem_is_named(capability, count, reason, monkeypatch, tmp_path):
  device = types.SimpleNamespace(compute_capability=capability)
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(jax, "device_count", lambda: count)
  monkeypatch.setattr(jax, "devices", lambda: [device])
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path))
  monkeypatch.setenv("PATH", "")
  monkeypatch.delenv("NVCC", raising=False)
  assert reason in of_gpu.problem.__wrapped__()
