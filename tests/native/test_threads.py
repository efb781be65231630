"""Kernels finish with the same bits for any number of XLA threads.

There are up to four parts per thread, so parts may outnumber columns, rows or heads.
"""

import functools
import os
import resource
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.native import library
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network import certified, products, rounded
from tests import processes
from tests.kernels import KINDS, matrix, normal, screened

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    library.problem() is not None or sys.platform != "linux",
    reason=f"no kernels, or no count of threads: {library.problem()}",
  ),
]
THREADS = (1, 64, 256)
# Limits of a process. 256 threads reserve 5.5 GiB for stacks and use 0.2 GiB.
MEMORY = 8 * 2**30
SECONDS = 600
# Rows, inputs, columns of the matrices. The first three have more parts than columns.
PRODUCTS = {
  "T5-small's": (64, 2048, [512]),
  "96 threads'": (128, 1024, [256]),
  "one column": (128, 1 << 16, [1]),
  "several": (33, 1024, [130, 7, 0, 96]),
  "large": (8, 1030, [1027]),
  "little": (1, 5, [7]),
}
# Batch, queries, heads, slots, width. Parts outnumber (batch row, head) pairs.
ATTENTION = {"one head": (1, 8, 1, 2050, 64), "heads": (2, 3, 8, 600, 64)}
SAMPLINGS = {"a row": (1, Sampling(0.7)), "rows": (3, Sampling(top_k=40))}


def results(choice):
  """Returns results of the kernels at several sizes, by name."""
  found = {}
  multiply, attend, normalize = (
    jax.jit(f, static_argnums=0)
    for f in (products.multiply, products.attend, products.normalize)
  )
  for name, (rows, inputs, widths) in PRODUCTS.items():
    kernels = [normal(i, inputs, n) / inputs**0.5 for i, n in enumerate(widths)]
    for i, y in enumerate(multiply(choice, normal(9, rows, inputs), *kernels)):
      found[f"{name}, {i}"] = y
  for name, (batch, queries, heads, slots, width) in ATTENTION.items():
    key, value = (normal(i, batch, heads, slots, width) / 8 for i in range(2))
    query = normal(2, batch, queries, heads, width)
    bias = normal(3, 1, heads, 1, slots)
    found[name] = attend(choice, query, key, value, bias)
  found["norm"] = normalize(choice, normal(0, 128, 512), normal(1, 512))
  return {name: np.asarray(value) for name, value in found.items()}


def distributions():
  return {
    name: np.asarray(adjusted_probs(jnp.asarray(normal(0, rows, 32_128)), sampling))
    for name, (rows, sampling) in SAMPLINGS.items()
  }


def of_few_bits():
  """Returns products with rounded weights and with a certified head."""
  x = normal(0, 3, 330)
  weights = normal(1, 330, 20_000)
  multiply = jax.jit(rounded.multiply, static_argnums=0)
  found = {
    "head": jax.jit(certified.multiply, static_argnums=0)(
      "native", x, screened(weights)
    )
  }
  for bits, group in KINDS:
    for columns in (7, 832):
      kernel = matrix(normal(columns, 330, columns), bits, group, layout="panels")
      found[f"{bits} bits, {group}, {columns}"] = multiply("native", x, kernel)[0]
  return {name: np.asarray(value) for name, value in found.items()}


def save(path):
  resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
  found = results("native") | distributions() | of_few_bits()
  np.savez(path, **found, threads=len(os.listdir("/proc/self/task")))


@functools.cache
def saved(threads):
  """Returns the results of a process with `threads` threads."""
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "results.npz")
    module = "tests.native.test_threads"
    settings = {"timeout": SECONDS, "PJRT_NPROC": str(threads)}
    processes.printed("-m", module, path, **settings)
    with np.load(path) as arrays:
      found = dict(arrays)
  # Fewer threads would mean that XLA ignores PJRT_NPROC and the tests see nothing.
  assert found.pop("threads") > threads
  return found


def test_results_equal_xla(monkeypatch):
  monkeypatch.setattr(library, "problem", lambda: "not wanted")
  for name, expected in (results("xla") | distributions()).items():
    np.testing.assert_allclose(
      saved(THREADS[0])[name], expected, rtol=1e-5, atol=1e-5, err_msg=name
    )


@pytest.mark.parametrize("threads", THREADS[1:])
def test_bits_do_not_depend_on_the_number_of_threads(threads):
  for name, few in saved(THREADS[0]).items():
    np.testing.assert_array_equal(saved(threads)[name], few, err_msg=name)


if __name__ == "__main__":
  save(sys.argv[1])
