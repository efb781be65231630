"""Our own products with weights of few bits: those of float64, row by row."""

import itertools

import numpy as np
import pytest

from tests.kernels import KINDS, matrix, needs_kernels, normal
from tests.network.test_rounded import product, unrounded

pytestmark = needs_kernels
ROWS = (*range(1, 10), 17, 130)
COLUMNS = (1, 7, 16, 37, 832)


def ours(x, *kernels):
  return product(x, *kernels, choice="native")


def matrices(inputs, bits, group, **settings):
  kernels = [normal(columns, inputs, columns) for columns in COLUMNS]
  return [matrix(kernel, bits, group, **settings) for kernel in kernels]


def rounded_rows(x, group):
  """Returns rows as they are multiplied: of 8 bits, a scale for each group."""
  found, size = np.zeros(x.shape), group or max(x.shape[1], 1)
  for first in range(0, x.shape[1], size):
    part = x[:, first : first + size].astype(np.float64)
    step = np.abs(part).max(axis=1, keepdims=True) / 127
    codes = np.round(part / np.where(step > 0, step, 1))
    found[:, first : first + size] = codes * step
  return found


@pytest.mark.parametrize(
  ("kind", "inputs"),
  [*itertools.product(KINDS, (5, 330)), ((8, 0), 1), ((4, 32), 64)],
)
def test_a_row_is_float64_s_and_the_same_whatever_stands_beside_it(kind, inputs):
  bits, group = kind
  x, kernels = normal(1, max(ROWS), inputs), matrices(inputs, bits, group, packed=True)
  whole = ours(x, *kernels)
  for rows in ROWS:
    for found, expected in zip(ours(x[-rows:], *kernels), whole, strict=True):
      np.testing.assert_array_equal(found, expected[-rows:])
  for found, kernel in zip(whole, kernels, strict=True):
    np.testing.assert_array_equal(ours(x, kernel)[0], found)
    exact = unrounded(kernel, inputs).astype(np.float64)
    scale = np.abs(x) @ np.abs(exact)
    # A number that is halfway may be rounded either way.
    off = np.abs(found - rounded_rows(x, group) @ exact) / scale
    assert np.median(off) < 1e-6
    assert off.max() < 1e-2
    assert np.abs(found - x @ exact).max() <= 0.01 * scale.max()


@pytest.mark.parametrize(("bits", "group"), KINDS)
def test_codes_are_the_same_packed_and_not(bits, group):
  for packed, plain in zip(
    matrices(70, bits, group, packed=True), matrices(70, bits, group), strict=True
  ):
    np.testing.assert_array_equal(unrounded(packed, 70), unrounded(plain, 70))
    assert packed["scales"].dtype == "bfloat16"


def test_products_of_no_rows_are_empty():
  found = ours(normal(0, 0, 64), *matrices(64, 8, 32, packed=True))
  assert [y.shape for y in found] == [(0, columns) for columns in COLUMNS]


@pytest.mark.parametrize(("bits", "group"), KINDS)
def test_what_is_no_number_stays_none(bits, group):
  x, kernel = normal(5, 6, 64), matrix(normal(6, 64, 130), bits, group, packed=True)
  x[1, 3], x[2, 63], x[3, 0], x[4] = np.nan, np.inf, -np.inf, 0
  found = np.asarray(ours(x, kernel)[0])
  assert np.isnan(found[1:4]).all()
  np.testing.assert_array_equal(found[4], 0)
  assert np.isfinite(found[[0, 5]]).all()


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_rows_of_any_size_are_multiplied(size):
  x, kernel = (
    normal(7, 3, 64) * np.float32(size),
    matrix(normal(8, 64, 20), packed=True),
  )
  expected = x @ unrounded(kernel, 64)
  np.testing.assert_allclose(ours(x, kernel)[0], expected, atol=0.05 * 8 * size)
