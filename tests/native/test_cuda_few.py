"""The CUDA kernel for products of few rows, in programs on a CPU."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import tuning
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.drafters.of_target import NAME, Quantized
from specdec_t5x.native.cuda import few
from specdec_t5x.network import rounded
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.functional import network_for
from specdec_t5x.ways import Model, assembled
from tests import kernels, networks
from tests.native.cuda import handlers

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


SIZES = {
  **{"vocab_size": 96, "emb_dim": 64, "num_heads": 2, "head_dim": 16, "mlp_dim": 32},
  **{"num_encoder_layers": 1, "num_decoder_layers": 1, "dtype": "bfloat16"},
}
T5_1_1 = {"mlp_activations": ("gelu", "linear")}


@pytest.fixture
def gpu(monkeypatch, tmp_path):
  """Installs the kernels with times that are faster than XLA's."""
  choices = handlers.install(monkeypatch, tmp_path, handlers.clock_of(2.2e-5, 3.1e-5))
  monkeypatch.setattr(few, "cluster_of", lambda outputs: 2)
  return choices


def rows(*shape):
  return jnp.asarray(kernels.normal(5, *shape), jnp.bfloat16)


def decide(choices, matrix):
  """Chooses the kernel for the shape of a matrix."""
  config = T5Config(**SIZES, **T5_1_1, weights="int8")
  ((key, contest),) = rounded.contests(config, {"wo": {"kernel": matrix}}, 2)
  return choices.decide(key, contest, "here")


def is_called(x, *matrices):
  program = jax.make_jaxpr(lambda x: rounded.multiply("auto", x, *matrices))(x)
  return "specdec_few" in str(program)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(64, 48), (160, 16), (16, 32)])
def test_few_rows_use_the_kernel_with_the_same_bits_for_any_number(gpu, bits, shape):
  matrix = kernels.matrix(kernels.normal(3, *shape), bits, layout="pairs")
  assert not is_called(rows(1, shape[0]), matrix)
  assert f"in {bits} bits: our kernel takes 0.022 ms" in decide(gpu, matrix)
  # Leading axes are joined into a single product.
  x = rows(2, 4, shape[0])
  (together,) = rounded.multiply("auto", x, matrix)
  (xlas,) = rounded.multiply("xla", x, matrix)
  assert together.shape == xlas.shape
  np.testing.assert_allclose(together, xlas, rtol=0.02, atol=0.05 * shape[0] ** 0.5)
  flat = together.reshape(8, -1)
  for count in (1, 3):
    assert is_called(x.reshape(8, -1)[:count], matrix)
    (some,) = rounded.multiply("auto", x.reshape(8, -1)[:count], matrix)
    np.testing.assert_array_equal(some, flat[:count])
  for other in (rows(9, shape[0]), rows(1, shape[0]).astype(jnp.float32)):
    assert not is_called(other, matrix)


@pytest.mark.parametrize("shape", [(64, 48), (24, 32), (64, 40), (8, 8)])
def test_packed_columns_give_the_same_products(shape):
  matrix = kernels.normal(4, *shape)
  plain, paired = (kernels.matrix(matrix, 4, layout=x) for x in ("xla", "pairs"))
  fits = not (shape[0] % 16 or shape[1] % 16)
  assert (paired["codes"].dtype == jnp.uint8) == fits
  np.testing.assert_array_equal(plain["scales"], paired["scales"])
  for x in (rows(2, shape[0]), rows(12, shape[0]), rows(1, shape[0]).astype("float32")):
    ours, theirs = (rounded.multiply("xla", x, m)[0] for m in (paired, plain))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
  ("shape", "bits", "group"), [((64, 40), 8, 0), ((24, 32), 8, 0), ((64, 32), 4, 32)]
)
def test_unsupported_matrices_use_xla(gpu, shape, bits, group):
  matrix = kernels.matrix(kernels.normal(3, *shape), bits, group, layout="pairs")
  config = T5Config(**SIZES, **T5_1_1, weights="int8")
  assert not list(rounded.contests(config, {"wo": {"kernel": matrix}}, 2))


def test_several_matrices_use_the_kernel_if_every_matrix_does(gpu):
  first, second = (kernels.matrix(kernels.normal(i, 64, 16 * i)) for i in (2, 3))
  decide(gpu, first)
  assert not is_called(rows(1, 64), first, second)
  decide(gpu, second)
  assert is_called(rows(1, 64), first, second)
  products = rounded.multiply("auto", rows(3, 64), first, second)
  for ours, matrix in zip(products, (first, second), strict=True):
    (theirs,) = rounded.multiply("xla", rows(3, 64), matrix)
    np.testing.assert_allclose(ours, theirs, rtol=0.02, atol=0.4)


@pytest.mark.parametrize("weights", ["int8", "float32"])
def test_rounded_weights_decode_with_the_kernel(gpu, weights, capsys):
  """WEIGHTS='int8' and a 4-bit draft of the target both call the kernel."""
  net = network_for(T5Config(**SIZES, **T5_1_1, weights=weights))
  unrounded = networks.sharp(net)
  drafter = None
  params = unrounded
  if weights == "int8":
    params = rounded.within(unrounded, rounded.of_weights(net.config)(unrounded))
  else:
    drafter = Quantized(bits=4, gamma=2)
  decoder, params = assembled(Model(net, params), drafter=drafter)
  if drafter:
    codes = params[NAME]["decoder"]["layers_0"]["mlp"]["wo"]["kernel"]["codes"]
    assert codes.dtype == jnp.uint8
  inputs = jnp.array([[5, 6, 1], [9, 1, 0]])
  tuning.tuned(tuning.Job(decoder, 2, 3, GREEDY, 5), params)
  printed = capsys.readouterr().err.splitlines()
  bits = 4 if drafter else 8
  shapes = ["32 x 64", "64 x 32"]
  taken = f"in {bits} bits: our kernel takes 0.022 ms, XLA's 0.031 ms."
  lines = [line for line in printed if " x " in line]
  products = "Products of 1 to 8 rows by"
  assert sorted(lines) == [f"{products} {shape} {taken}" for shape in shapes]

  def run():
    return networks.run(decoder, params, inputs, 5)

  program = str(jax.make_jaxpr(run)())
  assert "specdec_few" in program
  assert run().tokens.shape == (2, 5)
