"""The CUDA kernels, run on a CPU, give the results of plain loops in float64."""

import copy
import faulthandler
import functools
import multiprocessing
import os
import shutil
import signal
import sys

import ml_dtypes
import numpy as np
import pytest

from specdec_t5x.native.cuda import layout as layouts
from specdec_t5x.native.cuda import library as library_of_kernels
from tests.native.cuda import on_cpu, plain
from tests.native.cuda.on_cpu import Fault

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")

SEEDS = (None, 1, 2)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
  return on_cpu.compiled(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(params=SEEDS)
def turns(request, monkeypatch):
  """Sets the order in which threads take turns."""
  if request.param is not None:
    monkeypatch.setenv("CUDA_ON_CPU_SEED", str(request.param))


# ---- The draft's step. ----

# (width, heads, hidden units, vocabulary, layers, cluster), (rows, slots, inputs), and
# whether the network is gated.
SHAPES = {
  "one_row": ((128, 3, 160, 500, 2, 2), (1, 37, 21)),
  "three_rows": ((256, 2, 90, 333, 2, 4), (3, 20, 70)),
  # A stage has more fragments than half of the ring.
  "large_stages": ((256, 1, 160, 100, 2, 2), (2, 11, 6)),
  "eight_rows": ((128, 1, 40, 64, 1, 4), (8, 9, 5)),
  "t5_1_0": ((128, 3, 160, 500, 2, 2), (1, 37, 21), False),
}


class Step:
  """A small decoder with caches."""

  def __init__(self, sizes, lengths, gated=True):
    width, heads, mlp, vocab, layers, cluster = sizes
    self.rows, self.slots, self.inputs = lengths
    self.layout = layouts.StepLayout(width, heads, mlp, vocab, layers, cluster)
    self.gated = gated
    random = np.random.default_rng(0)
    self.params = plain.parameters(random, self.layout, gated)

    def cache(n):
      return plain.rounded(random.normal(size=(self.rows, heads, n, 64)))

    kinds = {"keys": self.slots, "values": self.slots}
    kinds |= {"cross_keys": self.inputs, "cross_values": self.inputs}
    self.caches = {x: [cache(n) for _ in range(layers)] for x, n in kinds.items()}
    self.mask = random.random((self.rows, self.inputs)) < 0.7
    self.mask[:, 0] = True
    self.index = random.integers(0, self.slots - 4, self.rows).astype(np.int32)
    self.index[0] = 0
    self.tokens = random.integers(0, vocab, self.rows).astype(np.int32)
    self.scratch = np.zeros(layouts.scratch_words(self.layout, self.rows), np.uint32)
    self.scale = 1.0 if gated else width**-0.5

  @functools.cached_property
  def weights(self):
    """The parameters as the kernel reads them."""
    table = self.params["decoder"]["relpos_bias"]["rel_embedding"]
    return {
      "weights": _bits(layouts.stream(self.layout, self.params)),
      "embedding": _bits(self.params["token_embedder"]["embedding"]),
      "norms": _bits(layouts.norms(self.layout, self.params)),
      "biases": np.array(layouts.distance_biases(table)),
    }

  def run(self, library, steps=1, **words):
    """Runs the kernel and returns the results and the updated caches as float64."""
    names = "tokens", "index", "mask", "scratch"
    arrays = self.weights | {name: getattr(self, name) for name in names}
    bits = {name: list(map(_bits, x)) for name, x in self.caches.items()}
    settings = {"steps": steps, "gated": self.gated, "scale": self.scale}
    results = on_cpu.step(library, self.layout, arrays, bits, **settings, **words)
    results["features"] = _floats(results["features"])
    return results | {name: list(map(_floats, x)) for name, x in bits.items()}

  def errors(self, found, steps=1):
    """Returns relative errors of logits, features and caches.

    Later steps read the kernel's tokens, so a near-tie makes no difference.
    """
    caches = {name: list(map(np.copy, x)) for name, x in self.caches.items()}
    tokens = self.tokens
    index = self.index.copy()
    errors = {}
    for i in range(steps):
      logits, features = plain.step(
        self.params, caches, tokens, index, self.mask, self.gated, self.scale
      )
      errors[f"features_{i}"] = _error(found["features"][i], features)
      errors[f"logits_{i}"] = _error(found["logits"][i], logits)
      tokens = found["chosen"][i]
      index = index + 1
      chosen = found["logits"][i][np.arange(self.rows), tokens]
      assert (chosen == found["logits"][i].max(axis=-1)).all()
    for name in ("keys", "values"):
      pairs = zip(found[name], caches[name], strict=True)
      errors[name] = max(_error(ours, theirs) for ours, theirs in pairs)
    return errors

  def check_draft(self, library, steps, temperature=None):
    """Checks that one launch gives the tokens and bits of a launch per token."""
    shape = steps, self.rows, self.layout.vocab
    noise = np.random.default_rng(5).gumbel(size=shape).astype(np.float32)
    words = {"noise": noise, "temperature": temperature} if temperature else {}
    together = self.run(library, steps, **words)
    later = copy.copy(self)
    for i in range(steps):
      found = later.run(library)
      for name in ("logits", "features"):
        np.testing.assert_array_equal(found[name][0], together[name][i])
      values = found["logits"][0]
      is_finite = (values < np.inf).all(axis=-1)
      if temperature:
        values = values / np.float32(temperature) + noise[i]
      chosen = np.where(is_finite, values.argmax(axis=-1), -1).astype(np.int32)
      np.testing.assert_array_equal(together["chosen"][i], chosen)
      later.tokens, later.index = chosen, later.index + 1
      later.caches = {name: found.get(name, x) for name, x in later.caches.items()}
    for name in ("keys", "values"):
      np.testing.assert_array_equal(together[name], later.caches[name])
    return together["chosen"]


def tied():
  """Returns a step with equal logits of all tokens v and v + 250."""
  step = Step(*SHAPES["one_row"])
  kernel = step.params["decoder"]["logits_dense"]["kernel"]
  kernel[:, 250:] = kernel[:, :250]
  return step


def overflowing():
  """Returns a step with a logit of -infinity, NaN logits, and an infinite logit."""
  step = Step(*SHAPES["three_rows"])
  kernel = step.params["decoder"]["logits_dense"]["kernel"]
  kernel[:, 7] = 0
  kernel[145, 7] = 3e38  # The rows' features 145 are -1.69, NaN and 3.14.
  step.params["token_embedder"]["embedding"][step.tokens[1]] = np.nan
  return step


def _error(ours, theirs):
  return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("turns")
def test_a_step_equals_the_plain_step(library, shape):
  step = Step(*SHAPES[shape])
  errors = step.errors(step.run(library))
  assert all(error < 1e-2 for error in errors.values()), errors


# Keys are divided among the blocks of a cluster if the keys exceed 48 in these builds,
# and 144 in a row on a GPU.
@pytest.mark.parametrize(
  ("slots", "inputs", "expected"), [(48, 48, 50), (49, 48, 58), (49, 49, 66)]
)
def test_synchronisations_of_a_step(library, slots, inputs, expected):
  """A step of 8 layers (T5 1.1 small) has 25 exchanges of all blocks, and barriers."""
  step = Step((128, 1, 32, 64, 8, 2), (1, slots, inputs))
  errors = step.errors(step.run(library))
  assert all(error < 1e-2 for error in errors.values()), errors
  barriers = library.specdec_cluster_barriers() - 1  # The last barrier ends the launch.
  assert step.scratch[0] == 25
  assert step.scratch[0] + barriers == expected


@pytest.mark.parametrize("temperature", [None, 0.7], ids=["greedy", "coupled"])
@pytest.mark.parametrize("shape", ["one_row", "three_rows", "eight_rows", "t5_1_0"])
def test_a_draft_in_one_launch_equals_a_launch_per_token(library, shape, temperature):
  step = Step(*SHAPES[shape])
  chosen = step.check_draft(library, 4, temperature)
  if temperature:
    assert (chosen != step.check_draft(library, 4)).any()


def test_equal_logits_choose_the_first_token(library):
  assert (tied().check_draft(library, 3) < 250).all()


def test_nan_and_infinity_choose_no_token(library):
  step = overflowing()
  for temperature in (None, 2.0):
    chosen = step.check_draft(library, 2, temperature)
    assert (chosen[0] == -1).tolist() == [False, True, True]
  logits = step.run(library)["logits"][0]
  np.testing.assert_array_equal(logits[:, 7], [-np.inf, np.nan, np.inf])


def test_a_row_has_the_same_bits_without_other_rows(library):
  step = Step(*SHAPES["three_rows"])
  together = step.run(library)
  alone = copy.copy(step)
  alone.rows = 1
  alone.tokens = step.tokens[1:2]
  alone.index = step.index[1:2]
  alone.mask = step.mask[1:2]
  alone.caches = {k: [x[1:2] for x in v] for k, v in step.caches.items()}
  alone.scratch = np.zeros(layouts.scratch_words(alone.layout, 1), np.uint32)
  found = alone.run(library)
  np.testing.assert_array_equal(found["features"][0, 0], together["features"][0, 1])


# ---- Products of few rows. ----


def _matrix(random, bits, inputs, outputs):
  """Returns the packed weights, the scales, and the weights in float64."""
  most = 2 ** (bits - 1)
  codes = random.integers(-most, most, (inputs, outputs))
  scales = plain.rounded(random.uniform(0.01, 0.03, outputs))
  packed = codes.astype(np.int8)
  if bits == 4:
    halves = (codes & 15).astype(np.uint8)
    packed = halves[:, ::2] | halves[:, 1::2] << 4
  return np.ascontiguousarray(packed), _bits(scales), codes * scales


def _bits(values):
  return np.array(values, ml_dtypes.bfloat16).view(np.uint16)


def _floats(bits):
  return bits.view(ml_dtypes.bfloat16).astype(np.float64)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("inputs", "cluster"), [(256, 1), (208, 2), (1104, 8)])
@pytest.mark.usefixtures("turns")
def test_few_gives_the_same_products_for_any_number_of_rows(
  library, bits, inputs, cluster
):
  random = np.random.default_rng(inputs + bits)
  matrices = [_matrix(random, bits, inputs, outputs) for outputs in (64, 208)]
  weights = [matrix[:2] for matrix in matrices]
  x = plain.rounded(random.normal(size=(8, inputs)))
  together = on_cpu.few(library, bits, cluster, _bits(x), weights)
  for ours, (_, _, values) in zip(together, matrices, strict=True):
    assert _error(_floats(ours), x @ values) < 4e-3
  for rows in (1, 3):
    some = on_cpu.few(library, bits, cluster, _bits(x[:rows]), weights)
    for ours, theirs in zip(some, together, strict=True):
      np.testing.assert_array_equal(ours, theirs[:rows])


# ---- Planted faults. The tests above must find every fault. ----

FAULTS = {
  # A block overwrites sums that the cluster's blocks may still read.
  "a race in a cluster": Fault("step.cuh", {"stages % 2 * at.partial_size": "0"}),
  # A block reads the sums of other clusters too early.
  "a race between clusters": Fault(
    "step.cuh", {"if (!is_there) spin(since);": "break;"}
  ),
  # A token is chosen before all blocks have scored theirs.
  "an early choice": Fault(
    "step.cuh", {"static_cast<unsigned>(word >> 32) != epoch + exchanges": "false"}
  ),
  "a copy over weights in use": Fault(
    "step.cuh", {"used / kPerChunk + slots": "(used + 120) / kPerChunk + slots"}
  ),
  "a wrong bias": Fault("step.cuh", {"all.position - j": "all.position - j + 1"}),
  # Each step of a draft writes to the first step's slot.
  "a stale entry of the cache": Fault(
    "step.cuh", {"positions[row] + step": "positions[row]"}, after="const int slot = "
  ),
  "the last of equal logits": Fault(
    "step.cuh",
    {
      "static_cast<unsigned>(~id)": "static_cast<unsigned>(id)",
      "~static_cast<unsigned>(best)": "static_cast<unsigned>(best)",
    },
  ),
  "a token of NaN": Fault(
    "step.cuh", {"if (!(value < INFINITY)) return 0xffffffffull << 32;": ""}
  ),
  "the first token's noise": Fault(
    "step.cuh", {"arrays.noise[to]": "arrays.noise[row * s.vocab + id]"}
  ),
  "an ignored mask": Fault("step.cuh", {"all.mask[i] ? 0.f : -1e10f": "0.f"}),
  "a missing barrier": Fault(
    "few.cuh", {"__syncthreads();": ""}, after="c[t][2], c[t][3]);\n  "
  ),
}
_WRONG = 7  # The exit status after a wrong result.


@pytest.fixture(scope="module")
def inputs():
  """Returns the steps and the product that show faults. Forked processes use no JAX."""
  random = np.random.default_rng(0)
  steps = [Step(*SHAPES[name]) for name in ("one_row", "three_rows")]
  steps += [tied(), overflowing()]
  for step in steps:
    _ = step.weights
  matrix = _matrix(random, 8, 208, 128)
  return steps, matrix, plain.rounded(random.normal(size=(8, 208)))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
  return on_cpu.compiled(tmp_path_factory.mktemp("faults"), list(FAULTS.values()))


def _passes(library, file, inputs):
  """Returns whether the results of a file's kernel are right."""
  steps, (weights, scales, values), x = inputs
  if file == "few.cuh":
    (y,) = on_cpu.few(library, 8, 2, _bits(x), [(weights, scales)])
    return _error(_floats(y), x @ values) < 4e-3
  one_row, three_rows, equal, infinite = steps
  try:
    for step in (one_row, three_rows):
      errors = step.errors(step.run(library, steps=2), steps=2)
      step.check_draft(library, 2, 0.7)
      if not all(error < 1e-2 for error in errors.values()):
        return False
    equal.check_draft(library, 1)
    infinite.check_draft(library, 1)
  except (AssertionError, IndexError):
    return False  # A token that is not the argmax, or no token.
  return True


def _run(library, number, seed, file, inputs):
  faulthandler.disable()  # An abort is not printed.
  os.environ["CUDA_ON_CPU_SEED"] = str(seed)
  on_cpu.plant(library, number)
  sys.exit(0 if _passes(library, file, inputs) else _WRONG)


def _ending(*arguments):
  """Returns the exit status of `_run`: a kernel that can't continue aborts."""
  process = multiprocessing.get_context("fork").Process(target=_run, args=arguments)
  process.start()
  process.join(120)
  process.kill()
  assert process.exitcode in (0, _WRONG, -signal.SIGABRT)
  return process.exitcode


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_found(faulty, inputs, name):
  number = list(FAULTS).index(name)
  file = FAULTS[name].file
  assert any(_ending(faulty, number, seed, file, inputs) for seed in range(1, 13))


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.parametrize("file", ["step.cuh", "few.cuh"])
def test_kernels_without_faults_pass(faulty, inputs, file):
  assert _ending(faulty, -1, 1, file, inputs) == 0


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
def test_the_kernels_compile_with_nvcc(monkeypatch, tmp_path):
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path))
  path = library_of_kernels.built()
  assert all(name.encode() in path.read_bytes() for name in library_of_kernels.TARGETS)
